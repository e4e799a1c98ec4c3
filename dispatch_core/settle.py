"""Closing a job that has an outcome, and keeping a settled one closed.

One rule: an outcome is not the end. Whatever is alive is stopped, every call that can still land is waited for, and
only when every launch is accounted for (S1) is the record settled. After that nothing is authorized, opened or decided
ever again; a launch that lands later is retired and stopped (S2).
"""

from __future__ import annotations

from datetime import datetime

from msgspec.structs import replace

from dispatch_core.find import Observed, last_expiry
from dispatch_core.guards import guard
from dispatch_core.plan import Value
from dispatch_core.reasons import Reason
from dispatch_core.record import Answer, Attempt, Call, Kind, Mark, Object, Record, State, Submission
from dispatch_core.turn import INSTANT, Note, Turn


class Open(Value, frozen=True):
    """One thing that keeps a record from settling."""

    reason: Reason
    text: str
    object: str | None = None
    until: datetime | None = None
    """When it may be over by itself."""


def sweep(turn: Turn) -> None:
    """A settled record: retire and stop what landed after all, and nothing else."""
    observed = turn.observed
    alive = [object for object in observed.ours() if observed.is_listed_alive(object)]
    for object in alive:
        canonical = any(s.canonical == object.id for s in turn.record.submissions)
        if not canonical and not object.retired:
            object = _retired(turn, object)
        stop(turn, object, f"{object.id} landed after the job was settled")
    if not alive:
        turn.note(Reason.SETTLED, "the job is settled")


def close(turn: Turn) -> None:
    """A record with an outcome: stop, wait, and settle when S1 holds."""
    observed = turn.observed
    foreign(turn)
    _stop_job(turn)
    open_points = unsettled(turn.record, observed)
    if not open_points:
        if _is_proven(observed):
            _settle(turn)
        else:
            _count(turn)
        return
    if turn.record.clear is not None and _breaks_the_row(observed):
        turn.change(clear=None)
    for point in open_points:
        turn.note(point.reason, point.text, point.object, until=point.until)


def unsettled(record: Record, observed: Observed) -> tuple[Open, ...]:
    """What S1 still waits for in this listing; empty when it holds."""
    points = [
        Open(reason=Reason.STOPPING, text=f"{object.id} is {_now(observed, object)}", object=object.id)
        for object in observed.ours()
        if not _is_accounted_for(observed, object)
    ]
    points += [
        Open(
            reason=Reason.FOREIGN, text=f"{object.id} carries the job's name and is not of its record", object=object.id
        )
        for object in _undisposed(observed)
    ]
    for submission in record.submissions:
        for attempt in submission.attempts:
            name = f"attempt {attempt.number} of submission {submission.number}"
            if not _has_landed(observed, attempt):
                until = observed.expiry(attempt.deadline) + INSTANT
                points.append(Open(reason=Reason.AWAITING_EXPIRY, text=f"{name} can still land", until=until))
            elif not _is_matched(observed, submission, attempt):
                points.append(
                    Open(reason=Reason.UNMATCHED, text=f"{name} may have made an object; say that it did not")
                )
    points += [
        Open(
            reason=Reason.AWAITING_EXPIRY,
            text=f"a requeue of {call.object} can still land",
            object=call.object,
            until=observed.expiry(call.deadline) + INSTANT,
        )
        for call in _landing_requeues(observed)
    ]
    if _second_stop_due(record, observed):
        points.append(Open(reason=Reason.STOPPING, text="the job is stopped once more, now that no requeue can land"))
    if not _may_settle(observed):
        points.append(Open(reason=Reason.LISTING_INCOMPLETE, text="the listing is not complete"))
    return tuple(points)


def foreign(turn: Turn) -> None:
    """What carries the job's name and is not of its record: stopped or reported, as the plan says."""
    observed = turn.observed
    for object in observed.foreign():
        text = f"{object.id} carries the job's name and is not of its record"
        if turn.record.plan.foreign == "stop" and observed.is_listed_alive(object):
            stop(turn, object, text)
        elif turn.record.outcome is None:
            turn.note(Reason.FOREIGN, text, object.id)


