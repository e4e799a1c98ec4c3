"""The laws of the gate: which object counts, what must be so before the gate of one is opened, and what may rest on a
listing that leaves something out.

One rule: what a commit may rest on is what is true, and what the listings of its actor showed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from dispatch_core.evidence import Listing
from dispatch_core.names import read_name
from dispatch_core.plan import Cause
from dispatch_core.record import Call, Kind, Mark, Record, run_key
from dispatch_core.simulator.laws.records import calls_made
from dispatch_core.simulator.laws.truth import Truth
from dispatch_core.simulator.trace import Committed

Law = Callable[[Truth, Any], str | None]


def lowest(truth: Truth, event: Committed) -> str | None:
    """G6: the object that counts is the one of the lowest attempt that a complete listing shows and nobody retired."""
    known = {s.number: s.canonical for s in event.before.submissions} if event.before is not None else {}
    for submission in event.after.submissions:
        chosen = submission.canonical
        if chosen is None or known.get(submission.number) is not None:
            continue
        listings = truth.listings.get(event.actor, ())
        if not any(_is_lowest(truth, listing, chosen, event.before) for listing in listings):
            return f"{chosen} was chosen for submission {submission.number}, and no listing showed it as the lowest"
    return None


def _is_lowest(truth: Truth, listing: Listing, chosen: str, before: Record | None) -> bool:
    """Whether a complete listing shows it, and no lower attempt of its submission that could count."""
    out = {o.id for o in before.objects if o.retired or o.foreign} if before is not None else set()
    names = {shown.id: read_name(shown.name) for shown in listing.objects if shown.id not in out}
    name = names.get(chosen)
    if name is None or name.uid != truth.uid or not listing.complete:
        return False
    same = [other for other in names.values() if other and other[:2] == (truth.uid, name.submission)]
    return name.attempt == min(other.attempt for other in same)


def shut_until(truth: Truth, event: Committed) -> str | None:
    """G8, X3: an Open is decided alone, of the object that counts, when nothing else of the job is left alive, and what
    follows each earlier run of it is decided."""
    for call in calls_made(event.before, event.after):
        if call.kind is Kind.OPEN:
            why = next(_why_shut(truth, event, call), None)
            if why is not None:
                return f"an open of {call.object} was decided, and {why}"
    return None


def _why_shut(truth: Truth, event: Committed, open: Call) -> Iterator[str]:
    before, after = event.before, event.after
    if after.outcome is not None:
        yield f"the job has {after.outcome.result}"
    if not after.submissions or after.submissions[-1].canonical != open.object:
        yield "it is not the one that counts"
    if sum(1 for _ in calls_made(before, after)) > 1 or _starts(after) > _starts(before):
        yield "another call was decided with it"
    yield from _in_the_way(truth, after, open, event.actor)
    for intent in after.intents:
        id, _, run = intent.key.partition("/")
        if id == open.object and run.isdigit() and int(run) < open.run and intent.cause is not Cause.VANISHED:
            yield f"the {intent.do} for run {run} is not carried out"
    for earlier in range(1, open.run):
        if after.spent(run_key(open.object or "", earlier)) is None:
            yield f"nothing was decided on the end of run {earlier}"


def _in_the_way(truth: Truth, record: Record, open: Call, actor: str) -> Iterator[str]:
    """Duplicates that are not retired, and whatever else of the job is alive.

    Excused is what a person said is gone, and what came back by itself and was not shown since: after the listing
    began, or hidden by one that lies.
    """
    began = truth.moment(open.committed)
    for object in record.objects:
        if object.foreign or object.id == open.object:
            continue
        if object.submission == len(record.submissions) and not object.retired:
            yield f"{object.id} is not retired"
        thing = truth.objects.get(object.id)
        if thing is None or not thing.there or not thing.alive or object.gone is not None:
            continue
        if thing.disturbed < 0 or thing.disturbed < min(began, truth.shown(actor, object.id)):
            yield f"{object.id} is alive"


def _starts(record: Record | None) -> int:
    return sum(len(submission.attempts) for submission in record.submissions) if record is not None else 0


def seen_whole(truth: Truth, event: Committed) -> str | None:
    """C4: a launch, an Open, a retirement, a count of absences, a vanishing and a settlement are decided on a listing
    that says that it is complete."""
    listings = truth.listings.get(event.actor, ())
    if not event.late:
        listings = listings[-1:]
    if all(listing.complete for listing in listings):
        return None
    for what, at in _decided_on_all(event.before, event.after):
        if at is None:
            whole = any(listing.complete for listing in listings)
        else:  # the decision says when its listing began
            began = [listing for listing in listings if listing.began <= at]
            whole = not began or began[-1].complete
        if not whole:
            return f"{what}, on a listing that was not complete"
    return None


Decided = Iterator[tuple[str, datetime | None]]
"""What was decided; and when by the host's clock, where the record says so."""


def _decided_on_all(before: Record | None, after: Record) -> Decided:
    """What this commit decides that an incomplete listing decides nothing of."""
    if before is None:
        return
    yield from _of_attempts(before, after)
    yield from _of_objects(before, after)
    yield from _counted("what is left", before.clear, after.clear)
    for call in calls_made(before, after):
        if call.kind is Kind.OPEN:
            yield f"an open of {call.object} was decided", call.committed
    intended = {intent.key for intent in before.intents}
    for intent in after.intents:
        if intent.cause is Cause.VANISHED and intent.key not in intended:
            yield f"{intent.key} was taken to have vanished", None
    if after.settled and not before.settled:
        yield "the record was settled", None


def _of_attempts(before: Record, after: Record) -> Decided:
    known = {(s.number, a.number): a.missing for s in before.submissions for a in s.attempts}
    for submission in after.submissions:
        for attempt in submission.attempts:
            name = f"attempt {submission.number}.{attempt.number}"
            if (submission.number, attempt.number) not in known:
                yield f"{name} was authorized", attempt.committed
            else:
                yield from _counted(name, known[submission.number, attempt.number], attempt.missing)


def _of_objects(before: Record, after: Record) -> Decided:
    """What lands after settlement is retired at sight."""
    rows = {object.id: object for object in before.objects}
    for object in after.objects:
        row = rows.get(object.id)
        if object.retired and not before.settled and (row is None or not row.retired):
            yield f"{object.id} was retired", None
        yield from _counted(object.id, row.missing if row is not None else None, object.missing)


def _counted(what: str, before: Mark | None, after: Mark | None) -> Decided:
    if after is not None and after != before:
        yield f"the absence of {what} was counted", after.second or after.first


LAWS: dict[str, Law] = {"lowest": lowest, "shut_until": shut_until, "seen_whole": seen_whole}

ON: dict[str, tuple[type, ...]] = dict.fromkeys(LAWS, (Committed,))
