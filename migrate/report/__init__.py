"""What a person sees of plans, checkpoints, exports and running jobs.

text        numbers and errors as text
words       sentences and names that all of them share
terminal    tables for reading
targets     tables of what a target can name
progress    a job as it runs
notebook    what notebooks show of a signature, a plan, a difference
html/       the same, an export too, as one HTML file
"""
