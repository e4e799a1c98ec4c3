"""What the objects of a simulated world do by themselves: wait in the queue, run, make progress, end, be purged.

One rule: it follows the scheduler's own state and nothing else; what is gated or held never starts here. When and how a
run ends is drawn; some time after faults have stopped every run completes.
"""

from __future__ import annotations

from dispatch_core.plan import Cause, End
from dispatch_core.record import State
from dispatch_core.simulator.faults import Fault, Meets
from dispatch_core.simulator.plans import COMPLETED, ENDS, NODES
from dispatch_core.simulator.profiles import PLAIN, Profile
from dispatch_core.simulator.scheduler import Thing
from dispatch_core.simulator.tape import Branch
from dispatch_core.simulator.trace import Ending, Event, Finished, HoldBit, Made, Opened, Reran, Slipped
from dispatch_core.simulator.world import World

RUNS_WHEN_CALM = 8
"""Once faults have stopped, so many runs may still end otherwise than completed."""

_STOPPED = End(cause=Cause.STOPPED_OUTSIDE)


class Payload(Meets):
    """The lives of all objects in one world."""

    def __init__(self, world: World, tape: Branch, profile: Profile = PLAIN) -> None:
        super().__init__(world.faults, tape)
        self.world = world
        self.profile = profile
        self.tape = tape
        self._completes = tape.among((0.1, 0.03, 0.3))
        """How often a run completes."""
        self._runs = 0
        """Runs that began since faults have stopped."""
        self._coming: dict[str, End | None] = {}
        """How runs that are ending will have ended; None: the scheduler does not say."""

    def see(self, event: Event) -> None:
        """What follows from one event."""
        kind = type(event)
        if kind is Opened or kind is Reran or kind is HoldBit:
            self._may_start(event.id, event.at)  # type: ignore[union-attr]
        elif kind is Made:
            self._be_made(event)  # type: ignore[arg-type]
        elif kind is Ending:
            self._linger(self.world.scheduler.things[event.id])  # type: ignore[union-attr]
        elif kind is Finished:
            self._may_be_purged(event.id)  # type: ignore[union-attr]
        elif kind is Slipped:
            self._may_go_on(event)  # type: ignore[arg-type]

    def _be_made(self, event: Made) -> None:
        thing = self.world.scheduler.things[event.id]
        thing.slow = self.tape.chance(0.3)
        if self._struck(Fault.UNACCOUNTED):
            self.world.scheduler.accounts_for_nothing(thing)
        if thing.phase is State.RUNNING:
            self._will_end(thing)

    def _may_start(self, id: str, now: float) -> None:
        thing = self.world.scheduler.things.get(id)
        if thing is None or thing.state is not State.PENDING:
            return
        waits = self.tape.among((0.5, 3.0, 15.0, 50.0)) * self.tape.seconds(0.5, 1.5)
        self.world.clock.at(now + (min(waits, 5.0) if self.world.faults.calm else waits), self._start, thing, thing.run)

    def _start(self, thing: Thing, run: int) -> None:
        if not self._is_there(thing, run) or thing.state is not State.PENDING:
            return
        self.world.scheduler.runs(thing.id, (self.tape.among(NODES),))
        self.world.scheduler.progresses(thing)
        self.world.changed()
        self._will_end(thing)
        if self._struck(Fault.UNKNOWN_WORD):
            self.world.clock.at(self.world.now + self.tape.seconds(0.1, 5.0), self._speak_unknown, thing, run)

    def _speak_unknown(self, thing: Thing, run: int) -> None:
        if self._is_there(thing, run) and thing.phase is State.RUNNING:
            self.world.count(Fault.UNKNOWN_WORD)
            self.world.scheduler.speaks_unknown(thing)
            self.world.changed()

    def _will_end(self, thing: Thing) -> None:
        lasts = self.tape.among((8.0, 1.0, 30.0, 60.0)) * self.tape.seconds(0.3, 1.5)
        if self.world.faults.calm:
            lasts = min(lasts, 20.0)
        for share in (0.3, 0.6):
            self.world.clock.at(self.world.now + lasts * share, self._progress, thing, thing.run)
        self.world.clock.at(self.world.now + lasts, self._begin_to_end, thing, thing.run, self._drawn_end())

    def _progress(self, thing: Thing, run: int) -> None:
        if self._is_there(thing, run) and thing.phase is State.RUNNING:
            self.world.scheduler.progresses(thing)

    def _drawn_end(self) -> End:
        self._runs += self.world.faults.calm
        if self._runs > RUNS_WHEN_CALM or self.tape.chance(self._completes):
            return COMPLETED
        return self.tape.among(ENDS)

    def _begin_to_end(self, thing: Thing, run: int, end: End) -> None:
        if not self._is_there(thing, run) or thing.phase not in (State.RUNNING, State.UNRECOGNIZED):
            return
        untold = self._struck(Fault.UNTOLD_END)
        if untold:
            self.world.count(Fault.UNTOLD_END)
        slowly = self._ends_slowly()
        if untold or self.tape.chance(1.0 if slowly else 0.4):
            known = not untold and (slowly or self.tape.chance(0.5))
            self._coming[thing.id] = None if untold else end
            self.world.scheduler.ending(thing.id, end if known else None)
        else:
            self.world.scheduler.ends(thing.id, end)
        self.world.changed()

    def _ends_slowly(self) -> bool:
        return self.profile.ends_slowly and not self.world.faults.calm

    def _may_go_on(self, event: Slipped) -> None:
        if event.back and event.phase is State.RUNNING:
            self._will_end(self.world.scheduler.things[event.id])

    def _linger(self, thing: Thing) -> None:
        """What is ending has ended after a while; what was stopped, as stopped."""
        end = self._coming.pop(thing.id, _STOPPED)
        lasts = (30.0, 60.0) if self._ends_slowly() else (2.0, 10.0, 40.0)
        lingers = self.tape.among(lasts) * self.tape.seconds(0.5, 1.5)
        self.world.clock.at(self.world.now + lingers, self._finish, thing, thing.run, end)

    def _finish(self, thing: Thing, run: int, end: End | None) -> None:
        if self._is_there(thing, run) and thing.phase is State.ENDING:
            if end is None:
                self.world.scheduler.ended(thing.id)
            else:
                self.world.scheduler.ends(thing.id, end)
            self.world.changed()

    def _may_be_purged(self, id: str) -> None:
        thing = self.world.scheduler.things[id]
        if self._struck(Fault.PURGE):
            after = self.tape.among((0.2, 10.0, 60.0)) * self.tape.seconds(0.5, 1.5)
            if self.profile.forgets:
                after = 0.01
            self.world.clock.at(self.world.now + after, self._purge, thing, thing.run)

    def _purge(self, thing: Thing, run: int) -> None:
        if self._is_there(thing, run) and thing.phase is State.ENDED:
            self.world.scheduler.purges(thing.id)
            self.world.count(Fault.PURGE)
            self.world.changed()

    def _is_there(self, thing: Thing, run: int) -> bool:
        return self.world.scheduler.things.get(thing.id) is thing and thing.run == run
