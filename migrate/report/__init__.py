"""What a person sees of plans, checkpoints, exports and running jobs.

text        numbers and errors as text
words       sentences and names that all of them share
tables      tables of text for terminals of any width
terminal    checkpoints, exports and signatures
targets     tables of what a target can name
progress    a job as it runs
notebook    what notebooks show of a signature, a plan, a difference
html/       the same, an export too, as one HTML file
"""
