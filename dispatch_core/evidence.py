"""What may be reported about a job, and how it merges into the record.

One rule: evidence is a fact, and merging facts in any order, any number of times, gives the same record. Absence is
never evidence: nothing here ever says that something is not there. This room decides nothing; in particular it chooses,
retires and settles nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from operator import attrgetter

import msgspec

from dispatch_core.guards import guard
from dispatch_core.names import Tags, read_name
from dispatch_core.plan import Cause, End, Value
from dispatch_core.reasons import WHILE_ALIVE, Reason
from dispatch_core.record import (
    Answer,
    Attempt,
    Call,
    Kind,
    Mark,
    Object,
    Record,
    Reply,
    RunEnd,
    State,
    Submission,
    Wait,
)


class Bounds(Value, frozen=True):
    """Times that a cluster declares, all in seconds, all by the scheduler host's clock."""

    call_seconds: float
    """The longest that a call which has started takes to be answered, or given up."""
    window_seconds: float
    """A new call's deadline lies this long after the end of the listing that it was decided on: room for the commit and
    for the longest call."""
    landing_seconds: float = 0.0
    """The longest that what a call had sent can take to land after that: a call has expired `call_seconds` and
    `landing_seconds` after its deadline."""
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
    starts_once: bool = False
    """A Start that is carried out twice makes one object: names are unique on the scheduler, or claimed before the
    launch."""


class Sighting(Value, frozen=True):
    """One object as one listing shows it."""

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
    full_seconds: float = 0.0
    """The cluster takes no new object of this job before about so long has passed; 0: it takes one."""


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

_CAUSE_RANK = {Cause.VANISHED: 0, Cause.UNRECOGNIZED: 0}
"""An end whose cause is known stands before one whose cause is not."""


def seen(listing: Listing) -> tuple[Seen, ...]:
    """The evidence in a listing."""
    return tuple([Seen(sighting=sighting, at=listing.began) for sighting in listing.objects])


def merge(record: Record, evidence: Sequence[Evidence]) -> Record:
    """The record with these facts in it; the same for any order and any number of repetitions."""
    if not evidence:
        return record
    submissions, calls, clear, wait = record.submissions, record.calls, record.clear, record.wait
    objects = {object.id: object for object in record.objects}
    for fact in evidence:
        match fact:
            case Seen():
                sighting = fact.sighting
                before = objects.get(sighting.id)
                after = _first(record, fact) if before is None else _again(before, fact)
                objects[sighting.id] = after
                submissions = submissions if after.foreign else _sighted(submissions, after)
                clear = None if _clears(sighting) and not after.foreign else clear
                wait = None if wait is not None and _answers(sighting, wait) else wait
            case StartReplied():
                submissions = _start_replied(submissions, fact)
            case _:
                calls = _call_replied(calls, fact)
    rows = tuple(sorted(objects.values(), key=_place))
    return msgspec.structs.replace(record, submissions=submissions, objects=rows, calls=calls, clear=clear, wait=wait)


_place = attrgetter("submission", "attempt", "id")


def is_news(before: Record, after: Record) -> bool:
    """Whether a merge changed anything but the time of a sighting: only that is worth a commit."""
    if len(before.objects) != len(after.objects) or _but_objects(before) != _but_objects(after):
        return True
    return not all(map(_is_same, before.objects, after.objects))


_OBJECTS = Record.__struct_fields__.index("objects")
_but_time = attrgetter("run", "end")


def _but_objects(record: Record) -> tuple[object, ...]:
    fields = msgspec.structs.astuple(record)
    return fields[:_OBJECTS] + fields[_OBJECTS + 1 :]


def _is_same(before: Object, after: Object) -> bool:
    """Whether two rows differ in the times of sightings at most."""
    if before is after:
        return True
    at_its_times = msgspec.structs.replace(after, first_seen=before.first_seen, seen=before.seen, ends=before.ends)
    return at_its_times == before and [*map(_but_time, after.ends)] == [*map(_but_time, before.ends)]


def is_ours(record: Record, sighting: Sighting) -> bool:
    """Whether a listed object is one that this record launched: our uid, and an attempt that was committed."""
    tags = read_name(sighting.name)
    return tags is not None and _has_our_uid(record, tags) and _is_committed(record, tags)


@guard("foreign_by_uid", promise="S1", without=True)
def _has_our_uid(record: Record, tags: Tags) -> bool:
    """Whether this record launched it, and not an earlier one under the same key."""
    return tags.uid == record.uid


@guard("foreign_by_attempt", promise="S1", history="settle_waits_for_everything", without=True)
def _is_committed(record: Record, tags: Tags) -> bool:
    """Whether its attempt is in the record: what no attempt made was never authorized."""
    return any(
        submission.number == tags.submission and any(a.number == tags.attempt for a in submission.attempts)
        for submission in record.submissions
    )


def _better(old: Reply | None, new: Reply, rank: Callable[[Answer], int]) -> Reply:
    if old is None:
        return new
    return max(old, new, key=lambda reply: (rank(reply.answer), reply.text))