def stop(turn: Turn, object: Object, why: str) -> None:
    """Stop the run of one object that is listed; one that is ending is ending already."""
    sighting = turn.observed.sighting(object.id)
    if sighting is None or sighting.state is State.ENDED:
        return
    if sighting.state is State.ENDING:
        turn.note(Reason.STOPPING, f"{object.id} is ending: {why}", object.id)
        return
    note = Note(reason=Reason.STOPPING, text=f"stop {object.id}: {why}", object=object.id)
    turn.send(Kind.STOP, object.id, sighting.run, why=note)


def first_clear(turn: Turn) -> None:
    """The outcome's own commit counts its listing, from the listing's end, if S1 holds in it and rests on absence."""
    observed = turn.observed
    if _may_begin(turn) and not _is_proven(observed):
        turn.change(clear=Mark(first=observed.listing.ended))


def _retired(turn: Turn, object: Object) -> Object:
    retired = replace(object, retired=True)
    turn.change_object(retired)
    return retired


def _now(observed: Observed, object: Object) -> str:
    sighting = observed.sighting(object.id)
    if sighting is None:
        return "not listed, and not yet known to be gone"
    back = " again, though its end is recorded" if observed.is_moved_back(object) else ""
    return f"{sighting.state}{back}"


def _stop_job(turn: Turn) -> None:
    observed = turn.observed
    alive = [object.id for object in observed.ours() if not observed.is_done(object)]
    if not alive and not _second_stop_due(turn.record, observed):
        return
    text = f"stop the job: {', '.join(alive)}" if alive else "stop the job once more: no requeue can land now"
    turn.send(Kind.STOP_JOB, why=Note(reason=Reason.STOPPING, text=text))


def _second_stop_due(record: Record, observed: Observed) -> bool:
    """Whether StopJob is still owed, or not yet answered, once every requeue call has expired (X4)."""
    expiry = last_expiry(observed, [call for call in record.calls if call.kind is Kind.REQUEUE])
    if expiry is None or observed.began <= expiry:
        return False
    row = record.call(Kind.STOP_JOB)
    return row is None or _is_too_early(row, expiry) or not _is_answered(row)


def _is_proven(observed: Observed) -> bool:
    """Whether nothing rests on absence: each object, and the one of each attempt, is listed ended."""
    if not _makes_one(observed):
        return False
    attempts = [(s, attempt) for s in observed.record.submissions for attempt in s.attempts]
    return all(_is_listed_ended(observed, object) for object in observed.ours()) and all(
        _has_object(observed, submission, attempt) for submission, attempt in attempts
    )


def _count(turn: Turn) -> None:
    """One more complete listing in which S1 holds; settled when they span the absence rule."""
    observed, clear = turn.observed, turn.record.clear
    if _has_shown_long_enough(observed, clear):
        _settle(turn)
        return
    mark = turn.counted(clear, None)
    if mark != clear:
        turn.change(clear=mark)
    text = "every launch is accounted for; that must show in listings that span the absence rule"
    turn.note(Reason.AWAITING_ABSENCE, text, until=observed.ripe(mark) + INSTANT if mark is not None else None)


def _settle(turn: Turn) -> None:
    turn.change(settled=True)
    turn.note(Reason.SETTLED, "every launch is accounted for: the job is settled")


# --- what settling rests on, one condition each


@guard(
    "settle_waits_for_every_object",
    promise="S1",
    history="settle_spans_absence",
    pair="alive_starts_the_count_again",
    without=True,
)
def _is_accounted_for(observed: Observed, object: Object) -> bool:
    """Whether a recorded object has ended, or is known to be gone."""
    return observed.is_done(object)


