"""How a job that did not succeed ends its Airflow task: typed failures, and which of them Airflow may try again.

One rule: the record decides whether a job runs again, so the job's own end is final for Airflow, whose retries are for
what happens to the task itself. Only a `retry_policy` that the DAG's author wrote is asked about a job that failed; it
sees `cause` and `exit_code`. A cancel is final whatever a policy says.
"""

from __future__ import annotations

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from dispatch_core.plan import Cause
from dispatch_core.record import Outcome, Record, Result


class JobEnded(AirflowException):
    """What both ends have: the record that says so."""

    key: str = ""
    uid: str = ""
    cause: Cause | None = None
    exit_code: int | None = None


class JobFailed(JobEnded):
    """The job failed, and its plan has nothing left to do about it; `cause` and `exit_code` say how."""


class JobFailedForGood(JobFailed, AirflowFailException):
    """The same, where the task has no retry policy, or a key of its own: Airflow does not try again."""


class JobCancelled(JobEnded, AirflowFailException):
    """The job was cancelled: by a person, by its task's end in Airflow, or by its timeout."""


class JobDetached(AirflowException):
    """The task's timeout is over and the job goes on, as `on_timeout="detach"` asks; `key` and `uid` say which."""

    key: str = ""
    uid: str = ""


class JobDetachedForGood(JobDetached, AirflowFailException):
    """The same, where the task has no retry policy: Airflow does not try again."""


class JobChanged(AirflowFailException):
    """The job that this task submitted earlier has another command, environment or plan than the DAG says now."""


def failure(record: Record, outcome: Outcome, *, may_retry: bool) -> JobEnded:
    """The failure that tells a record's outcome; `may_retry`: a retry policy is asked what follows."""
    cause = f" ({outcome.cause})" if outcome.cause is not None else ""
    code = f", exit code {outcome.exit_code}" if outcome.exit_code is not None else ""
    message = f": {outcome.message}" if outcome.message else ""
    count = len(record.submissions)
    text = (
        f"job {record.key!r} {'failed' if outcome.result is Result.FAILED else 'was cancelled'}{cause}{code}"
        f"{message}; by {outcome.by}, after {count} submission{'' if count == 1 else 's'};"
        f" `dispatch history {record.key}` tells its story; clear the task to run it again"
    )
    failed = JobFailed if may_retry else JobFailedForGood
    ended = failed(text) if outcome.result is Result.FAILED else JobCancelled(text)
    ended.key, ended.uid, ended.cause, ended.exit_code = record.key, record.uid, outcome.cause, outcome.exit_code
    return ended


def detached(record: Record, *, may_retry: bool) -> JobDetached:
    """The failure of a task that no longer waits."""
    text = (
        f"the timeout of this task is over, and job {record.key!r} goes on without it: `dispatch supervise` sees to it,"
        f" `dispatch cancel {record.key}` ends it; clear the task to have it cancelled and a new one run"
    )
    left = (JobDetached if may_retry else JobDetachedForGood)(text)
    left.key, left.uid = record.key, record.uid
    return left
