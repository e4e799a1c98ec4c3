"""What may be reported about a job, and how it merges into the record.

One rule: evidence is a fact, and merging facts in any order, any number of times, gives the same record. Absence is
never evidence: nothing here ever says that something is not there. This room decides nothing; in particular it chooses,
retires and settles nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import msgspec

from dispatch_core.plan import Cause, End, Value
from dispatch_core.record import (
    Answer,
    Attempt,
    Call,
    Kind,
    Object,
    Record,
    Reply,
    RunEnd,
    State,
    Submission,
    read_name,
)


class Bounds(Value, frozen=True):
    """Times that a cluster declares, all in seconds, all by the scheduler host's clock."""

    call_seconds: float
    """The longest that a call which has started can take to land: a call has expired this long after its deadline."""
    window_seconds: float
    """A new call's deadline lies this long after the end of the listing that it was decided on: room for the commit and
    for the longest call."""
    absence_seconds: float = 60.0
    """What complete listings in a row must span before anything missing from them is gone."""
    repeat_seconds: float = 10.0
    """The delay before the first repetition of a call; it doubles from there to ten minutes."""
    resync_seconds: float = 60.0
    """A job with nothing else to wait for is looked at this often."""


class Capabilities(Value, frozen=True):
    """What a cluster can do, asked of the cluster."""

    requeues: bool = False
    """A requeued object comes back gated."""
    shuts: bool = False
    """A run that the scheduler starts on its own comes back gated, once the gate was shut behind the run before."""


class Sighting(Value, frozen=True, gc=False):
    """One object as one listing shows it.

    A value cannot be part of a cycle, so the garbage collector need not look at it: with tens of thousands of them in
    each listing, its pauses would be every job's.
    """

    id: str
    """The object's identity, never another's: where a scheduler gives its ids to others later, the name is in it."""
    name: str
    """As the scheduler has it: a mangled one makes the object foreign, it never raises."""
    key: str
    """The job key that the object is tagged with; "" where the scheduler does not tell."""
    state: State
    run: int = 1
    hold: bool = False
    """The hold bit, whatever the gate."""
    nodes: tuple[str, ...] = ()
    end: End | None = None
    """Of this run: always with `ended`, and with `ending` where the cause is known already."""
    earlier_ends: tuple[tuple[int, End], ...] = ()
    """Ends of earlier runs, where the scheduler's accounting tells them."""
    progress: datetime | None = None
    """Host time of the run's last progress; never stored."""


class Listing(Value, frozen=True):
    """One answer of a scheduler to "what have you got of this job"."""

    objects: tuple[Sighting, ...]
    began: datetime
    """The host's time before it was looked: it shows all that was there then."""
    ended: datetime
    """The host's time after it."""
    complete: bool = True
    """Whether what it does not show was not there."""


class StartReplied(Value, frozen=True):
    """What the Start of one attempt replied."""

    submission: int
    attempt: int
    reply: Reply


class CallReplied(Value, frozen=True):
    """What one repetition of a call replied."""

    kind: Kind
    object: str | None
    run: int
    hold: int
    count: int
    reply: Reply


class Seen(Value, frozen=True):
    """What one listing showed of one object."""

    sighting: Sighting
    at: datetime
    """The listing's beginning."""


Evidence = StartReplied | CallReplied | Seen

_RANK = {
    State.GATED: 0,
    State.HELD: 0,
    State.PENDING: 0,
    State.RUNNING: 1,
    State.UNRECOGNIZED: 1,
    State.ENDING: 2,
    State.ENDED: 3,
}
"""Within one run a state never moves to a lower rank."""

SHOWN_OPEN = frozenset({State.HELD, State.PENDING, State.RUNNING, State.ENDING, State.UNRECOGNIZED})
"""States that an object has only once its gate was opened."""

_ANSWER_RANK = {Answer.UNKNOWN: 0, Answer.LATE: 1, Answer.REFUSED: 2, Answer.DONE: 3}

_START_RANK = {**_ANSWER_RANK, Answer.LATE: 4}
"""Of a Start, `late` stands for good: its place among the three may have been given to another attempt."""

_CAUSE_RANK = {Cause.VANISHED: 0, Cause.UNRECOGNIZED: 0}
"""An end whose cause is known stands before one whose cause is not."""


def seen(listing: Listing) -> tuple[Seen, ...]:
    """The evidence in a listing."""
    return tuple(Seen(sighting=sighting, at=listing.began) for sighting in listing.objects)


def merge(record: Record, evidence: Iterable[Evidence]) -> Record:
    """The record with these facts in it; the same for any order and any number of repetitions."""
    for fact in evidence:
        match fact:
            case StartReplied():
                record = _start_replied(record, fact)
            case CallReplied():
                record = _call_replied(record, fact)
            case _:
                record = _seen(record, fact)
    return record


def is_news(before: Record, after: Record) -> bool:
    """Whether a merge changed anything but the time of a sighting: only that is worth a commit."""
    return _timeless(before) != _timeless(after)


def is_ours(record: Record, sighting: Sighting) -> bool:
    """Whether a listed object is one that this record launched: our uid, and an attempt that was committed."""
    tags = read_name(sighting.name)
    if tags is None or tags.uid != record.uid:
        return False
    return any(
        submission.number == tags.submission and any(a.number == tags.attempt for a in submission.attempts)
        for submission in record.submissions
    )


