"""What a person sees of plans, checkpoints, exports and running jobs.

text        numbers and errors as text
terminal    tables for reading
progress    a job as it runs
"""
