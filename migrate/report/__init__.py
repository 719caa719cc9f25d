"""What a person sees of plans, checkpoints, exports and running jobs.

text        numbers and errors as text
terminal    tables for reading
targets     tables of what a target can name
progress    a job as it runs
"""
