"""Closing a job that has an outcome, and keeping a settled one closed.

One rule: an outcome is not the end. Whatever is alive is stopped, every call that can still land is waited for, and
only when every launch is accounted for (S1) is the record settled. After that nothing is authorized, opened or decided
ever again; a launch that lands later is retired and stopped (S2).
"""

from __future__ import annotations

from datetime import datetime

from msgspec.structs import replace

from dispatch_core.find import Observed, last_expiry
from dispatch_core.plan import Value
from dispatch_core.reasons import Reason
from dispatch_core.record import Answer, Kind, Mark, Object, Record, State
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
    if turn.record.clear is not None and observed.listing.complete:
        turn.change(clear=None)
    for point in open_points:
        turn.note(point.reason, point.text, point.object, until=point.until)


def unsettled(record: Record, observed: Observed) -> tuple[Open, ...]:  # history: settle_waits_for_everything
    """What S1 still waits for in this listing; empty when it holds."""
    points = [
        Open(reason=Reason.STOPPING, text=f"{object.id} is {_now(observed, object)}", object=object.id)
        for object in observed.ours()
        if not observed.is_done(object)
    ]
    points += [
        Open(
            reason=Reason.FOREIGN, text=f"{object.id} carries the job's name and is not of its record", object=object.id
        )
        for object in observed.foreign()
    ]
    for submission in record.submissions:
        for attempt in submission.attempts:
            name = f"attempt {attempt.number} of submission {submission.number}"
            if not observed.expired(attempt.deadline):
                until = observed.expiry(attempt.deadline) + INSTANT
                points.append(Open(reason=Reason.AWAITING_EXPIRY, text=f"{name} can still land", until=until))
            elif record.plan.unmatched == "manual" and observed.is_unmatched(submission, attempt):
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
        for call in observed.unexpired(Kind.REQUEUE)
    ]
    if _second_stop_due(record, observed):
        points.append(Open(reason=Reason.STOPPING, text="the job is stopped once more, now that no requeue can land"))
    if not observed.listing.complete:
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
    if sighting is None or sighting.state in (State.ENDED, State.ENDING):
        return
    note = Note(reason=Reason.STOPPING, text=f"stop {object.id}: {why}", object=object.id)
    turn.send(Kind.STOP, object.id, sighting.run, why=note)  # history: run_checked_on_host


def first_clear(turn: Turn) -> None:
    """The outcome's own commit counts its listing, from the listing's end, if S1 holds in it and rests on absence."""
    observed = turn.observed
    if not unsettled(turn.record, observed) and not _is_proven(observed):
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
    expiry = last_expiry(observed, (call for call in record.calls if call.kind is Kind.REQUEUE))
    if expiry is None or observed.began <= expiry:  # history: second_stop_after_requeue_expiry
        return False
    row = record.call(Kind.STOP_JOB)
    if row is None or row.committed <= expiry:
        return True
    return row.reply is None or row.reply.answer in (Answer.UNKNOWN, Answer.LATE)


def _is_proven(observed: Observed) -> bool:
    """Whether nothing rests on absence: each object, and one for each attempt, is listed ended."""
    listed = [observed.sighting(object.id) for object in observed.ours()]
    return all(sighting is not None and sighting.state is State.ENDED for sighting in listed) and all(
        observed.made(submission, attempt)
        for submission in observed.record.submissions
        for attempt in submission.attempts
    )


def _count(turn: Turn) -> None:
    """One more complete listing in which S1 holds; settled when they span the absence rule."""
    observed, clear = turn.observed, turn.record.clear
    if observed.spans(clear):  # history: settle_spans_absence
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
