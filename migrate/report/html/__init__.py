"""An export, a plan, a signature or a difference as one HTML file that needs nothing else.

specs       parameters as JSON, equal ones once; the rows of the table
memory      device memory by group, and where tile padding is lost
document    what a report says, as plain data
contents    an export, a plan, a signature or a difference -> document
page        document -> HTML; report.html, report.css, drawing.js, table.js and report.js are its parts
"""
