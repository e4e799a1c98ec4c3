"""What is true, put together from the events alone: objects, runs, gates, holds, revisions and calls.

One rule: it believes the scheduler's history and the store's commits, in the order in which they happened. It judges
nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from dispatch_core.evidence import Listing
from dispatch_core.plan import Cause, End
from dispatch_core.record import Answer, Kind, Record, State
from dispatch_core.simulator.trace import (
    LOST_NODE,
    Acknowledged,
    Arrived,
    Committed,
    Ending,
    Event,
    Finished,
    Hindered,
    HoldBit,
    Looked,
    Made,
    Opened,
    Read,
    Reran,
    Sent,
    Slipped,
    Started,
    Stopped,
    Vanished,
)


class Violation(NamedTuple):
    """One law that was broken."""

    law: str
    text: str
    at: float


@dataclass
class Truly:
    """One object as it really is."""

    id: str
    name: str
    made_at: float
    by: Sent | None
    """The Start that made it; None: it is somebody else's."""
    beyond: bool = False
    """That Start had expired."""
    run: int = 1
    alive: bool = True
    running: bool = False
    ending: bool = False
    there: bool = True
    """It is still known to the scheduler."""
    hold: bool = False
    taken_off: float = -1.0
    """When the hold bit was last taken off by a person at the scheduler, or by the scheduler itself."""
    opened: dict[int, Sent | None] = field(default_factory=dict)
    """By run: the Open that opened it; None: a person, or the scheduler itself."""
    started: list[int] = field(default_factory=list)
    ends: dict[int, End] = field(default_factory=dict)
    excused: set[int] = field(default_factory=set)
    """Runs that somebody outside the record made, opened or turned back."""
    refused: bool = False
    """That Start had been refused before, and was delivered once more."""
    disturbed: float = -1.0
    """When somebody outside the record last made it come back."""
    causes: dict[int, set[Cause]] = field(default_factory=dict)
    """By run: how it has ended; one that was run again as the same run more than once."""

    @property
    def ours(self) -> bool:
        return self.by is not None

    def ended_by(self, run: int, cause: Cause) -> None:
        self.causes.setdefault(run, set()).add(cause)


Named = tuple[Kind | None, str | None, int, datetime]


def named(sent: Sent) -> Named:
    """What a commit must hold for this call to be sent."""
    what = f"{sent.submission}.{sent.attempt}" if sent.kind is None else sent.object
    return (sent.kind, what, sent.run, sent.deadline)


