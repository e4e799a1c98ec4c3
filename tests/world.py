"""The worlds that histories and properties play in: a store, a scheduler and its clock, supervisors with a view each.

One rule: nothing is decided here. A supervisor reads, lists, asks `dispatch_core.next`, commits and sends; what its
decision does not allow it cannot send. What could not happen is refused (`Impossible`): a start without an attempt, a
run behind a shut gate, an object that nobody made, a call that lands after it has expired.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeGuard

from msgspec.structs import replace

from dispatch_core import next as following
from dispatch_core.adapters.contract import Job
from dispatch_core.evidence import (
    Bounds,
    CallReplied,
    Capabilities,
    Evidence,
    Listing,
    Sighting,
    StartReplied,
    is_news,
    merge,
    seen,
)
from dispatch_core.find import Observed, observe
from dispatch_core.names import object_name, read_name
from dispatch_core.plan import Plan, Spec
from dispatch_core.record import Answer, Kind, Record, Reply, State
from dispatch_core.simulator.flight import is_in_time
from dispatch_core.simulator.scheduler import Impossible, Scheduler, Thing
from dispatch_core.simulator.trace import Event, Reran, Started
from dispatch_core.stores import rules
from dispatch_core.stores.contract import Change, Lease
from dispatch_core.supervisor import is_allowed, still_stands
from dispatch_core.turn import Decision, Send, Start

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)
KEY = "train"
UID = "0f3a9c21"
ALIVE = (State.RUNNING, State.ENDING, State.UNRECOGNIZED)


class Conflict(Exception):
    """Something was committed since the revision that was read."""


class Displaced(Exception):
    """Another supervisor has the lease."""


@dataclass
class Flight:
    """One call on its way: it may reach the host now, later, twice, or never."""

    sender: str
    call: Start | Send
    name: str
    """What it is called in a history: `start 1.1`, `open o1`, `stop_job`."""
    target: str
    """The name of the object that it makes or means."""
    names: tuple[str, ...] = ()

    @property
    def deadline(self) -> datetime:
        return self.call.deadline if isinstance(self.call, Start) else self.call.call.deadline


@dataclass
class View:
    """What one supervisor holds in its memory: lost when it restarts."""

    read: Record | None = None
    listing: Listing | None = None
    began: datetime | None = None
    """When a listing began that has not come to its end."""
    shown: tuple[Sighting, ...] = ()
    """What that listing shows."""
    silent: str = ""
    """Why there is no listing."""
    decision: Decision | None = None
    committed: Record | None = None
    sent: set[int] = field(default_factory=set)
    """Which of the decision's calls were made, or given up, by their places in it."""
    replies: list[Evidence] = field(default_factory=list)
    pending: tuple[Record, str] | None = None
    """What was sent to the store, and its commit's id, while the answer is not known."""
    merged: int = 0
    """How many of the replies the decision holds."""


@dataclass
class Lists:
    """How one listing deceives: what it leaves out, and how long it takes."""

    complete: bool = True
    silent: str = ""
    without: tuple[str, ...] = ()
    taking: float = 0.0
    full: float = 0.0


