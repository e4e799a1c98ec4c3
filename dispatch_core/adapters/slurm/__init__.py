"""Slurm, on this machine or over SSH.

One rule: whatever changes something is one command on the scheduler's host, which looks at that host's clock, compares
identity and run, acts, and is ended when it takes too long (`guard`). A job id is nobody's identity, an answer that did
not come is unknown, and what `squeue` does not list may be there. `scheduler` is the adapter.
"""
