"""A scheduler that keeps its own history: objects, runs, gates, hold bits, and a host that checks before it acts.

One rule: it knows nothing of records or of what anybody means. It does what schedulers do, at once when told, and
writes down what happened; when things happen, and what goes wrong on the way, is the world's business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from dispatch_core.evidence import Sighting
from dispatch_core.guards import guard
from dispatch_core.plan import Cause, End
from dispatch_core.record import Answer, Kind, Reply, State
from dispatch_core.simulator.trace import (
    LOST_NODE,
    Ending,
    Event,
    Finished,
    HoldBit,
    Made,
    Noted,
    Opened,
    Reran,
    Sent,
    Slipped,
    Started,
    Vanished,
)


class Impossible(Exception):
    """What no scheduler could have done."""


@dataclass
class Thing:
    """An object as the scheduler has it, whatever anybody knows of it."""

    id: str
    name: str
    key: str
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
    left_out: int = 0
    """The newest run in which a listing did not tell them."""
    progress: datetime | None = None
    excused: str = ""
    """Who acted outside the record, so that the laws do not bind it."""
    slipped: tuple[State, State] | None = None
    """What it really is, and what a controller that was rolled back takes it for."""

    @property
    def state(self) -> State:
        if self.phase is not State.PENDING:
            return self.phase
        if not self.open:
            return State.GATED
        return State.HELD if self.hold else State.PENDING

    @property
    def alive(self) -> bool:
        return self.phase is not State.ENDED

    def sighting(self) -> Sighting:
        told = self.accounted and self.run > 1
        return Sighting(
            id=self.id,
            name=self.name,
            key=self.key,
            state=self.state,
            run=self.run,
            hold=self.hold,
            nodes=self.nodes,
            end=self.ends.get(self.run),
            earlier_ends=tuple((run, end) for run, end in sorted(self.ends.items()) if run < self.run) if told else (),
            progress=self.progress,
        )


@guard("identity_checked_on_host", promise="T27 L1", without=True)
def _is_same_object(thing_name: str, meant: str) -> bool:
    """The host compares the whole identity in the command that acts: an id alone may be somebody else's by now."""
    return thing_name == meant


@guard("run_checked_on_host", promise="L1", without=True)
def _is_same_run(thing_run: int, meant: int) -> bool:
    """The host compares the run in the command that acts: a late call must not meet the next one."""
    return thing_run == meant


