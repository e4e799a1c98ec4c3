"""What happens to a job from outside, at any moment: people at its record, admins at the scheduler, the scheduler's own
troubles, outages, and supervisors that are asked to leave.

One rule: when something happens is drawn, as a time or as a place among the events; whether it could happen there is
asked then, and what could not is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

from dispatch_core.client import Client
from dispatch_core.errors import DispatchError
from dispatch_core.plan import Cause, End
from dispatch_core.record import BEFORE_THE_RUN, Answer, Kind, Record, Result, State
from dispatch_core.simulator.database import Database
from dispatch_core.simulator.faults import Fault
from dispatch_core.simulator.profiles import PLAIN, Profile
from dispatch_core.simulator.scheduler import Thing
from dispatch_core.simulator.tape import Branch
from dispatch_core.simulator.trace import UNCOUNTED, Committed, Event
from dispatch_core.simulator.world import KEY, UID, Being, World

PEOPLE = (Fault.CANCEL, Fault.HOLD, Fault.RELEASE, Fault.RESOLVE, Fault.DISPOSE)
MOMENTS = (
    *PEOPLE,
    Fault.ADMIN_HOLDS,
    Fault.ADMIN_RELEASES,
    Fault.ADMIN_REQUEUES,
    Fault.ADMIN_STOPS,
    Fault.ADMIN_OPENS,
    Fault.OWN_REQUEUE,
    Fault.RESTART,
    Fault.ROLLED_BACK,
    Fault.FOREIGN,
    Fault.SILENCE,
    Fault.SLOWNESS,
    Fault.STORE_DOWN,
    Fault.FIND_EMPTY,
    Fault.FIND_HIDES,
    Fault.LEASE_TAKEN,
    Fault.LEAVES,
)
ONCE = (Fault.CANCEL, Fault.ADMIN_STOPS)
OFTEN = 0.6
"""How often what a profile says follows a turning point does."""


class Moments:
    """The moments of one history. `names`: the supervisors' own; `leave` asks one of them to leave."""

    def __init__(
        self,
        world: World,
        tape: Branch,
        lasts: float,
        names: tuple[str, ...],
        leave: Callable[[Branch], bool],
        profile: Profile = PLAIN,
    ) -> None:
        self.world = world
        self.tape = tape
        self.names = names
        self._leave = leave
        self._strays = 0
        self._askers = 0
        self._events = 0
        self._at_event: dict[int, list[Fault]] = {}
        self._at_turn: dict[str, list[Fault]] = {}
        self.profile = profile
        self._acts: dict[Fault, Callable[[], bool]] = {
            Fault.ADMIN_HOLDS: lambda: self._admin_holds(True),
            Fault.ADMIN_RELEASES: lambda: self._admin_holds(False),
            Fault.ADMIN_REQUEUES: lambda: self._reruns(None),
            Fault.ADMIN_STOPS: self._admin_stops,
            Fault.ADMIN_OPENS: self._admin_opens,
            Fault.OWN_REQUEUE: lambda: self._reruns(tape.among((Cause.PREEMPTED, Cause.NODE_FAILURE, None))),
            Fault.RESTART: self._restart,
            Fault.ROLLED_BACK: self._roll_back,
            Fault.FOREIGN: self._appear,
            Fault.SILENCE: self._be_silent,
            Fault.SLOWNESS: self._be_slow,
            Fault.STORE_DOWN: self._store_down,
            Fault.FIND_EMPTY: lambda: self._lie(None),
            Fault.FIND_HIDES: lambda: self._lie(self._some_thing()),
            Fault.LEASE_TAKEN: self._take_lease,
            Fault.LEAVES: lambda: self._leave(tape),
        }
        for fault in MOMENTS:
            if not world.faults.is_drawn(fault):
                continue
            for _ in range(tape.below(2 if fault in ONCE else 4)):
                match tape.below(4):
                    case 0:
                        world.clock.at(tape.seconds(0.0, lasts), self._happen, fault)
                    case 1:
                        self._at_event.setdefault(tape.among((5, 10, 20, 40, 80)) + tape.below(40), []).append(fault)
                    case _:
                        turn = tape.among(FITTING.get(fault, TURNS))
                        self._at_turn.setdefault(turn, []).append(fault)

    def see(self, event: Event) -> None:
        """Count the events that a moment may be at, and look for those that a moment may follow."""
        if type(event) in UNCOUNTED:
            return
        self._events += 1
        self._follow(self._at_event.pop(self._events, ()), 2.0)
        if type(event) is Committed and event.before is not None and (self._at_turn or self.profile.follows):
            for turn in turns(event.before, event.after):
                self._follow(self._at_turn.pop(turn, ()), self.tape.among((1.0, 10.0, 60.0)))
                for fault, least, most in self.profile.follows.get(turn, ()):
                    if self.tape.chance(OFTEN):
                        self._follow((fault,), most, least)

    def _follow(self, faults: Sequence[Fault], within: float, least: float = 0.0) -> None:
        for fault in faults:
            self.world.clock.at(self.world.now + self.tape.seconds(least, within), self._happen, fault)

    def _happen(self, fault: Fault) -> None:
        if self.world.faults.calm or self.world.record is None or self.world.faults.is_muted(fault):
            return
        if fault in PEOPLE:
            self._ask(fault)
        elif self._acts[fault]() and fault not in (Fault.SILENCE, Fault.SLOWNESS, Fault.STORE_DOWN, *LIES):
            self.world.count(fault)
            self.world.changed()

    # --- at the scheduler

    def _some_thing(self, *states: State) -> Thing | None:
        things = [
            t
            for t in self.world.scheduler.things.values()
            if t.name.startswith(f"dispatch-{UID}-") and (not states or t.state in states)
        ]
        return self.tape.among(things) if things else None

    def _admin_holds(self, on: bool) -> bool:
        thing = self._some_thing(State.GATED, State.HELD, State.PENDING)
        if thing is None or thing.hold is on:
            return False
        self.world.scheduler.holds(thing, on)
        return True

    def _admin_stops(self) -> bool:
        thing = self._some_thing(State.GATED, State.HELD, State.PENDING, State.RUNNING)
        if thing is not None:
            self.world.scheduler.stop(thing)
        return thing is not None

    def _admin_opens(self) -> bool:
        thing = self._some_thing(State.GATED)
        if thing is not None:
            self.world.scheduler.opens(thing)
        return thing is not None

    def _reruns(self, cause: Cause | None) -> bool:
        """The scheduler, or an admin, runs an object again: one that runs, has ended, or was cancelled."""
        thing = self._some_thing(State.RUNNING, State.ENDED, State.ENDING)
        if thing is None:
            return False
        end = End(cause=cause) if cause is not None and thing.alive else None
        wiped = thing.hold and self.world.faults.has(Fault.WIPED_HOLD)
        self.world.scheduler.reruns(thing.id, end, wiped=wiped)
        if wiped:
            self.world.count(Fault.WIPED_HOLD)
        return True

    def _restart(self) -> bool:
        """Objects are lost that were acknowledged, and somebody else's jobs get their ids."""
        scheduler = self.world.scheduler
        lost = [
            t.id
            for t in scheduler.things.values()
            if t.alive and self.tape.chance(0.7 if t.state in BEFORE_THE_RUN else 0.4)
        ]
        for id in lost:
            scheduler.purges(id, lost=True)
            scheduler.reuses(id)
        return bool(lost)

    def _roll_back(self) -> bool:
        """A controller takes what runs for pending, or for ended with its node, or what has ended for running; or it
        runs that again."""
        thing = self._some_thing(State.ENDED, State.RUNNING)
        if thing is None or not thing.open or thing.slipped is not None:
            return False
        runs = thing.phase is State.RUNNING
        if not runs and self.tape.chance(0.6):
            self.world.scheduler.relapses(thing.id)
            return True
        taken_for = self.tape.among((State.PENDING, State.ENDED)) if runs else State.RUNNING
        self.world.scheduler.rolls_back(thing.id, taken_for)
        self.world.clock.at(self.world.now + self.tape.seconds(5.0, 100.0), self._find_out, thing, thing.run)
        return True

    def _find_out(self, thing: Thing, run: int) -> None:
        """The controller learns from its nodes how it really is."""
        if self.world.scheduler.things.get(thing.id) is thing and thing.run == run:
            self.world.scheduler.settles(thing)
            self.world.last_landing = self.world.now
            self.world.changed()

    def _appear(self) -> bool:
        self._strays += 1
        name = self.tape.among(("by-hand", f"dispatch-{UID}-9-1", "dispatch-99999999-1-1"))
        state = self.tape.among((State.RUNNING, State.PENDING, State.ENDED))
        stray = self.world.scheduler.stray(f"f{self._strays}", name, state)
        if state is not State.RUNNING:
            return True
        self.world.clock.at(self.world.now + self.tape.seconds(30.0, 300.0), self._end_stray, stray)
        return True

    def _end_stray(self, thing: Thing) -> None:
        if self.world.scheduler.things.get(thing.id) is thing and thing.phase is State.RUNNING:
            self.world.scheduler.ends(thing.id, End(cause=Cause.EXIT, exit_code=1))

    # --- outages and lies

    def _be_silent(self) -> bool:
        minutes = self.tape.among((60.0, 20.0, 120.0, 300.0))
        self.world.silent_until = self.world.now + (3600.0 if self.tape.chance(0.03) else minutes)
        return True

    def _be_slow(self) -> bool:
        self.world.slow_until = self.world.now + self.tape.among((120.0, 60.0, 300.0))
        return True

    def _store_down(self) -> bool:
        self.world.down_until = self.world.now + self.tape.among((20.0, 5.0, 90.0))
        return True

    def _lie(self, about: Thing | None) -> bool:
        """A stretch shorter than the absence rule's span: what lies longer, or again before anybody has found the last
        lie out, deceives every rule."""
        record, lie = self.world.record, self.world.lie
        counted = record is not None and (
            record.clear is not None
            or any(object.missing is not None for object in record.objects)
            or any(attempt.missing is not None for s in record.submissions for attempt in s.attempts)
        )
        if lie is None or (self.world.now > lie[1] and not counted):
            most = self.world.bounds.absence_seconds * self.tape.among((0.9, 0.6, 0.3))
            self.world.lie = (self.world.now, self.world.now + most, about.id if about is not None else None)
        return True

    # --- supervisors

    def _take_lease(self) -> bool:
        row = self.world.store.rows[UID]
        if row.owner is None or row.until is None:
            return False
        others = [name for name in self.names if name != row.owner]
        if not others:
            return False
        row.owner, row.epoch = self.tape.among(others), row.epoch + 1
        return True

    # --- at the record

    def _ask(self, fault: Fault) -> None:
        self._askers += 1
        being = self.world.being(f"person{self._askers}")
        self.world.begin(being, lambda: self._person(being, fault), lambda why: None)

    async def _person(self, being: Being, fault: Fault) -> None:
        """Somebody looks, thinks, and asks for something, about what they were shown."""
        if being.tape.chance(0.2):
            being.clock_off = being.tape.seconds(-600.0, 600.0)
        store = Database(self.world, being)
        client = Client(store, "ann", now=lambda: self.world.own_now(being), fresh_id=self.world.fresh_id)
        try:
            shown = await store.read(KEY, UID)
            asked = await asked_for(client, shown, fault, being.tape)
        except DispatchError:
            return
        if asked:
            self.world.count(fault)
            if fault is Fault.HOLD and (being.tape.chance(0.7) or self.profile.thinks_longer):
                await self._waver(being, client)

    async def _waver(self, being: Being, client: Client) -> None:
        """Somebody who held a job lets it go, and holds it again."""
        try:
            thinks = (10.0, 15.0) if self.profile.thinks_longer else (3.0, 1.0, 15.0)
            await self.world.sleep(being, being.tape.among(thinks) * being.tape.seconds(0.5, 1.5))
            await client.release(KEY)
            self.world.count(Fault.RELEASE)
            await self.world.sleep(being, being.tape.seconds(0.3, 6.0))
            await client.hold(KEY, reason="wait after all")
            self.world.count(Fault.HOLD)
        except DispatchError:
            return