def _timeless(record: Record) -> Record:
    epoch = datetime.min.replace(tzinfo=UTC)
    rows = tuple(
        msgspec.structs.replace(
            row, seen=epoch, first_seen=epoch, ends=tuple(msgspec.structs.replace(end, at=epoch) for end in row.ends)
        )
        for row in record.objects
    )
    return msgspec.structs.replace(record, objects=rows)


def _better(old: Reply | None, new: Reply, rank: Mapping[Answer, int]) -> Reply:
    if old is None:
        return new
    return max(old, new, key=lambda reply: (rank[reply.answer], reply.text))


def _start_replied(record: Record, fact: StartReplied) -> Record:
    def told(attempt: Attempt) -> Attempt:
        return msgspec.structs.replace(attempt, reply=_better(attempt.reply, fact.reply, _START_RANK))

    return msgspec.structs.replace(
        record,
        submissions=tuple(
            msgspec.structs.replace(s, attempts=tuple(told(a) if a.number == fact.attempt else a for a in s.attempts))
            if s.number == fact.submission
            else s
            for s in record.submissions
        ),
    )


def _call_replied(record: Record, fact: CallReplied) -> Record:
    identity = (fact.kind, fact.object, fact.run, fact.hold)

    def told(call: Call) -> Call:
        if call.identity != identity or call.count != fact.count:
            return call
        return msgspec.structs.replace(call, reply=_better(call.reply, fact.reply, _ANSWER_RANK))

    return msgspec.structs.replace(record, calls=tuple(told(call) for call in record.calls))


def _seen(record: Record, fact: Seen) -> Record:
    sighting = fact.sighting
    before = record.object(sighting.id)
    after = _first(record, fact) if before is None else _again(before, fact)
    others = (row for row in record.objects if row.id != sighting.id)
    alive = sighting.state is not State.ENDED
    answered = alive and record.wait is not None and record.wait.object == sighting.id
    return msgspec.structs.replace(
        record,
        objects=tuple(sorted((*others, after), key=lambda row: (row.submission, row.attempt, row.id))),
        submissions=record.submissions if after.foreign else _sighted(record, after),
        clear=None if alive and not after.foreign else record.clear,
        wait=None if answered else record.wait,
    )


def _first(record: Record, fact: Seen) -> Object:
    """The row of an object that was not known before."""
    sighting = fact.sighting
    tags = read_name(sighting.name) if is_ours(record, sighting) else None
    return Object(
        id=sighting.id,
        name=sighting.name,
        submission=tags.submission if tags else 0,
        attempt=tags.attempt if tags else 0,
        first_seen=fact.at,
        seen=fact.at,
        run=sighting.run,
        state=sighting.state,
        hold=sighting.hold,
        opened=sighting.state in SHOWN_OPEN,
        nodes=tuple(sorted(set(sighting.nodes))),
        ends=_ends((), fact),
        foreign=tags is None,
    )


def _again(before: Object, fact: Seen) -> Object:
    """The row of a known object, with one more sighting: the furthest wins, then the latest."""
    sighting = fact.sighting
    known = (before.run, _RANK[before.state], before.seen, before.state, before.hold, before.nodes)
    shown = (sighting.run, _RANK[sighting.state], fact.at, sighting.state, sighting.hold, sighting.nodes)
    run, _, at, state, hold, _ = max(known, shown)  # history: evidence_never_moves_back
    nodes = {node for known_run, *_, on in (known, shown) if known_run == run for node in on}
    return msgspec.structs.replace(
        before,
        first_seen=min(before.first_seen, fact.at),
        seen=at,
        run=run,
        state=state,
        hold=hold,
        nodes=tuple(sorted(nodes)),  # of its run, whichever sighting tells them
        opened=before.opened or sighting.state in SHOWN_OPEN,
        ends=_ends(before.ends, fact),
        missing=None,
        gone=None if before.gone is not None and fact.at > before.gone else before.gone,
    )


def _ends(known: tuple[RunEnd, ...], fact: Seen) -> tuple[RunEnd, ...]:
    sighting = fact.sighting
    told = [(run, end) for run, end in sighting.earlier_ends if run < sighting.run]
    if sighting.end is not None and sighting.state in (State.ENDING, State.ENDED):
        told.append((sighting.run, sighting.end))
    rows = {row.run: row for row in known}
    for run, end in told:
        row = RunEnd(run=run, at=fact.at, end=end)
        rows[run] = max(rows.get(run, row), row, key=_end_rank)
    return tuple(rows[run] for run in sorted(rows))


def _end_rank(row: RunEnd) -> tuple[int, datetime, bytes]:
    return (_CAUSE_RANK.get(row.end.cause, 1), row.at, msgspec.json.encode(row.end))


def _sighted(record: Record, shown: Object) -> tuple[Submission, ...]:
    """The submissions, where the attempt that made a listed object is no longer missing."""
    return tuple(
        msgspec.structs.replace(
            s,
            attempts=tuple(
                msgspec.structs.replace(a, missing=None) if a.number == shown.attempt else a for a in s.attempts
            ),
        )
        if s.number == shown.submission
        else s
        for s in record.submissions
    )
