"""The worlds that histories and properties play in: a store, a scheduler and its clock, supervisors with a view each.

One rule: nothing is decided here. A supervisor reads, lists, asks `dispatch_core.next`, commits and sends; what its
decision does not allow it cannot send. What could not happen is refused (`Impossible`): a start without an attempt, a
run behind a shut gate, an object that nobody made, a call that lands after it has expired.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

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
from dispatch_core.plan import Cause, End, Plan, Spec
from dispatch_core.record import Answer, Kind, Record, Reply, State
from dispatch_core.stores import rules
from dispatch_core.stores.contract import Change, Lease
from dispatch_core.supervisor import still_stands
from dispatch_core.turn import Decision, Send, Start

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)
KEY = "train"
UID = "0f3a9c21"
ALIVE = (State.RUNNING, State.ENDING, State.UNRECOGNIZED)


class Impossible(Exception):
    """What no store, no scheduler and no supervisor could have done."""


class Conflict(Exception):
    """Something was committed since the revision that was read."""


class Displaced(Exception):
    """Another supervisor has the lease."""


@dataclass
class Thing:
    """An object as the scheduler has it, whatever anybody knows of it."""

    id: str
    name: str
    key: str = KEY
    phase: State = State.PENDING
    """Pending stands for all that comes before the run: gate and hold bit say the rest."""
    run: int = 1
    open: bool = False
    hold: bool = False
    shut_behind: bool = False
    hidden: bool = False
    stubborn: bool = False
    """A stop is answered and does nothing."""
    slow: bool = False
    """A stop makes it `ending` first."""
    nodes: tuple[str, ...] = ()
    ends: dict[int, End] = field(default_factory=dict)
    accounted: bool = True
    """Whether the ends of its earlier runs are told."""
    progress: datetime | None = None
    excused: str = ""
    """Who acted outside the record, so that the laws do not bind it."""

    @property
    def state(self) -> State:
        if self.phase is not State.PENDING:
            return self.phase
        if not self.open:
            return State.GATED
        return State.HELD if self.hold else State.PENDING

    def sighting(self) -> Sighting:
        earlier = tuple((run, end) for run, end in sorted(self.ends.items()) if run < self.run)
        return Sighting(
            id=self.id,
            name=self.name,
            key=self.key,
            state=self.state,
            run=self.run,
            hold=self.hold,
            nodes=self.nodes,
            end=self.ends.get(self.run),
            earlier_ends=earlier if self.accounted else (),
            progress=self.progress,
        )


class Scheduler:
    """Objects, one clock, and a host that checks deadline, identity and run before it acts."""

    def __init__(self, requeues: bool) -> None:
        self.now = EPOCH
        self.requeues = requeues
        self.things: dict[str, Thing] = {}
        self.made = 0
        self.reused: set[str] = set()
        """Ids that belong to somebody else's job now."""
        self.broken: list[str] = []
        """The laws that were broken, in words."""

    def thing(self, id: str) -> Thing:
        if id not in self.things:
            raise Impossible(f"there is no {id}")
        return self.things[id]

    def make(self, name: str) -> Thing:
        self.made += 1
        thing = Thing(id=f"o{self.made}", name=name)
        self.things[thing.id] = thing
        return thing

    # --- what happens by itself

    def runs(self, id: str, nodes: tuple[str, ...] = ()) -> None:
        thing = self.thing(id)
        if thing.state is not State.PENDING:
            raise Impossible(f"{id} is {thing.state}: it cannot run")
        thing.phase, thing.nodes = State.RUNNING, nodes or thing.nodes
        self.check()

    def ends(self, id: str, end: End) -> None:
        thing = self.thing(id)
        if thing.phase is State.ENDED or thing.state in (State.GATED, State.HELD):
            raise Impossible(f"{id} is {thing.state}: it cannot end by itself")
        thing.phase = State.ENDED
        thing.ends.setdefault(thing.run, end)

    def ending(self, id: str, end: End | None) -> None:
        thing = self.thing(id)
        if thing.phase not in (State.RUNNING, State.UNRECOGNIZED):
            raise Impossible(f"{id} is {thing.state}: it cannot be ending")
        thing.phase = State.ENDING
        if end is not None:
            thing.ends[thing.run] = end

    def purges(self, id: str, *, lost: bool = False) -> None:
        if not lost and self.thing(id).phase is not State.ENDED:
            raise Impossible(f"{id} is {self.thing(id).state}: only what has ended is purged")
        del self.things[id]

    def reruns(self, id: str, end: End | None = None) -> None:
        """Start the next run of an object, asked by nobody of ours."""
        thing = self.thing(id)
        if thing.phase is State.PENDING:
            raise Impossible(f"{id} is {thing.state}: it has no run to repeat")
        if end is not None:
            thing.ends.setdefault(thing.run, end)
        thing.run, thing.phase, thing.open = thing.run + 1, State.PENDING, not thing.shut_behind
        thing.shut_behind = False

    def rolls_back(self, id: str, phase: State, run: int | None = None) -> None:
        """A controller that restarts from an older copy of what it knew."""
        thing = self.thing(id)
        thing.phase, thing.run, thing.excused = phase, run or thing.run, "the scheduler rolled it back"

    # --- what it is asked for

    def stop(self, thing: Thing) -> None:
        if thing.phase is State.ENDED or thing.stubborn:
            return
        if thing.slow and thing.phase is State.RUNNING:
            thing.phase = State.ENDING
        elif not (thing.slow and thing.phase is State.ENDING):
            thing.phase = State.ENDED
            thing.ends.setdefault(thing.run, End(cause=Cause.STOPPED_OUTSIDE))

    def act(self, kind: Kind, id: str, name: str, run: int) -> Reply:
        """One call on one object; the host compares identity and run in the command that acts."""
        thing = self.things.get(id)
        if id in self.reused:
            return Reply(answer=Answer.REFUSED, text=f"{id} has another name")
        if thing is None or thing.name != name:
            return Reply(answer=Answer.REFUSED, text=f"there is no {id}")
        if thing.run != run:
            return Reply(answer=Answer.REFUSED, text=f"{id} is in run {thing.run}, not {run}")
        if kind is Kind.REQUEUE:
            return self._requeue(thing)
        if kind is Kind.STOP:
            self.stop(thing)
        elif thing.phase is State.ENDED:
            return Reply(answer=Answer.REFUSED, text=f"{id} has ended")
        elif kind is Kind.OPEN:
            thing.open = True
        elif kind is Kind.SHUT:
            thing.shut_behind = True
        else:
            thing.hold = kind is Kind.HOLD
        self.check()
        return Reply(answer=Answer.DONE)

    def _requeue(self, thing: Thing) -> Reply:
        if thing.phase is not State.ENDED:
            return Reply(answer=Answer.REFUSED, text=f"{thing.id} has not ended")
        thing.run, thing.phase, thing.shut_behind = thing.run + 1, State.PENDING, False
        thing.open = not self.requeues
        return Reply(answer=Answer.DONE)

    # --- the laws

    def check(self) -> None:
        prefix = f"dispatch-{UID}-"
        ours = [t for t in self.things.values() if not t.excused and t.name.startswith(prefix)]
        running = [t.id for t in ours if t.phase in ALIVE]
        opened = [t.id for t in ours if t.open and t.phase is not State.ENDED]
        for what, ids in (("run", running), ("are open", opened)):
            if len(ids) > 1 and (text := f"{' and '.join(ids)} {what} at once") not in self.broken:
                self.broken.append(text)


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
    silent: bool = False
    decision: Decision | None = None
    committed: Record | None = None
    sent: bool = False
    replies: list[Evidence] = field(default_factory=list)
    pending: tuple[Record, str] | None = None
    """What was sent to the store, and its commit's id, while the answer is not known."""
    merged: int = 0
    """How many of the replies the decision holds."""