class Truth:
    """All that is true at one moment."""

    def __init__(self, uid: str, call_seconds: float) -> None:
        self.uid = uid
        self.call_seconds = call_seconds
        """How long after its deadline a call can take effect."""
        self.objects: dict[str, Truly] = {}
        self.revisions: list[Record] = []
        self.named: set[Named] = set()
        """Every call that a commit holds: its kind, object (or submission.attempt), run and deadline."""
        self.sent: set[Named] = set()
        """Every call that was sent before the event that is judged."""
        self.stopped: set[Named] = set()
        """Every StopJob that the scheduler answered."""
        self.refused: set[tuple[int, int]] = set()
        """Every attempt of which a Start was refused."""
        self.looked: dict[str, float] = {}
        """By actor: when its latest listing began."""
        self.listings: dict[str, tuple[Listing, ...]] = {}
        """By actor: its two latest listings; a commit that was given up may rest on the one before the last."""
        self.known: defaultdict[str, set[int]] = defaultdict(set)
        """By actor: the revisions that it has read, or made."""
        self.has_read: set[str] = set()
        """Actors that have read the record since they began."""
        self.hindered: dict[str, float] = {}
        """By actor: when it was last given no answer by the store."""
        self.epoch: datetime | None = None
        """The host's clock when time began."""
        self.settled_at: float | None = None

    @property
    def newest(self) -> Record:
        return self.revisions[-1]

    def read_by(self, sent: Sent) -> Record | None:
        """The record that the sender of a call had read last."""
        return self.revisions[sent.read - 1] if sent.read else None

    def ours(self) -> list[Truly]:
        return [thing for thing in self.objects.values() if thing.by is not None]

    def moment(self, host: datetime) -> float:
        """A time by the host's clock, as one of this history; before everything where no listing was ever shown."""
        return (host - self.epoch).total_seconds() if self.epoch is not None else -1.0

    def shown(self, actor: str, id: str) -> float:
        """When the later of the two latest listings of an actor that show an object began; -1: neither does."""
        listings = self.listings.get(actor, ())
        began = [self.moment(one.began) for one in listings if any(shown.id == id for shown in one.objects)]
        return max(began, default=-1.0)

    def learn(self, event: Event) -> None:
        """What is true after this event."""
        kind = type(event)
        if kind is Sent or kind is Acknowledged or kind is Arrived:
            return
        if kind is Read:
            self.known[event.actor].add(event.revision)  # type: ignore[union-attr]
            if not event.former:  # type: ignore[union-attr]
                self.has_read.add(event.actor)  # type: ignore[union-attr]
        elif kind is Hindered:
            self.hindered[event.actor] = event.at  # type: ignore[union-attr]
        elif kind is Committed:
            self._committed(event.after)  # type: ignore[union-attr]
            self.known[event.actor].add(event.after.revision)  # type: ignore[union-attr]
            if event.after.settled and self.settled_at is None:  # type: ignore[union-attr]
                self.settled_at = event.at
        elif kind is Looked:
            self._looked(event)  # type: ignore[arg-type]
        elif kind is Made:
            thing = Truly(event.id, event.name, event.at, event.by, event.beyond)  # type: ignore[union-attr,arg-type]
            thing.refused = thing.by is not None and (thing.by.submission, thing.by.attempt) in self.refused
            self.objects[thing.id] = thing
        elif kind in _CHANGES:
            _CHANGES[kind](self.objects[event.id], event)  # type: ignore[union-attr]

    def remember(self, event: Event) -> None:
        """What was so before the next event."""
        if type(event) is Sent:
            self.sent.add(named(event))
        elif type(event) is Stopped:
            self.has_read.discard(event.actor)
        elif type(event) is Arrived:
            self._arrived(event)

    def _arrived(self, event: Arrived) -> None:
        sent, answer = event.sent, event.reply.answer
        if sent.kind is Kind.STOP_JOB and answer is not Answer.LATE:
            self.stopped.add(named(sent))
        elif sent.kind is None and answer is Answer.REFUSED:
            self.refused.add((sent.submission, sent.attempt))

    def _looked(self, event: Looked) -> None:
        if event.job:
            self.looked[event.actor] = event.began
            self.listings[event.actor] = (*self.listings.get(event.actor, ())[-1:], event.listing)
        if self.epoch is None:
            self.epoch = event.listing.began - timedelta(seconds=event.began)

    def _committed(self, record: Record) -> None:
        self.revisions.append(record)
        self.named |= {(call.kind, call.object, call.run, call.deadline) for call in record.calls}
        for submission in record.submissions:
            self.named |= {(None, f"{submission.number}.{a.number}", 0, a.deadline) for a in submission.attempts}


def _opened(thing: Truly, event: Opened) -> None:
    thing.opened.setdefault(event.run, event.by)
    if event.by is None:
        thing.excused.add(event.run)
        thing.disturbed = event.at


def _started(thing: Truly, event: Started) -> None:
    thing.running = True
    thing.started.append(event.run)


def _ending(thing: Truly, event: Ending) -> None:
    thing.ending = True
    if event.end is not None:
        thing.ended_by(event.run, event.end.cause)  # told already: if it is gone now, that is its end


def _finished(thing: Truly, event: Finished) -> None:
    thing.alive = thing.running = thing.ending = False
    thing.ended_by(event.run, event.end.cause)
    if thing.ends.get(event.run, LOST_NODE) is LOST_NODE:
        thing.ends[event.run] = event.end


def _reran(thing: Truly, event: Reran) -> None:
    thing.run, thing.alive, thing.running, thing.ending = event.run, True, False, False
    if event.by is None:
        thing.disturbed = event.at


def _hold(thing: Truly, event: HoldBit) -> None:
    thing.hold = event.on
    if event.by is None and not event.on:
        thing.taken_off = event.at


def _vanished(thing: Truly, event: Vanished) -> None:
    thing.there = thing.alive = thing.running = thing.ending = False


def _slipped(thing: Truly, event: Slipped) -> None:
    thing.excused.add(thing.run)
    thing.disturbed = event.at
    if event.phase is State.ENDED:  # so the scheduler says, and nobody can know better
        thing.alive, thing.running = False, False
        thing.ends.setdefault(thing.run, LOST_NODE)
        thing.ended_by(thing.run, LOST_NODE.cause)
    elif event.back:
        thing.alive, thing.running = True, event.phase is State.RUNNING


_CHANGES: dict[type, Callable[[Truly, Any], None]] = {
    Opened: _opened,
    Started: _started,
    Ending: _ending,
    Finished: _finished,
    Reran: _reran,
    HoldBit: _hold,
    Vanished: _vanished,
    Slipped: _slipped,
}