class World:
    """One job: its record, its objects, and everybody who works on it."""

    def __init__(self, plan: Plan, spec: Spec, bounds: Bounds, capabilities: Capabilities) -> None:
        first = Record(key=KEY, uid=UID, scheduler="cluster", spec=spec, plan=plan)
        self.revisions = [replace(first, revision=1, commit="created")]
        self.bounds = bounds
        self.capabilities = capabilities
        self.now = EPOCH
        """The host's clock."""
        self.scheduler = Scheduler(
            key=KEY,
            now=lambda: self.now,
            time=lambda: (self.now - EPOCH).total_seconds(),
            tell=self._hear,
            requeues=capabilities.requeues,
            starts_once=capabilities.starts_once,
        )
        self.broken: list[str] = []
        """The laws that were broken, in words."""
        self.views: dict[str, View] = {}
        self.flights: list[Flight] = []
        self.late: dict[str, tuple[Record, int]] = {}
        """By sender: a commit that was given up and may land yet, and the revision it was made against."""
        self.lease: str | None = None
        """Who holds it; None: nobody takes leases in this world."""

    @property
    def record(self) -> Record:
        return self.revisions[-1]

    def passes_time(self, seconds: float) -> None:
        if seconds < 0:
            raise Impossible("the scheduler's clock does not step back")
        self.now += timedelta(seconds=seconds)

    def commit(self, record: Record, against: int, by: str, *, decision: bool = False) -> Record:
        held = Lease(uid=UID, owner=by, epoch=0)
        if decision and self.lease is not None and not rules.is_held(held, UID, self.lease, 0):
            raise Displaced
        newest = self.record.revision
        if not rules.is_newest(against, newest):
            raise Conflict
        row = replace(record, revision=newest + 1, commit=f"{by}/{against + 1}")
        self.revisions.append(row)
        return row

    # --- one supervisor

    def view(self, name: str) -> View:
        return self.views.setdefault(name, View())

    def reads(self, name: str, revision: int | None = None) -> Record:
        """The newest revision; one that was named is a stale read."""
        before = self.view(name)
        if revision is not None and not 1 <= revision <= self.record.revision:
            raise Impossible(f"there is no revision {revision}")
        read = self.record if revision is None else self.revisions[revision - 1]
        self.views[name] = View(read=read, replies=before.replies)
        return read

    def lists(self, name: str, how: Lists) -> Listing | None:
        """A listing that nothing interrupts; it shows its beginning."""
        self.begins_listing(name)
        if how.silent:
            view = self.view(name)
            view.silent, view.began = how.silent, None
            return None
        self.takes_listing(name, how)
        self.passes_time(how.taking)
        listing = self.ends_listing(name, how.complete)
        self.view(name).listing = listing = replace(listing, full_seconds=how.full)
        return listing

    def begins_listing(self, name: str) -> None:
        view = self.view(name)
        if view.read is None or view.listing is not None or view.silent:
            raise Impossible(f"{name} lists only after it has read, and once: a listing begins after its read")
        view.began = self.now

    def takes_listing(self, name: str, how: Lists) -> None:
        """The moment that a listing shows."""
        view = self.view(name)
        if view.read is None or view.began is None:
            raise Impossible(f"{name} has not asked for a listing")
        for id in how.without:
            self.scheduler.thing(id)
        job = Job.of(view.read)
        shown = [t.sighting() for t in self.scheduler.things.values() if not t.hidden and t.id not in how.without]
        for sighting in shown:
            tags = read_name(sighting.name)
            launched = (*self.record.names(), *(flight.target for flight in self.flights))
            nobody = tags is not None and tags.uid == UID and sighting.name not in launched
            if nobody and not self.scheduler.things[sighting.id].excused:
                raise Impossible(f"{sighting.id} was made by no attempt that was ever committed")
        view.shown = tuple(s for s in shown if job.concerns(s))

    def ends_listing(self, name: str, complete: bool) -> Listing:
        view = self.view(name)
        if view.began is None:
            raise Impossible(f"{name} has not asked for a listing")
        view.listing = Listing(objects=view.shown, began=view.began, ended=self.now, complete=complete)
        return view.listing

    def observed(self, name: str) -> Observed:
        view = self.view(name)
        if view.read is None or view.listing is None:
            raise Impossible(f"{name} has not read and listed")
        return observe(merge(view.read, view.replies), view.listing, self.bounds, self.capabilities)

    def decides(self, name: str) -> Decision:
        view = self.view(name)
        if view.silent and view.read is not None:
            merged = merge(view.read, view.replies)
            view.decision = following.unreachable(view.read, merged, self.now, view.silent)
        else:
            observed = self.observed(name)
            assert view.read is not None
            view.decision = following.decide(view.read, observed)
        view.merged = len(view.replies)
        return view.decision

    def commits(self, name: str) -> Record | None:
        """Commit the decision, and with it the replies; None where nothing is worth a commit."""
        view = self.view(name)
        if view.read is None or view.decision is None or view.committed is not None:
            raise Impossible(f"{name} has decided nothing")
        if view.decision.record is None:
            view.committed = view.read
        else:
            view.committed = self.commit(view.decision.record, view.read.revision, name, decision=True)
            del view.replies[: view.merged]
        return None if view.decision.record is None else view.committed

    def commits_unknown(self, name: str, *, lands: bool) -> None:
        """The connection breaks on the commit: it landed, or it did not, and the supervisor cannot tell."""
        view = self.view(name)
        if view.read is None or view.decision is None or view.decision.record is None:
            raise Impossible(f"{name} has nothing to commit")
        view.pending = (view.decision.record, f"{name}/{view.read.revision + 1}")
        if lands:
            self.commit(view.decision.record, view.read.revision, name, decision=True)
        else:
            self.late[name] = (view.decision.record, view.read.revision)

    def lands_late(self, name: str) -> Record:
        """A commit that was given up lands after all."""
        if name not in self.late:
            raise Impossible(f"{name} has given up no commit")
        return self.commit(*self.late.pop(name), name, decision=True)

    def reads_back(self, name: str) -> Record | None:
        """Look for the commit by its id among all revisions; None where it never landed."""
        view = self.view(name)
        if view.pending is None:
            raise Impossible(f"{name} waits for no commit")
        decided, commit = view.pending
        changes = [
            Change(revision=row.revision, commit=row.commit, at=self.now, actor="", lines=()) for row in self.revisions
        ]
        landed = rules.has_landed(changes, decided.revision, commit)
        view.committed = self.revisions[decided.revision] if landed else None
        view.pending = None
        return view.committed

    def merges(self, name: str, *, replies_only: bool = False, reread: int | None = None) -> Record | None:
        """What is left of a decision that was refused: its evidence, at the newest revision, without a lease.

        A supervisor that leaves merges the replies that it holds, and nothing else. To one whose re-read was stale,
        what it holds may be news of nothing.
        """
        view = self.view(name)
        facts = [*view.replies, *(seen(view.listing) if view.listing is not None and not replies_only else ())]
        shown = self.record if reread is None else self.revisions[reread - 1]
        merged = merge(shown, facts)
        fresh = is_news(shown, merged)
        self.views[name] = View(decision=view.decision, sent=view.sent)
        return self.commit(merged, shown.revision, name) if fresh else None

    def due(self, name: str, only: str | None = None) -> list[tuple[int, Start | Send]]:
        """The calls of the committed decision that are yet to be made, with their places; `only`: the one so called."""
        view = self.view(name)
        calls = view.decision.calls if view.decision is not None else ()
        landed = view.committed is not None
        if view.decision is None or not (landed or any(is_allowed(call, landed) for call in calls)):
            raise Impossible(f"{name} has committed no decision: it may send nothing")
        due = [(n, c) for n, c in enumerate(calls) if n not in view.sent and only in (None, title(c))]
        if (view.sent or only is not None) and not due:
            raise Impossible(f"{name} has sent what its decision allowed")
        return due

    def gives_up(self, name: str, only: str | None = None) -> None:
        """Calls that are not sent, of which their sender holds that it cannot tell."""
        for number, call in self.due(name, only):
            self.view(name).sent.add(number)
            self.view(name).replies.append(replied(call, Reply(answer=Answer.UNKNOWN)))

    def sends(self, name: str, only: str | None = None, reread: int | None = None) -> list[Flight]:
        """Put the allowed calls on their way; an Open only while nothing was committed since, as a re-read shows it
        (X3)."""
        view, flights = self.view(name), []
        due = self.due(name, only)
        shown = self.record if reread is None else self.revisions[reread - 1]
        record = view.committed or (view.decision.record if view.decision is not None else None)
        moved = record is None or not still_stands(record, shown)
        view.sent |= {number for number, _ in due} or {-1}
        for _, call in due:
            if moved and is_open(call):
                view.replies.append(replied(call, Reply(answer=Answer.LATE, text="not sent")))
        for call in (call for _, call in due if not (moved and is_open(call))):
            if isinstance(call, Start):
                flights.append(Flight(name, call, title(call), object_name(UID, call.submission, call.attempt)))
            elif call.call.kind is Kind.STOP_JOB:
                flights.append(Flight(name, call, title(call), "", record.names() if record else ()))
            else:
                object = record.object(call.call.object or "") if record else None
                flights.append(Flight(name, call, title(call), object.name if object is not None else ""))
        self.flights += flights
        return flights

    def replies(self, flight: Flight, reply: Reply) -> None:
        self.view(flight.sender).replies.append(replied(flight.call, reply))

    # --- the host

    def flight(self, name: str, sender: str, number: int | None = None) -> Flight:
        """The latest call of a sender that is called this, or the `number`-th, from 1."""
        found = [f for f in self.flights if f.name == name and f.sender == sender]
        if len(found) < (number or 1):
            raise Impossible(f"{name} was never sent by {sender}")
        return found[number - 1 if number else -1]

    def arrives(self, flight: Flight) -> Reply:
        """It reaches the host now, which refuses what comes after its deadline."""
        return self._act(flight) if is_in_time(self.now, flight.deadline) else Reply(answer=Answer.LATE)

    def lands(self, flight: Flight) -> Reply:
        """It reached the host in time, and takes effect now: up to the call bound later, a Start at any time."""
        bound = flight.deadline + timedelta(seconds=self.bounds.call_seconds)
        if self.now > bound and not isinstance(flight.call, Start):
            raise Impossible(f"{flight.name} has expired: it can no longer land")
        return self._act(flight)

    def _act(self, flight: Flight) -> Reply:
        if isinstance(flight.call, Start):
            return self.scheduler.starts(flight.target)
        row = flight.call.call
        if row.kind is Kind.STOP_JOB:
            return self.scheduler.stop_named(flight.names)
        reply = self.scheduler.act(row.kind, row.object or "", flight.target, row.run)
        if row.kind is not Kind.REQUEUE and reply.answer is Answer.DONE:
            self._check()
        return reply

    # --- the laws

    def _hear(self, event: Event) -> None:
        if type(event) is Started:
            self._check()
        elif type(event) is Reran and event.by is None and event.open:
            open = [t.id for t in self._ours() if t.open and t.phase is not State.ENDED]
            expired = self.now - timedelta(seconds=self.bounds.call_seconds)
            open += [f.call.call.object or "" for f in self.flights if is_open(f.call) and f.deadline >= expired]
            if set(open) - {event.id}:
                self.scheduler.thing(event.id).excused = "the scheduler ran it again beside another"

    def _ours(self) -> list[Thing]:
        prefix = f"dispatch-{UID}-"
        return [t for t in self.scheduler.things.values() if not t.excused and t.name.startswith(prefix)]

    def _check(self) -> None:
        ours = self._ours()
        running = [t.id for t in ours if t.phase in ALIVE]
        opened = [t.id for t in ours if t.open and t.phase is not State.ENDED]
        for what, ids in (("run", running), ("are open", opened)):
            if len(ids) > 1 and (text := f"{' and '.join(ids)} {what} at once") not in self.broken:
                self.broken.append(text)


def title(call: Start | Send) -> str:
    """What a call is called in a history."""
    if isinstance(call, Start):
        return f"start {call.submission}.{call.attempt}"
    return f"{call.call.kind} {call.call.object}" if call.call.object is not None else "stop_job"


def replied(call: Start | Send, reply: Reply) -> Evidence:
    """What a supervisor holds of a call's reply."""
    if isinstance(call, Start):
        return StartReplied(submission=call.submission, attempt=call.attempt, reply=reply)
    row = call.call
    return CallReplied(kind=row.kind, object=row.object, run=row.run, hold=row.hold, count=row.count, reply=reply)


def is_open(call: Start | Send) -> TypeGuard[Send]:
    return isinstance(call, Send) and call.call.kind is Kind.OPEN
