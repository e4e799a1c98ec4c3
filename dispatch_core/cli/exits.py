"""What `dispatch` exits with: the codes of outcomes, beside those of `errors`, and the table that help prints.

One rule: a code means one thing in every command. Errors have 1 to 12 (`errors`), outcomes 20 to 22, signals 128 and
above, as shells have it.
"""

from __future__ import annotations

FINE = 0
UNEXPECTED = 1
"""Also what `doctor` and `simulate` exit with where something is not as it should be."""

BAD_INPUT = 2
ATTENTION = 3
"""`ls --attention` found something."""

FAILED = 20
CANCELLED = 21
NEEDS_A_PERSON = 22
"""The job is held, or waits for what only a person can say."""

BROKEN_PIPE = 141
SIGNALLED = 128
"""Plus the signal's number: a supervisor that was told to leave, and left the job running."""

TABLE = """\b
Exit codes:
    0  fine; the job succeeded, or is under way
    1  an unexpected error; a check failed (doctor, simulate)
    2  bad input: nothing was written
    3  ls --attention found jobs
    4  no such job
    5  the key belongs to another job
    6  another supervisor has the job
    7  another supervisor took the job
    8  the record has moved on: look again
    9  whether a commit landed is unknown
   10  the store does not answer, or needs 'dispatch db upgrade'
   11  the scheduler does not answer
   12  a stored record cannot be read
   20  the job failed
   21  the job was cancelled
   22  the job is held, or needs a person (status)
  130, 143  interrupted: the supervisor left, the job runs on
"""