@dataclass
class Lists:
    """How one listing deceives: what it leaves out, and how long it takes."""

    complete: bool = True
    silent: bool = False
    without: tuple[str, ...] = ()
    taking: float = 0.0


class World:
    """One job: its record, its objects, and everybody who works on it."""

    def __init__(self, plan: Plan, spec: Spec, bounds: Bounds, capabilities: Capabilities) -> None:
        first = Record(key=KEY, uid=UID, scheduler="cluster", spec=spec, plan=plan)
        self.revisions = [replace(first, revision=1, commit="created")]
        self.bounds = bounds
        self.capabilities = capabilities
        self.scheduler = Scheduler(capabilities.requeues)
        self.views: dict[str, View] = {}
        self.flights: list[Flight] = []
        self.lease: str | None = None
        """Who holds it; None: nobody takes leases in this world."""

    @property
    def record(self) -> Record:
        return self.revisions[-1]

    @property
    def now(self) -> datetime:
        return self.scheduler.now

    def passes_time(self, seconds: float) -> None:
        if seconds < 0:
            raise Impossible("the scheduler's clock does not step back")
        self.scheduler.now += timedelta(seconds=seconds)

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

    def reads(self, name: str) -> Record:
        before = self.view(name)
        self.views[name] = View(read=self.record, replies=before.replies)
        return self.record

    def lists(self, name: str, how: Lists) -> Listing | None:
        view = self.view(name)
        if view.read is None or view.listing is not None or view.silent:
            raise Impossible(f"{name} lists only after it has read, and once: a listing begins after its read")
        if how.silent:
            view.silent = True
            return None
        for id in how.without:
            self.scheduler.thing(id)
        job, began = Job.of(view.read), self.now
        shown = [t.sighting() for t in self.scheduler.things.values() if not t.hidden and t.id not in how.without]
        for sighting in shown:
            tags = read_name(sighting.name)
            nobody = tags is not None and tags.uid == UID and sighting.name not in self.record.names()
            if nobody and not self.scheduler.things[sighting.id].excused:
                raise Impossible(f"{sighting.id} was made by no attempt that was ever committed")
        self.passes_time(how.taking)
        view.listing = Listing(
            objects=tuple(s for s in shown if job.concerns(s)), began=began, ended=self.now, complete=how.complete
        )
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
            view.decision = following.unreachable(view.read, merged, self.now, "no answer")
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

    def merges(self, name: str) -> Record | None:
        """What is left of a decision that was refused: its evidence, at the newest revision, without a lease."""
        view = self.view(name)
        facts = [*view.replies, *(seen(view.listing) if view.listing is not None else ())]
        merged = merge(self.record, facts)
        fresh = is_news(self.record, merged)
        self.views[name] = View()
        return self.commit(merged, self.record.revision, name) if fresh else None

    def allowed(self, name: str) -> tuple[Start | Send, ...]:
        """The calls that the committed decision allows; an Open only while nothing was committed since (X3)."""
        view = self.view(name)
        if view.decision is None or view.committed is None:
            raise Impossible(f"{name} has committed no decision: it may send nothing")
        if view.sent:
            raise Impossible(f"{name} has sent what its decision allowed")
        moved = not still_stands(view.committed, self.record)
        return tuple(c for c in view.decision.calls if not (moved and is_open(c)))

    def sends(self, name: str) -> list[Flight]:
        """Put the allowed calls on their way."""
        record, flights = self.view(name).committed, []
        allowed = self.allowed(name)
        for call in self.view(name).decision.calls:  # type: ignore[union-attr]
            if call not in allowed:
                self.view(name).replies.append(replied(call, Reply(answer=Answer.LATE, text="not sent")))
        for call in allowed:
            if isinstance(call, Start):
                title, target = f"start {call.submission}.{call.attempt}", (call.submission, call.attempt)
                flights.append(Flight(name, call, title, object_name(UID, *target)))
            elif call.call.kind is Kind.STOP_JOB:
                flights.append(Flight(name, call, "stop_job", "", record.names() if record else ()))
            else:
                object = record.object(call.call.object or "") if record else None
                title = f"{call.call.kind} {call.call.object}"
                flights.append(Flight(name, call, title, object.name if object is not None else ""))
        self.view(name).sent = True
        self.flights += flights
        return flights

    def replies(self, flight: Flight, reply: Reply) -> None:
        self.view(flight.sender).replies.append(replied(flight.call, reply))

    # --- the host

    def flight(self, name: str, sender: str | None = None) -> Flight:
        found = [f for f in self.flights if f.name == name and sender in (None, f.sender)]
        if not found:
            raise Impossible(f"{name} was never sent{f' by {sender}' if sender else ''}")
        return found[-1]

    def arrives(self, flight: Flight) -> Reply:
        """It reaches the host now, which refuses what comes after its deadline."""
        return Reply(answer=Answer.LATE) if self.now > flight.deadline else self._act(flight)

    def lands(self, flight: Flight) -> Reply:
        """It reached the host in time, and takes effect now: up to the call bound later, a Start at any time."""
        bound = flight.deadline + timedelta(seconds=self.bounds.call_seconds)
        if self.now > bound and not isinstance(flight.call, Start):
            raise Impossible(f"{flight.name} has expired: it can no longer land")
        return self._act(flight)

    def _act(self, flight: Flight) -> Reply:
        if isinstance(flight.call, Start):
            return Reply(answer=Answer.DONE, text=self.scheduler.make(flight.target).id)
        row = flight.call.call
        if row.kind is Kind.STOP_JOB:
            for thing in self.scheduler.things.values():
                if thing.name in flight.names:
                    self.scheduler.stop(thing)
            return Reply(answer=Answer.DONE)
        return self.scheduler.act(row.kind, row.object or "", flight.target, row.run)


def replied(call: Start | Send, reply: Reply) -> Evidence:
    """What a supervisor holds of a call's reply."""
    if isinstance(call, Start):
        return StartReplied(submission=call.submission, attempt=call.attempt, reply=reply)
    row = call.call
    return CallReplied(kind=row.kind, object=row.object, run=row.run, hold=row.hold, count=row.count, reply=reply)


def is_open(call: Start | Send) -> bool:
    return isinstance(call, Send) and call.call.kind is Kind.OPEN
