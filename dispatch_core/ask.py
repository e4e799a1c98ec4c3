"""What people and engines ask of a job: cancel, hold, release, resolve, dispose. Pure functions of the record.

One rule: a request is a decision like any other, committed against the revision that its asker was shown, without a
lease. There is one way to cancel and one way to hold, whoever asks. Each raises BadInput, in one line, where it would
mean nothing.
"""

from __future__ import annotations

from datetime import datetime

from msgspec.structs import replace

from dispatch_core.errors import BadInput
from dispatch_core.guards import guard
from dispatch_core.plan import Value
from dispatch_core.reasons import CHOICE, Reason
from dispatch_core.record import (
    Hold,
    Outcome,
    Record,
    Result,
    State,
    Submission,
    Wait,
)
from dispatch_core.turn import concluded


class Receipt(Value, frozen=True):
    """What a cancel answers; a second cancel answers the same."""

    key: str
    uid: str
    revision: int
    """The one that the outcome's commit made."""
    result: Result
    """The outcome that stands: not `cancelled` where the job had another before."""
    at: datetime
    clean: bool
    """Whether clean-up is complete: the record is settled (X4)."""
    waits_for: str
    """What clean-up still waits for; "" when it is complete."""


def receipt(record: Record) -> Receipt | None:
    """The receipt of a record that has an outcome."""
    if record.outcome is None:
        return None
    return Receipt(
        key=record.key,
        uid=record.uid,
        revision=record.outcome.revision,
        result=record.outcome.result,
        at=record.outcome.at,
        clean=record.settled,
        waits_for=_waits_for(record),
    )


def _waits_for(record: Record) -> str:
    if record.settled:
        return ""
    if record.wait is not None:
        return record.wait.text
    alive = [object.id for object in record.objects if not object.foreign and object.state is not State.ENDED]
    if alive:
        return f"{', '.join(alive)}: to be listed ended, or known to be gone"
    return "calls that can still land to expire, and listings that show nothing left"


def cancel(record: Record, by: str, at: datetime, reason: str = "") -> Record:
    """Set the outcome, lift every hold, drop every intent (X1); a record with an outcome stays as it is (P2)."""
    if _has_outcome(record):
        return record
    return concluded(record, Outcome(result=Result.CANCELLED, cause=None, at=at, by=by, message=reason))


def hold(record: Record, by: str, reason: str) -> Record:
    """Ask that the job does not start; asked for during a run, it counts for the next start."""
    _needs_no_outcome(record, "held")
    asked = Hold(number=len(record.holds) + 1, asked_by=by, reason=reason)
    return replace(record, holds=(*record.holds, asked))


def release(record: Record, by: str) -> Record:
    """Lift every hold; where the job waits for a choice, launch it again; where an object is gone, say it is over."""
    _needs_no_outcome(record, "released")
    wait = record.wait
    held = any(not hold.lifted for hold in record.holds)
    record = replace(record, holds=tuple(replace(hold, lifted=True) for hold in record.holds))
    if wait is not None and wait.object is not None and wait.reason in (Reason.GONE, Reason.VANISHED):
        record = _said_gone(record, wait.object)
    if wait is not None and _is_choice(wait):
        again = Submission(number=len(record.submissions) + 1, why=f"person {by}", spec=record.submissions[-1].spec)
        record = replace(record, submissions=(*record.submissions, again))
    elif not held and (wait is None or wait.reason is not Reason.GONE):
        raise BadInput(f"job {record.key!r} has no hold and waits for nobody: there is nothing to release")
    return replace(record, wait=None)


def resolve(record: Record, result: Result, by: str, at: datetime, reason: str = "") -> Record:
    """Say how a job came out that waits for a person's choice."""
    _needs_no_outcome(record, "resolved")
    if record.wait is None or not _is_choice(record.wait):
        raise BadInput(f"job {record.key!r} does not wait for a person's choice: cancel it, or let it go on")
    return concluded(record, Outcome(result=result, cause=None, at=at, by=by, message=reason))


def dispose(record: Record, what: str) -> Record:
    """Say of a foreign object (its id) that it does not matter, or of an attempt (`2.1`) that it made no object."""
    if record.settled:
        raise BadInput(f"job {record.key!r} is settled: there is nothing to dispose of")
    object = record.object(what)
    if object is not None and object.foreign:
        rows = tuple(replace(o, disposed=True) if o.id == what else o for o in record.objects)
        return replace(record, objects=rows, wait=None)
    for submission in record.submissions:
        for attempt in submission.attempts:
            if f"{submission.number}.{attempt.number}" == what:
                return _disposed(record, submission, attempt.number)
    raise BadInput(f"job {record.key!r} has no foreign object and no attempt {what!r}: `dispatch status` lists them")


def _disposed(record: Record, submission: Submission, number: int) -> Record:
    if _made_an_object(record, submission, number):
        raise BadInput(f"job {record.key!r}: attempt {submission.number}.{number} made an object; stop the job instead")
    attempts = tuple(replace(a, disposed=True) if a.number == number else a for a in submission.attempts)
    changed = replace(submission, attempts=attempts)
    rows = tuple(changed if s.number == submission.number else s for s in record.submissions)
    return replace(record, submissions=rows, wait=None)


def _said_gone(record: Record, id: str) -> Record:
    """A person's word about an object as it was last seen; a listing that began later undoes it."""
    return replace(record, objects=tuple(replace(o, gone=o.seen) if o.id == id else o for o in record.objects))


def _needs_no_outcome(record: Record, asked: str) -> None:
    outcome = _final(record)
    if outcome is not None:
        raise BadInput(f"job {record.key!r} has {outcome.result} and cannot be {asked}")


@guard("cancelled_once", promise="X4 P2", history="nothing_asked_after_outcome", without=False)
def _has_outcome(record: Record) -> bool:
    """Whether the first outcome stands: a later cancel gets its receipt."""
    return record.outcome is not None


@guard("no_request_after_outcome", promise="P2", history="nothing_asked_after_outcome", without=lambda _: None)
def _final(record: Record) -> Outcome | None:
    """The outcome that ends all requests: a release after it would launch the job again."""
    return record.outcome


@guard("persons_word_where_asked", promise="C2", history="gone_earlier_submission", without=True)
def _is_choice(wait: Wait) -> bool:
    """Whether what follows was left to a person: else a release would launch the job beside what runs."""
    return wait.reason in CHOICE


@guard("disposed_only_without_object", promise="S1", line=2, without=False)
def _made_an_object(record: Record, submission: Submission, number: int) -> bool:
    """Whether an object of the attempt was seen: then nobody can say that it made none."""
    return any(object.attempt == number for object in record.of(submission.number))