LIES = (Fault.FIND_EMPTY, Fault.FIND_HIDES)

TURNS = ("outcome", "intent", "submission", "attempt 2", "attempt 3", "call", "hold", "requeue", "object")
"""Turning points of a job, that a moment may follow."""

FITTING = {
    Fault.CANCEL: ("intent", "submission", "attempt 2", "attempt 3", "requeue", "call"),
    Fault.HOLD: ("submission", "requeue", "attempt 2", "intent"),
    Fault.RELEASE: ("hold",),
    Fault.FIND_EMPTY: ("outcome", "attempt 3"),
    Fault.FIND_HIDES: ("outcome", "object", "requeue", "submission"),
    Fault.OWN_REQUEUE: ("outcome", "intent", "requeue", "submission"),
    Fault.ADMIN_REQUEUES: ("outcome", "intent", "submission"),
    Fault.ROLLED_BACK: ("outcome", "submission"),
    Fault.RESTART: ("object", "requeue", "submission", "outcome", "intent"),
}
"""The turning points at which a moment does the most harm."""


def turns(before: Record, after: Record) -> Iterator[str]:
    """The turning points in one commit."""
    if after.outcome is not None and before.outcome is None:
        yield "outcome"
    if len(after.intents) > len(before.intents):
        yield "intent"
    if len(after.submissions) > max(len(before.submissions), 1):
        yield "submission"
    if after.submissions and len(after.submissions) == len(before.submissions):
        attempts = len(after.submissions[-1].attempts)
        if attempts > max(len(before.submissions[-1].attempts), 1):
            yield f"attempt {min(attempts, 3)}"
    if len(after.objects) > len(before.objects):
        yield "object"
    if len(after.calls) > len(before.calls):
        yield "call"
        kind = after.calls[-1].kind
        if kind in (Kind.HOLD, Kind.RELEASE, Kind.REQUEUE):
            yield "requeue" if kind is Kind.REQUEUE else "hold"
        if kind is Kind.SHUT:
            yield "shut"