class Scheduler:
    """Objects, and a host that compares identity and run before it acts. `now` is the host's clock."""

    def __init__(
        self,
        *,
        key: str,
        now: Callable[[], datetime],
        time: Callable[[], float],
        tell: Callable[[Event], None],
        requeues: bool,
        starts_once: bool,
    ) -> None:
        self.key = key
        self.now = now
        self.time = time
        self.tell = tell
        self.requeues = requeues
        """A requeued object comes back gated."""
        self.starts_once = starts_once
        """A name is claimed before its object is made; the next Start of that name finds the claim."""
        self.begun: set[str] = set()
        """The names that are claimed."""
        self.wipes_holds = False
        """A requeue takes the hold bit off."""
        self.things: dict[str, Thing] = {}
        self.made = 0
        self.reused: dict[str, str] = {}
        """Ids that were lost and belong to somebody else's job now, with its name."""

    def thing(self, id: str) -> Thing:
        if id not in self.things:
            raise Impossible(f"there is no {id}")
        return self.things[id]

    # --- what happens by itself

    def make(self, name: str, by: Sent | None = None, *, beyond: bool = False) -> Thing:
        self.made += 1
        thing = Thing(id=f"o{self.made}", name=name, key=self.key)
        self.things[thing.id] = thing
        self.tell(Made(self.time(), thing.id, name, by, beyond, thing.phase))
        return thing

    def stray(self, id: str, name: str, phase: State, *, open: bool = True) -> Thing:
        """An object that nobody of ours made."""
        thing = Thing(id=id, name=name, key=self.key, open=open, excused="nobody of ours made it")
        thing.phase = phase
        self.things[id] = thing
        self.tell(Made(self.time(), id, name, None, False, phase))
        if phase is State.ENDED:
            self._finish(thing, End(cause=Cause.UNRECOGNIZED), told=False, by="stray")
        return thing

    def runs(self, id: str, nodes: tuple[str, ...] = ()) -> None:
        thing = self.thing(id)
        if thing.state is not State.PENDING:
            raise Impossible(f"{id} is {thing.state}: it cannot run")
        thing.phase, thing.nodes = State.RUNNING, nodes or thing.nodes
        self.tell(Started(self.time(), id, thing.run, thing.nodes))

    def ends(self, id: str, end: End) -> None:
        thing = self.thing(id)
        if thing.phase is State.ENDED or thing.state in (State.GATED, State.HELD):
            raise Impossible(f"{id} is {thing.state}: it cannot end by itself")
        self._finish(thing, end)

    def ending(self, id: str, end: End | None) -> None:
        thing = self.thing(id)
        if thing.phase not in (State.RUNNING, State.UNRECOGNIZED):
            raise Impossible(f"{id} is {thing.state}: it cannot be ending")
        thing.phase = State.ENDING
        if end is not None:
            thing.ends[thing.run] = end
        self.tell(Ending(self.time(), id, thing.run, end, ""))

    def ended(self, id: str) -> None:
        """The last of a run that was ending is over."""
        thing = self.thing(id)
        if thing.phase is not State.ENDING:
            raise Impossible(f"{id} is {thing.state}: say how it ends")
        self._finish(thing, thing.ends.get(thing.run, End(cause=Cause.UNRECOGNIZED)), told=thing.run in thing.ends)

    def _finish(self, thing: Thing, end: End, *, told: bool = True, by: str = "") -> None:
        thing.phase = State.ENDED
        end = thing.ends.setdefault(thing.run, end) if told else thing.ends.get(thing.run, end)
        self.tell(Finished(self.time(), thing.id, thing.run, end, told, by))

    def purges(self, id: str, *, lost: bool = False) -> None:
        if not lost and self.thing(id).phase is not State.ENDED:
            raise Impossible(f"{id} is {self.thing(id).state}: only what has ended is purged")
        del self.things[id]
        self.tell(Vanished(self.time(), id, lost))

    def reruns(self, id: str, end: End | None = None, *, wiped: bool = False) -> None:
        """Start the next run of an object, asked by nobody of ours."""
        thing = self.thing(id)
        if thing.phase is State.PENDING:
            raise Impossible(f"{id} is {thing.state}: it has no run to repeat")
        if thing.alive:
            self._finish(thing, end or End(cause=Cause.RERUN), told=end is not None, by="rerun")
        elif end is not None:
            thing.ends.setdefault(thing.run, end)
        self._next_run(thing, open=not thing.shut_behind, wiped=wiped, by=None)

    def _next_run(self, thing: Thing, *, open: bool, wiped: bool, by: Sent | None) -> None:
        thing.run, thing.phase, thing.open, thing.shut_behind = thing.run + 1, State.PENDING, open, False
        thing.progress = thing.slipped = None
        self.tell(Reran(self.time(), thing.id, thing.run, open, by))
        if wiped and thing.hold:
            thing.hold = False
            self.tell(HoldBit(self.time(), thing.id, False, None))
        if open:
            self.tell(Opened(self.time(), thing.id, thing.run, None))

    def rolls_back(self, id: str, phase: State, run: int | None = None) -> None:
        """A controller that restarts from an older copy of what it knew."""
        thing = self.thing(id)
        thing.slipped, thing.phase, thing.excused = (thing.phase, phase), phase, "the scheduler rolled it back"
        thing.run = run or thing.run
        if phase is State.ENDED:
            thing.ends.setdefault(thing.run, LOST_NODE)
        self.tell(Slipped(self.time(), id, False, phase))

    def relapses(self, id: str) -> None:
        """A controller that restarts from an older copy runs again what had ended, as the same run."""
        thing = self.thing(id)
        thing.phase, thing.excused = State.RUNNING, "the scheduler ran it again"
        thing.ends.pop(thing.run, None)
        self.tell(Slipped(self.time(), id, True, State.RUNNING, relapse=True))

    def settles(self, thing: Thing) -> None:
        """The controller that was rolled back learns how it really is; unless it was stopped or run again since."""
        slipped, thing.slipped = thing.slipped, None
        if slipped is not None and thing.phase is slipped[1]:
            thing.phase = slipped[0]
            if slipped[1] is State.ENDED:
                thing.ends.pop(thing.run, None)
            self.tell(Slipped(self.time(), thing.id, True, thing.phase))

    def progresses(self, thing: Thing) -> None:
        thing.progress = self.now()
        self.tell(Noted(self.time(), thing.id, "progresses"))

    def speaks_unknown(self, thing: Thing) -> None:
        """It is in a state that this version does not know."""
        if thing.state not in (State.PENDING, State.RUNNING, State.ENDING):
            raise Impossible(f"{thing.id} is {thing.state}: no other word would do")
        thing.phase = State.UNRECOGNIZED
        self.tell(Noted(self.time(), thing.id, "is unrecognized"))

    def accounts_for_nothing(self, thing: Thing) -> None:
        """From now on the ends of its earlier runs are not told."""
        thing.accounted = False
        self.tell(Noted(self.time(), thing.id, "accounts for nothing"))

    def reuses(self, id: str) -> None:
        """Somebody else's job is given the id of an object that was lost."""
        if id in self.things:
            raise Impossible(f"{id} is not lost")
        self.reused[id] = f"somebody-elses-{id}"

    # --- what it is asked for

    def opens(self, thing: Thing, by: Sent | None = None) -> None:
        thing.open = True
        self.tell(Opened(self.time(), thing.id, thing.run, by))

    def holds(self, thing: Thing, on: bool, by: Sent | None = None) -> None:
        thing.hold = on
        self.tell(HoldBit(self.time(), thing.id, on, by))

    def stop(self, thing: Thing, by: str = "admin") -> None:
        if thing.phase is State.ENDED or thing.stubborn:
            return
        if thing.slow and thing.phase is State.RUNNING:
            thing.phase = State.ENDING
            self.tell(Ending(self.time(), thing.id, thing.run, None, by))
        elif not (thing.slow and thing.phase is State.ENDING):
            self._finish(thing, End(cause=Cause.STOPPED_OUTSIDE), by=by)

    def stop_named(self, names: tuple[str, ...]) -> Reply:
        for thing in list(self.things.values()):
            if thing.name in names:
                self.stop(thing, "call")
        return Reply(answer=Answer.DONE)

    def starts(self, name: str, by: Sent | None = None, *, beyond: bool = False) -> Reply:
        """A Start takes effect: what it made, or that another copy of it was there before."""
        if self.starts_once and name in self.begun:
            return Reply(answer=Answer.UNKNOWN, text="this launch was begun before")
        self.begun.add(name)
        return Reply(answer=Answer.DONE, text=self.make(name, by, beyond=beyond).id)

    def act(self, kind: Kind, id: str, name: str, run: int, by: Sent | None = None) -> Reply:
        """One call on one object; the host compares identity and run in the command that acts."""
        thing = self.things.get(id)
        if id in self.reused:
            if _is_same_object(self.reused[id], name):
                return Reply(answer=Answer.DONE, text="it was somebody else's")
            return Reply(answer=Answer.REFUSED, text=f"{id} has another name")
        if thing is None or not _is_same_object(thing.name, name):
            return Reply(answer=Answer.REFUSED, text=f"there is no {id}")
        if not _is_same_run(thing.run, run):
            return Reply(answer=Answer.REFUSED, text=f"{id} is in run {thing.run}, not {run}")
        if kind is Kind.REQUEUE:
            return self._requeue(thing, by)
        if kind is Kind.STOP:
            self.stop(thing, "call")
        elif thing.phase is State.ENDED:
            return Reply(answer=Answer.REFUSED, text=f"{id} has ended")
        elif kind is Kind.OPEN:
            self.opens(thing, by)
        elif kind is Kind.SHUT:
            thing.shut_behind = True
        else:
            self.holds(thing, kind is Kind.HOLD, by)
        return Reply(answer=Answer.DONE)

    def _requeue(self, thing: Thing, by: Sent | None) -> Reply:
        if thing.phase is not State.ENDED:
            return Reply(answer=Answer.REFUSED, text=f"{thing.id} has not ended")
        self._next_run(thing, open=not self.requeues, wiped=self.wipes_holds, by=by)
        return Reply(answer=Answer.DONE)
