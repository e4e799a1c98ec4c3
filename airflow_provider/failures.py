"""How a job that did not succeed ends its Airflow task: typed failures that Airflow does not try again.

One rule: the record decides whether a job runs again, so the job's own end is final for Airflow. Airflow's retries are
for what happens to the task itself, a lost worker for one; such a retry finds the same job and spends nothing.
"""

from __future__ import annotations

from airflow.sdk.exceptions import AirflowFailException

from dispatch_core.plan import Cause
from dispatch_core.record import Outcome, Record, Result


class JobEnded(AirflowFailException):
    """What both ends have: the record that says so."""

    key: str = ""
    uid: str = ""
    cause: Cause | None = None
    exit_code: int | None = None


class JobFailed(JobEnded):
    """The job failed, and its plan has nothing left to do about it; `cause` and `exit_code` say how."""


class JobCancelled(JobEnded):
    """The job was cancelled: by a person, by its task's end in Airflow, or by its execution_timeout."""


class JobChanged(AirflowFailException):
    """The job that this task submitted earlier has another command, environment or plan than the DAG says now."""


def failure(record: Record, outcome: Outcome) -> JobEnded:
    """The failure that tells a record's outcome."""
    cause = f" ({outcome.cause})" if outcome.cause is not None else ""
    code = f", exit code {outcome.exit_code}" if outcome.exit_code is not None else ""
    message = f": {outcome.message}" if outcome.message else ""
    count = len(record.submissions)
    text = (
        f"job {record.key!r} {'failed' if outcome.result is Result.FAILED else 'was cancelled'}{cause}{code}"
        f"{message}; by {outcome.by}, after {count} submission{'' if count == 1 else 's'};"
        f" `dispatch history {record.key}` tells its story; clear the task to run it again"
    )
    ended = JobFailed(text) if outcome.result is Result.FAILED else JobCancelled(text)
    ended.key, ended.uid, ended.cause, ended.exit_code = record.key, record.uid, outcome.cause, outcome.exit_code
    return ended