@guard("settle_waits_for_foreign", promise="S1", history="settle_waits_for_everything", without=lambda _: ())
def _undisposed(observed: Observed) -> tuple[Object, ...]:
    """What carries our name, is alive, and nobody has said that it does not matter."""
    return observed.foreign()


@guard(
    "settle_waits_for_every_attempt",
    promise="S1 P3",
    history="settle_waits_for_everything",
    pair="settle_spans_absence",
    without=True,
)
def _has_landed(observed: Observed, attempt: Attempt) -> bool:
    """Whether the attempt's Start can no longer land, whatever it replied."""
    return observed.expired(attempt.deadline)


@guard("settle_waits_for_unmatched", promise="S1", history="settle_waits_for_everything", without=True)
def _is_matched(observed: Observed, submission: Submission, attempt: Attempt) -> bool:
    """Whether nobody has to say what became of the attempt."""
    return observed.record.plan.unmatched != "manual" or not observed.is_unmatched(submission, attempt)


@guard(
    "settle_waits_for_requeue_expiry",
    promise="L4 S1",
    line=2,
    history="second_stop_after_requeue_expiry",
    without=lambda _: (),
)
def _landing_requeues(observed: Observed) -> tuple[Call, ...]:
    """Requeues that can still bring a run back."""
    return observed.unexpired(Kind.REQUEUE)


@guard("incomplete_settles_nothing", promise="C4 S1", history="incomplete_listing_decides_nothing", without=True)
def _may_settle(observed: Observed) -> bool:
    """Whether the listing shows all that there is."""
    return observed.listing.complete


@guard("settle_spans_absence", promise="S1 P3", without=True)
def _has_shown_long_enough(observed: Observed, clear: Mark | None) -> bool:
    """Whether it shows in listings that span the absence rule: one wrong listing must not close the record."""
    return observed.spans(clear)


@guard("absent_object_proves_nothing", promise="S1", history="hidden_while_closing", line=2, without=True)
def _is_listed_ended(observed: Observed, object: Object) -> bool:
    """Whether the end of an object is seen in this listing, and not remembered or worked out."""
    sighting = observed.sighting(object.id)
    return sighting is not None and sighting.state is State.ENDED


@guard("absent_attempt_proves_nothing", promise="S1 P3", history="settle_spans_absence", line=2, without=True)
def _has_object(observed: Observed, submission: Submission, attempt: Attempt) -> bool:
    """Whether the attempt's object is known: one without may have made an object that this listing leaves out."""
    return bool(observed.made(submission, attempt))


@guard("doubled_start_proves_nothing", promise="S1 P3", history="started_twice_and_hidden", line=2, without=True)
def _makes_one(observed: Observed) -> bool:
    """Whether an attempt's object is its only one: a Start that was carried out twice may have made another, which this
    listing leaves out."""
    return observed.capabilities.starts_once


@guard("clear_starts_again", promise="S1", line=2, without=False)
def _breaks_the_row(observed: Observed) -> bool:
    """Whether a listing in which S1 does not hold starts the count again: an incomplete one tells neither."""
    return observed.listing.complete


@guard("clear_begins_where_settled", promise="S1", history="held_run_rerun", line=2, without=True)
def _may_begin(turn: Turn) -> bool:
    """Whether the outcome's own listing counts as the first that shows nothing left."""
    return not unsettled(turn.record, turn.observed)


@guard("second_stop_after_requeue_expiry", promise="X4", line=2, without=False)
def _is_too_early(stop_job: Call, expiry: datetime) -> bool:
    """Whether StopJob was last committed while a requeue could still land behind it."""
    return stop_job.committed <= expiry


@guard("second_stop_is_answered", promise="X4", line=2, history="second_stop_after_requeue_expiry", without=True)
def _is_answered(stop_job: Call) -> bool:
    """Whether the scheduler answered it: its supervisor may have died between the commit and the call."""
    return stop_job.reply is not None and stop_job.reply.answer in (Answer.DONE, Answer.REFUSED)
