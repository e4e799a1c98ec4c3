"""What happens to a job from outside, at any moment: people at its record, admins at the scheduler, the scheduler's own
troubles, outages, and supervisors that are asked to leave.

One rule: when something happens is drawn, as a time or as a place among the events; whether it could happen there is
asked then, and what could not is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from dispatch_core.client import Client
from dispatch_core.errors import BadInput, Conflict, DispatchError
from dispatch_core.plan import Cause, End
from dispatch_core.record import Record, Result, State
from dispatch_core.simulator.database import Database
from dispatch_core.simulator.faults import Fault
from dispatch_core.simulator.scheduler import Thing
from dispatch_core.simulator.tape import Branch
from dispatch_core.simulator.trace import UNCOUNTED, Event
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
ONCE = (Fault.CANCEL, Fault.RESTART, Fault.ROLLED_BACK, Fault.ADMIN_STOPS)


class Moments:
    """The moments of one history. `supervisors` are asked to leave; `people` act on the record."""

    def __init__(self, world: World, tape: Branch, lasts: float, leave: Callable[[Branch], bool]) -> None:
        self.world = world
        self.tape = tape
        self._leave = leave
        self._strays = 0
        self._askers = 0
        self._events = 0
        self._at_event: dict[int, list[Fault]] = {}
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
            if not world.faults.has(fault):
                continue
            for _ in range(tape.below(2 if fault in ONCE else 4)):
                if tape.chance(0.6):
                    self._at_event.setdefault(tape.among((5, 10, 20, 40, 80)) + tape.below(40), []).append(fault)
                else:
                    world.clock.at(tape.seconds(0.0, lasts), self._happen, fault)

    def see(self, event: Event) -> None:
        """Count the events that a moment may be at."""
        if type(event) in UNCOUNTED:
            return
        self._events += 1
        for fault in self._at_event.pop(self._events, ()):
            self.world.clock.at(self.world.now + self.tape.seconds(0.0, 2.0), self._happen, fault)

    def _happen(self, fault: Fault) -> None:
        if self.world.faults.calm or self.world.record is None:
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
            if t.state in (State.GATED, State.HELD, State.PENDING) and self.tape.chance(0.7)
        ]
        for id in lost:
            scheduler.purges(id, lost=True)
            scheduler.reuses(id)
        return bool(lost)

    def _roll_back(self) -> bool:
        thing = self._some_thing(State.ENDED, State.RUNNING)
        if thing is None or not thing.open:
            return False
        self.world.scheduler.rolls_back(thing.id, State.RUNNING if thing.phase is State.ENDED else State.PENDING)
        self.world.clock.at(self.world.now + self.tape.seconds(5.0, 100.0), self._find_out, thing, thing.run)
        return True

    def _find_out(self, thing: Thing, run: int) -> None:
        """The controller learns from its nodes how it really is."""
        if self.world.scheduler.things.get(thing.id) is thing and thing.run == run and thing.alive:
            self.world.scheduler.settles(thing)
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
        self.world.silent_until = self.world.now + self.tape.among(
            (60.0, 20.0, 120.0, 300.0, 20.0, 60.0, 120.0, 3600.0)
        )
        return True

    def _be_slow(self) -> bool:
        self.world.slow_until = self.world.now + self.tape.among((120.0, 60.0, 300.0))
        return True

    def _store_down(self) -> bool:
        self.world.down_until = self.world.now + self.tape.among((20.0, 5.0, 90.0))
        return True

    def _lie(self, about: Thing | None) -> bool:
        """One stretch a history, shorter than the absence rule's span: what lies longer deceives every rule."""
        if self.world.lie is None:
            most = self.world.bounds.absence_seconds * self.tape.seconds(0.2, 0.9)
            self.world.lie = (self.world.now, self.world.now + most, about.id if about is not None else None)
        return True

    # --- supervisors

    def _take_lease(self) -> bool:
        row = self.world.store.rows[UID]
        if row.owner is None or row.until is None:
            return False
        row.until = self.world.store_now()
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
        except (BadInput, Conflict, DispatchError):
            return
        if asked:
            self.world.count(fault)


LIES = (Fault.FIND_EMPTY, Fault.FIND_HIDES)


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
