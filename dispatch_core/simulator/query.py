"""One listing on its way: when it begins, the moment that it shows, what it leaves out, and when it ends.

One rule: it shows one moment between its beginning and its end. What it says of its own completeness may be a lie, in
the one stretch of time in which listings lie, which is shorter than the absence rule's span.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from dispatch_core.adapters.contract import Job
from dispatch_core.errors import SchedulerUnavailable
from dispatch_core.evidence import Listing, Sighting
from dispatch_core.simulator.faults import Fault, Meets
from dispatch_core.simulator.world import Being, World

Back = Callable[..., None]
"""The way back to the asker: the end of a Looked from its listing on, or an error, and after how many seconds."""
Shown = tuple[tuple[Sighting, ...], bool, tuple[str, ...]]
"""What a listing shows, whether it says that it is complete, and what it leaves out."""


class Query(Meets):
    """One listing, of one job or, without one, of the whole cluster."""

    def __init__(self, world: World, being: Being, job: Job | None) -> None:
        super().__init__(world.faults, being.tape)
        self.world = world
        self.being = being
        self.job = job
        tape = being.tape
        self.there = tape.seconds(0.05, 0.4)
        """Seconds until it reaches the host."""
        self._taking = tape.seconds(0.05, 0.5)
        self._slowed: list[Fault] = []
        if self._struck(Fault.FIND_SLOW):
            self._taking = tape.among((12.0, 25.0, 40.0))
            self._slowed.append(Fault.FIND_SLOW)
        if world.now < world.slow_until:
            self._taking += 20.0
            self._slowed.append(Fault.SLOWNESS)
        self._fails = self._struck(Fault.FIND_FAILS)

    def begin(self, back: Back) -> None:
        """It reaches the host, and begins, or fails."""
        world, now = self.world, self.world.now
        if now < world.silent_until:
            world.count(Fault.SILENCE)
            back(SchedulerUnavailable("the scheduler is silent"), 1.0)
        elif self._fails:
            world.count(Fault.FIND_FAILS)
            back(SchedulerUnavailable("the controller cannot be reached"), self._taking)
        else:
            moment = self.being.tape.seconds(0.0, self._taking)
            began = now, world.host_now(), len(world.trace)
            world.clock.at(now + moment, self._take, back, began)

    def _take(self, back: Back, began: tuple[float, datetime, int]) -> None:
        """The moment that it shows."""
        world = self.world
        taken = world.now, len(world.trace)
        world.clock.at(began[0] + self._taking, self._end, back, began, taken, self._shown())

    def _end(self, back: Back, began: tuple[float, datetime, int], taken: tuple[float, int], shown: Shown) -> None:
        world = self.world
        for fault in self._slowed:
            world.count(fault)
        objects, complete, lies = shown
        listing = Listing(objects=objects, began=began[1], ended=world.host_now(), complete=complete)
        back((listing, began[0], taken[0], lies, (began[2], taken[1], len(world.trace))), 0.02)

    def _shown(self) -> Shown:
        """What it shows now."""
        world, job = self.world, self.job
        shown = [thing.sighting() for thing in world.scheduler.things.values() if not thing.hidden]
        shown = [sighting for sighting in shown if job is None or job.concerns(sighting)]
        self._count_unaccounted(shown)
        if (shown or world.blank) and self._struck(Fault.FIND_INCOMPLETE):
            world.count(Fault.FIND_INCOMPLETE)
            kept = [sighting for sighting in shown if not self.being.tape.chance(0.5)]
            return tuple(kept), False, tuple(sighting.id for sighting in shown if sighting not in kept)
        if world.lie is not None and world.lie[0] <= world.now < world.lie[1]:
            about = world.lie[2]
            kept = [sighting for sighting in shown if about is not None and sighting.id != about]
            if len(kept) < len(shown):
                world.count(Fault.FIND_EMPTY if about is None else Fault.FIND_HIDES)
                return tuple(kept), True, tuple(sighting.id for sighting in shown if sighting not in kept)
        return tuple(shown), True, ()

    def _count_unaccounted(self, shown: list[Sighting]) -> None:
        """Once for each run that follows ends which are not told."""
        for sighting in shown:
            thing = self.world.scheduler.things[sighting.id]
            if not thing.accounted and thing.left_out < thing.run and min(thing.ends, default=thing.run) < thing.run:
                thing.left_out = thing.run
                self.world.count(Fault.UNACCOUNTED)