async def asked_for(client: Client, shown: Record, fault: Fault, tape: Branch) -> bool:
    """What a person asks for who was shown this record; False where there is nothing of the kind to ask for."""
    revision = shown.revision
    request: Coroutine[Any, Any, Any]
    if fault is Fault.CANCEL:
        request = client.cancel(KEY, reason="enough")
    elif fault is Fault.HOLD:
        request = client.hold(KEY, reason="wait")
    elif fault is Fault.RELEASE:
        request = client.release(KEY, revision=revision)
    elif fault is Fault.RESOLVE:
        request = client.resolve(KEY, tape.among((Result.SUCCEEDED, Result.FAILED)), revision=revision)
    else:
        foreign = [o.id for o in shown.objects if o.foreign and not o.disposed]
        attempts = [f"{s.number}.{a.number}" for s in shown.submissions for a in s.attempts if not a.disposed]
        if not foreign and (not attempts or shown.plan.unmatched != "manual"):
            return False
        request = client.dispose(KEY, tape.among(foreign or attempts), revision=revision)
    await request
    return True


async def disposes_as_asked(client: Client, shown: Record) -> None:
    """What somebody does who reads what they were shown: dispose of the first thing that is still open."""
    open_points = [o.id for o in shown.objects if o.foreign and not o.disposed]
    made = {(o.submission, o.attempt) for o in shown.objects if not o.foreign}
    for submission in shown.submissions:
        for attempt in submission.attempts:
            told = attempt.reply is not None and attempt.reply.answer in (Answer.REFUSED, Answer.LATE)
            if not told and not attempt.disposed and (submission.number, attempt.number) not in made:
                open_points.append(f"{submission.number}.{attempt.number}")
    if open_points:
        await client.dispose(KEY, open_points[0], revision=shown.revision)
