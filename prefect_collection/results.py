"""What a job came to, as a flow is told it: a result, or one of two errors that carry it.

One rule: nothing here is decided; it is what the record holds. Both errors are the job's last word: Prefect must not
run the task again for them.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from dispatch_core.ask import Receipt
from dispatch_core.errors import DispatchError
from dispatch_core.record import Record, Result
from dispatch_core.status import runs_of


class JobResult(BaseModel):
    """How one job came out."""

    model_config = ConfigDict(frozen=True)

    key: str
    uid: str
    outcome: Literal["succeeded", "failed", "cancelled"]
    cause: str | None
    """Why the last run ended; None for a cancel."""
    exit_code: int | None
    message: str
    submissions: int
    """Launches that the record authorized."""
    runs: int
    """Runs whose gate was opened."""
    settled: bool
    """Whether every launch is accounted for; until then a supervisor goes on cleaning up."""


class Submitted(BaseModel):
    """A job that has a record, as later tasks and other flow runs are told of it."""

    model_config = ConfigDict(frozen=True)

    key: str
    uid: str
    scheduler: str

    def __str__(self) -> str:
        return self.key


class CancelReceipt(BaseModel):
    """What a cancel answers; a second cancel answers the same, once more has been cleaned up."""

    model_config = ConfigDict(frozen=True)

    key: str
    uid: str
    revision: int
    """The one that the outcome's commit made."""
    outcome: Literal["succeeded", "failed", "cancelled"]
    """The one that stands: not `cancelled` where the job had another before."""
    clean: bool
    """Whether clean-up is complete: the record is settled."""
    waits_for: str
    """What clean-up still waits for; "" when it is complete."""


class JobFailed(DispatchError):
    """The job failed, and its plan gives it no further run. `result` is what is known of it."""

    def __init__(self, result: JobResult) -> None:
        super().__init__(result)  # as given: a persisted error is made anew from these arguments
        self.result = result

    def __str__(self) -> str:
        result = self.result
        code = f" with exit code {result.exit_code}" if result.exit_code is not None else ""
        said = f": {result.message}" if result.message else ""
        return (
            f"job {result.key!r} failed ({result.cause or 'resolved by a person'}){code} after {result.runs} run(s)"
            f"{said}; `dispatch history` tells its story, and a new flow run launches it again"
        )


class JobCancelled(DispatchError):
    """The job was cancelled, by a person or by what its flow run was asked. `result` is what is known of it."""

    def __init__(self, result: JobResult) -> None:
        super().__init__(result)
        self.result = result

    def __str__(self) -> str:
        said = f" ({self.result.message})" if self.result.message else ""
        return f"job {self.result.key!r} was cancelled{said}; nothing of it is launched any more"


def receipt_of(receipt: Receipt) -> CancelReceipt:
    """A cancel's receipt as a flow is given it."""
    return CancelReceipt(
        key=receipt.key,
        uid=receipt.uid,
        revision=receipt.revision,
        outcome=receipt.result.value,
        clean=receipt.clean,
        waits_for=receipt.waits_for,
    )


def result_of(record: Record) -> JobResult:
    """The result of a record that has an outcome; raises JobFailed or JobCancelled where it did not succeed."""
    outcome = record.outcome
    if outcome is None:
        raise ValueError(f"job {record.key!r} has no outcome yet")
    result = JobResult(
        key=record.key,
        uid=record.uid,
        outcome=outcome.result.value,
        cause=outcome.cause.value if outcome.cause is not None else None,
        exit_code=outcome.exit_code,
        message=outcome.message,
        submissions=len(record.submissions),
        runs=runs_of(record),
        settled=record.settled,
    )
    if outcome.result is Result.FAILED:
        raise JobFailed(result)
    if outcome.result is Result.CANCELLED:
        raise JobCancelled(result)
    return result