@guard(
    "a_late_attempt_stays_late",
    promise="G5",
    line=2,
    without=lambda answer: _ANSWER_RANK[answer],
)
def _start_rank(answer: Answer) -> int:
    """Of a Start, `late` stands for good: its place among the three may have been given to another attempt."""
    return len(_ANSWER_RANK) if answer is Answer.LATE else _ANSWER_RANK[answer]


def _start_replied(submissions: tuple[Submission, ...], fact: StartReplied) -> tuple[Submission, ...]:
    def told(attempt: Attempt) -> Attempt:
        return msgspec.structs.replace(attempt, reply=_better(attempt.reply, fact.reply, _start_rank))

    return tuple(
        msgspec.structs.replace(s, attempts=tuple(told(a) if a.number == fact.attempt else a for a in s.attempts))
        if s.number == fact.submission
        else s
        for s in submissions
    )


def _call_replied(calls: tuple[Call, ...], fact: CallReplied) -> tuple[Call, ...]:
    identity = (fact.kind, fact.object, fact.run, fact.hold)

    def told(call: Call) -> Call:
        if call.identity != identity or call.count != fact.count:
            return call
        return msgspec.structs.replace(call, reply=_better(call.reply, fact.reply, _ANSWER_RANK.__getitem__))

    return tuple(told(call) for call in calls)


def _answers(sighting: Sighting, wait: Wait) -> bool:
    """Whether a sighting is what was waited for: the object is alive after all."""
    if sighting.id != wait.object or sighting.state is State.ENDED or wait.reason in WHILE_ALIVE:
        return False
    return wait.reason is not Reason.UNRECOGNIZED or sighting.state is not State.UNRECOGNIZED


@guard("alive_starts_the_count_again", promise="S1", line=2, history="late_launch_after_settlement", without=False)
def _clears(sighting: Sighting) -> bool:
    """Whether it shows that not every launch is accounted for, whoever saw it."""
    return sighting.state is not State.ENDED


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


_Sight = tuple[int, int, datetime, State, bool, tuple[str, ...]]
"""Run, rank, time, and what breaks a tie."""


def _again(before: Object, fact: Seen) -> Object:
    """The row of a known object, with one more sighting: the furthest wins, then the latest."""
    sighting = fact.sighting
    known = (before.run, _RANK[before.state], before.seen, before.state, before.hold, before.nodes)
    shown = (sighting.run, _RANK[sighting.state], fact.at, sighting.state, sighting.hold, sighting.nodes)
    run, _, at, state, hold, _ = shown if _is_further(shown, known) else known
    nodes = {*(before.nodes if before.run == run else ()), *(sighting.nodes if sighting.run == run else ())}
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
        missing=_missing_still(before),
        gone=None if before.gone is not None and _outdates(fact.at, before.gone) else before.gone,
    )


@guard("evidence_never_moves_back", promise="C3", without=True)
def _is_further(shown: _Sight, known: _Sight) -> bool:
    """Whether a sighting tells more than is known: an old listing, merged late, must not revive an ended run."""
    return shown > known


@guard("any_sighting_starts_again", promise="C4", history="absence_rule", line=2, without=lambda before: before.missing)
def _missing_still(before: Object) -> Mark | None:
    """What is left of a count of absences once the object is listed: nothing, they were not in a row."""
    return None


@guard("later_listing_undoes_the_word", promise="G8", line=2, without=False)
def _outdates(at: datetime, gone: datetime) -> bool:
    """Whether a person's word, of what an object was then, says nothing of it any more."""
    return at > gone


def _ends(known: tuple[RunEnd, ...], fact: Seen) -> tuple[RunEnd, ...]:
    sighting = fact.sighting
    told = [(run, end) for run, end in sighting.earlier_ends if run < sighting.run]
    if sighting.end is not None and sighting.state in (State.ENDING, State.ENDED):
        told.append((sighting.run, sighting.end))
    if not told:
        return known
    rows = {row.run: row for row in known}
    for run, end in told:
        row = RunEnd(run=run, at=fact.at, end=end)
        rows[run] = _surer(rows[run], row) if run in rows else row
    return tuple(map(rows.__getitem__, sorted(rows)))


def _surer(old: RunEnd, new: RunEnd) -> RunEnd:
    """Of two words on the end of one run, the one with a known cause, then the later; the last breaks a tie."""
    known, told = _end_rank(old), _end_rank(new)
    if known != told:
        return old if known > told else new
    return max(old, new, key=lambda row: msgspec.json.encode(row.end))


def _end_rank(row: RunEnd) -> tuple[int, datetime]:
    return _CAUSE_RANK.get(row.end.cause, 1), row.at


def _sighted(submissions: tuple[Submission, ...], shown: Object) -> tuple[Submission, ...]:
    """The submissions, where the attempt that made a listed object is no longer missing."""
    if not [attempt for s in submissions for attempt in s.attempts if attempt.missing is not None]:
        return submissions

    def found(attempt: Attempt) -> Attempt:
        missing = attempt.missing is not None and attempt.number == shown.attempt
        return msgspec.structs.replace(attempt, missing=None) if missing else attempt

    return tuple(
        msgspec.structs.replace(s, attempts=tuple(found(a) for a in s.attempts)) if s.number == shown.submission else s
        for s in submissions
    )
