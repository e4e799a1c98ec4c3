"""The laws of the end: what is settled is over, what lands later is found, and every job comes to its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dispatch_core.reasons import FOR_A_PERSON
from dispatch_core.record import Answer, Kind, Record, State
from dispatch_core.simulator.laws.truth import Truly, Truth
from dispatch_core.simulator.trace import JANITOR, SWEEPER, Committed, Made, Reran, Started, Stopped

Law = Callable[[Truth, Any], str | None]


def accounted_for(truth: Truth, event: Committed) -> str | None:
    """S1, P3: at settlement nothing of the job is alive or can still run.

    Excused is what came back by itself, is recorded as ended, and was not shown since: after the listing began, or
    hidden by one that lies.
    """
    if not event.after.settled or (event.before is not None and event.before.settled):
        return None
    looked = truth.looked.get(event.actor, 0.0)
    known = [t for t in truth.ours() if t.there and t.alive and not _is_hidden_again(truth, event, t)]
    alive = [t.id for t in known if not t.beyond and t.disturbed < looked]
    alive += [t.id for t in known if t.beyond and max(t.made_at, t.disturbed) < looked]
    if alive:
        return f"the record was settled, and {', '.join(alive)} is alive"
    return _open_points(truth, event.after, looked)


def _is_hidden_again(truth: Truth, event: Committed, thing: Truly) -> bool:
    """Whether it is recorded as ended, somebody outside the record brought it back, and no listing showed it since."""
    row = event.after.object(thing.id)
    if row is None or row.state is not State.ENDED or thing.disturbed < 0:
        return False
    return truth.shown(event.actor, thing.id) <= thing.disturbed


def _open_points(truth: Truth, record: Record, looked: float) -> str | None:
    rows = [(object, truth.objects[object.id]) for object in record.objects if object.foreign]
    foreign = [o.id for o, t in rows if not o.disposed and t.alive and max(t.made_at, t.disturbed) < looked]
    if foreign and record.plan.foreign != "ignore":
        return f"the record was settled, and nobody disposed of {', '.join(foreign)}"
    if record.plan.unmatched != "manual":
        return None
    for submission in record.submissions:
        for attempt in submission.attempts:
            answer = attempt.reply.answer if attempt.reply is not None else Answer.UNKNOWN
            made = any(o.submission == submission.number and o.attempt == attempt.number for o in record.objects)
            if answer not in (Answer.REFUSED, Answer.LATE) and not made and not attempt.disposed:
                return f"the record was settled, and nobody disposed of attempt {submission.number}.{attempt.number}"
    return None


def stopped_once_more(truth: Truth, event: Committed) -> str | None:
    """X4: a job of which a requeue was ever committed is stopped once more, and that was answered, in a listing that
    began after the last of them had expired; only then is it settled."""
    record = event.after
    requeues = [call.deadline for call in record.calls if call.kind is Kind.REQUEUE]
    if not requeues or not record.settled or (event.before is not None and event.before.settled):
        return None
    stop = record.call(Kind.STOP_JOB)
    if stop is None or truth.moment(stop.committed) <= truth.moment(max(requeues)) + truth.call_seconds:
        return "the record was settled, and the job was not stopped once more when no requeue could land"
    if (stop.kind, stop.object, stop.run, stop.deadline) not in truth.stopped:
        return "the record was settled, and the last stop of the job was not answered"
    return None


def nothing_runs_after(truth: Truth, event: Started) -> str | None:
    """S1, S2: once it is settled, nothing of the job starts."""
    thing = truth.objects[event.id]
    if truth.settled_at is None or not thing.ours or event.run in thing.excused:
        return None
    return f"run {event.run} of {thing.id} began after the record was settled"


def lands_only_late(truth: Truth, event: Made | Reran) -> str | None:
    """S1, L4: what comes into being after settlement is a Start that landed after it had expired; no requeue does."""
    if truth.settled_at is None or event.by is None:
        return None
    if type(event) is Reran:
        return f"{event.id} was requeued after the record was settled"
    if type(event) is Made and event.beyond:
        return None
    return f"{event.id} came into being after the record was settled, by a Start that had not expired"


def nobody_breaks(truth: Truth, event: Stopped) -> str | None:
    """R1: no supervisor, janitor or client ends with an error that it ought to have dealt with."""
    if event.error is None or (event.why == "StoreUnavailable" and _was_out(truth, event)):
        return None
    return f"{event.actor} broke: {event.why}: {event.error}"


def _was_out(truth: Truth, event: Stopped) -> bool:
    """Whether the store has just given it no answer, and had given it none since it began."""
    asked_as = {event.actor, SWEEPER} if event.actor == JANITOR else {event.actor}
    return event.actor not in truth.has_read and any(truth.hindered.get(name) == event.at for name in asked_as)


def says_so(truth: Truth) -> str | None:
    """Asked of a job that has come to rest without an outcome: it says that it waits for a person."""
    record = truth.newest
    if record.settled or any(not hold.lifted for hold in record.holds):
        return None
    wait = record.wait
    if wait is not None and wait.reason in FOR_A_PERSON:
        return None
    return f"the job has come to rest at revision {record.revision}, and does not say what it waits for"


def nothing_left(truth: Truth) -> str | None:
    """S2: asked one janitor period after faults have stopped, and the record is settled: nothing is alive."""
    left = [t.id for t in truth.ours() if t.there and t.alive]
    return f"{', '.join(left)} is alive, and the janitor has been" if left else None


LAWS: dict[str, Law] = {
    "accounted_for": accounted_for,
    "stopped_once_more": stopped_once_more,
    "nothing_runs_after": nothing_runs_after,
    "lands_only_late": lands_only_late,
    "nobody_breaks": nobody_breaks,
}

ON: dict[str, tuple[type, ...]] = {
    "accounted_for": (Committed,),
    "stopped_once_more": (Committed,),
    "nothing_runs_after": (Started,),
    "lands_only_late": (Made, Reran),
    "nobody_breaks": (Stopped,),
}
