"""Every way in which dispatch refuses, as one family of exceptions.

One rule: an error says what happened, to which job, and what to do about it. An error of the family that reaches a
person is one line on the command line and never a traceback; `exit_code` is what the command line then exits with.
This room knows no other room.
"""


class DispatchError(Exception):
    """What every error of dispatch is; catching it catches them all."""

    exit_code = 1


class BadInput(DispatchError):
    """A job, a plan or a request that cannot be accepted; nothing was written."""

    exit_code = 2


class NotFound(DispatchError):
    """No record has this key."""

    exit_code = 4


class KeyTaken(DispatchError):
    """The key has a record with another spec or plan, or one that is not settled; nothing was written."""

    exit_code = 5


class Owned(DispatchError):
    """Another supervisor holds the job's lease."""

    exit_code = 6


class Displaced(DispatchError):
    """This supervisor's lease was taken by another; its decision was refused."""

    exit_code = 7


class Conflict(DispatchError):
    """Something was committed since the revision that was read; read again, then decide again."""

    exit_code = 8


class CommitUnknown(DispatchError):
    """The store did not say whether a commit landed, and reading it back failed as well."""

    exit_code = 9


class StoreUnavailable(DispatchError):
    """The store did not answer, or is not set up."""

    exit_code = 10


class SchedulerUnavailable(DispatchError):
    """The scheduler did not answer a listing; nothing is known of its objects meanwhile."""

    exit_code = 11


class UnreadableRecord(DispatchError):
    """A stored record has a format or a field that this version does not know, or breaks an invariant."""

    exit_code = 12
