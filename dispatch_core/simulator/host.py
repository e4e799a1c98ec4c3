"""An actor's connection to the simulated scheduler: the adapter contract, with everything that can go wrong on the way.

One rule: a call that its host let through takes effect within the declared bound of that moment, a Start excepted; what
its sender learns of it is another matter. Nothing is repeated here and nothing is decided.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from typing import Any

from dispatch_core.adapters.contract import Job, Launch, Target
from dispatch_core.errors import SchedulerUnavailable
from dispatch_core.evidence import Listing
from dispatch_core.guards import guard
from dispatch_core.plan import Spec
from dispatch_core.record import Answer, Kind, Reply, State
from dispatch_core.simulator.faults import Fault
from dispatch_core.simulator.trace import Arrived, Looked, Sent
from dispatch_core.simulator.world import Being, Ended, World


@guard("host_refuses_after_deadline", promise="L1", without=True, line=2)
def _is_in_time(now: datetime, deadline: datetime) -> bool:
    """The host refuses a call that starts after its deadline, by its own clock."""
    return now <= deadline


class Connection:
    """The adapter of one actor."""

    def __init__(self, world: World, being: Being) -> None:
        self.world = world
        self.being = being
        self.bounds = world.bounds
        self.capabilities = world.capabilities

    def problems(self, spec: Spec) -> list[tuple[tuple[str | int, ...], str]]:
        if spec.queue == "nowhere":
            return [(("spec", "queue"), "there is no queue 'nowhere' on this cluster")]
        return []

    async def close(self) -> None:
        """Nothing to end."""

    async def logs(self, target: Target) -> AsyncIterator[bytes]:
        yield b""

    # --- listings

    async def find(self, job: Job) -> Listing:
        return await self._look(job)

    async def everything(self) -> Listing:
        return await self._look(None)

    async def _look(self, job: Job | None) -> Listing:
        world, tape = self.world, self.being.tape
        there, taking = tape.seconds(0.05, 0.4), tape.seconds(0.05, 0.5)
        if self._struck(Fault.FIND_SLOW):
            taking = tape.among((12.0, 25.0, 40.0))
            world.count(Fault.FIND_SLOW)
        if world.now < world.slow_until:
            taking += 20.0
            world.count(Fault.SLOWNESS)
        fails = self._struck(Fault.FIND_FAILS)

        def begin(back: Callable[..., None]) -> None:
            if world.now < world.silent_until:
                world.count(Fault.SILENCE)
                back(SchedulerUnavailable("the scheduler is silent"), 1.0)
            elif fails:
                world.count(Fault.FIND_FAILS)
                back(SchedulerUnavailable("the controller cannot be reached"), taking)
            else:
                began = world.host_now()
                moment = tape.seconds(0.0, taking)
                world.clock.at(world.now + moment, snap, back, began, world.now, taking - moment)

        def snap(back: Callable[..., None], began: datetime, since: float, left: float) -> None:
            shown, complete, lies = self._shown(job)
            world.clock.at(world.now + left, end, back, began, since, shown, complete, lies)

        def end(
            back: Callable[..., None], began: datetime, since: float, shown: Any, complete: bool, lies: tuple[str, ...]
        ) -> None:
            listing = Listing(objects=shown, began=began, ended=world.host_now(), complete=complete)
            back((listing, since, lies), 0.02)

        listing, since, lies = await world.exchange(self.being, there, begin)
        world.tell(Looked(world.now, self.being.name, listing, since, lies))
        assert isinstance(listing, Listing)  # noqa: S101 - what `end` handed back
        return listing

    def _shown(self, job: Job | None) -> tuple[tuple[Any, ...], bool, tuple[str, ...]]:
        """What the listing shows now, whether it says that it is complete, and what it leaves out."""
        world = self.world
        shown = [thing.sighting() for thing in world.scheduler.things.values() if not thing.hidden]
        shown = [sighting for sighting in shown if job is None or job.concerns(sighting)]
        if shown and self._struck(Fault.FIND_INCOMPLETE):
            world.count(Fault.FIND_INCOMPLETE)
            kept = [sighting for sighting in shown if not self.being.tape.chance(0.5)]
            left_out = tuple(sighting.id for sighting in shown if sighting not in kept)
            return tuple(kept), False, left_out
        if world.lie is not None and world.lie[0] <= world.now < world.lie[1]:
            about = world.lie[2]
            kept = [sighting for sighting in shown if about is not None and sighting.id != about]
            if len(kept) < len(shown):
                world.count(Fault.FIND_EMPTY if about is None else Fault.FIND_HIDES)
                return tuple(kept), True, tuple(sighting.id for sighting in shown if sighting not in kept)
        return tuple(shown), True, ()

    async def watch(self, job: Job, seconds: float) -> None:
        world, being = self.world, self.being
        if being.unwinding:
            raise Ended
        future: asyncio.Future[None] = world.clock.create_future()
        watcher = (being, future)
        world.watchers.add(watcher)
        being.waiting.add(future)
        due = world.clock.call_later(seconds, _wake, future)
        try:
            await future
        finally:
            world.watchers.discard(watcher)
            being.waiting.discard(future)
            due.cancel()

    # --- calls

    async def start(self, launch: Launch, secrets: Mapping[str, str], deadline: datetime) -> Reply:
        sent = self._sent(
            None, launch.name, (launch.name,), deadline, submission=launch.submission, attempt=launch.attempt
        )

        def act() -> Reply:
            thing = self.world.scheduler.make(launch.name, sent, beyond=self._is_beyond(sent))
            return Reply(answer=Answer.DONE, text=thing.id)

        return await self._call(sent, act)

    async def open(self, target: Target, deadline: datetime) -> Reply:
        return await self._on(Kind.OPEN, target, deadline)

    async def shut(self, target: Target, deadline: datetime) -> Reply:
        return await self._on(Kind.SHUT, target, deadline)

    async def stop(self, target: Target, deadline: datetime) -> Reply:
        return await self._on(Kind.STOP, target, deadline)

    async def hold(self, target: Target, deadline: datetime) -> Reply:
        return await self._on(Kind.HOLD, target, deadline)

    async def release(self, target: Target, deadline: datetime) -> Reply:
        return await self._on(Kind.RELEASE, target, deadline)

    async def requeue(self, target: Target, deadline: datetime) -> Reply:
        return await self._on(Kind.REQUEUE, target, deadline)

    async def stop_job(self, names: tuple[str, ...], deadline: datetime) -> Reply:
        sent = self._sent(Kind.STOP_JOB, "", names, deadline)
        return await self._call(sent, lambda: self.world.scheduler.stop_named(names))

    async def _on(self, kind: Kind, target: Target, deadline: datetime) -> Reply:
        sent = self._sent(kind, target.name, (target.name,), deadline, object=target.id, run=target.run)
        scheduler = self.world.scheduler
        return await self._call(sent, lambda: scheduler.act(kind, target.id, target.name, target.run, sent))

    def _sent(
        self,
        kind: Kind | None,
        name: str,
        names: tuple[str, ...],
        deadline: datetime,
        *,
        object: str | None = None,
        run: int = 0,
        submission: int = 0,
        attempt: int = 0,
    ) -> Sent:
        if self.being.unwinding:
            raise Ended
        self.world.sent += 1
        sent = Sent(
            self.world.now,
            self.being.name,
            self.world.sent,
            kind,
            object,
            run,
            submission,
            attempt,
            name,
            names,
            deadline,
            self.being.read,
        )
        self.world.tell(sent)
        return sent

    async def _call(self, sent: Sent, act: Callable[[], Reply]) -> Reply:
        world, tape = self.world, self.being.tape
        there, back_in = tape.seconds(0.05, 1.0), tape.seconds(0.05, 0.5)
        if world.now < world.slow_until:
            there += 28.0
            world.count(Fault.SLOWNESS)
        if self._struck(Fault.CALL_LATE):
            there = world.bounds.window_seconds * tape.seconds(1.0, 3.0)
        lost = self._struck(Fault.CALL_LOST)
        doubled = self._struck(Fault.CALL_DOUBLED)
        again = tape.seconds(0.1, world.bounds.window_seconds) if doubled else 0.0
        refused = self._struck(Fault.CALL_REFUSED)
        fate = self._fate(sent, tape)

        def arrive(back: Callable[..., None]) -> None:
            if doubled:
                world.clock.at(world.now + again, arrive_again)
            if world.now < world.silent_until:
                world.count(Fault.SILENCE)
                return
            if lost:
                world.count(Fault.CALL_LOST)
                return
            reply = self._meet(sent, act, refused, first=True)
            if isinstance(reply, Reply):
                answer(back, reply)
            else:
                world.on_the_way += 1
                world.clock.at(world.now + reply, land, back)

        def land(back: Callable[..., None]) -> None:
            world.on_the_way -= 1
            world.last_landing = world.now
            answer(back, self._act(sent, act))

        def answer(back: Callable[..., None], reply: Reply) -> None:
            if fate == "lost":
                world.count(Fault.REPLY_LOST)
            elif fate == "broken":
                world.count(Fault.REPLY_BROKEN)
                back(OSError("the connection was reset"), back_in)
            else:
                back(reply, back_in)

        def arrive_again() -> None:
            world.count(Fault.CALL_DOUBLED)
            self._meet(sent, act, refused=False, first=False)

        reply = await world.exchange(self.being, there, arrive)
        assert isinstance(reply, Reply)  # noqa: S101 - what `answer` handed back
        return reply

    def _fate(self, sent: Sent, tape: Any) -> str:
        if self._struck(Fault.REPLY_LOST):
            return "lost"
        return "broken" if self._struck(Fault.REPLY_BROKEN) else ""

    def _meet(self, sent: Sent, act: Callable[[], Reply], refused: bool, first: bool) -> Reply | float:
        """The host looks at its clock, and lets the call through; it takes effect now, or so many seconds later."""
        world, tape = self.world, self.being.tape
        if not _is_in_time(world.host_now(), sent.deadline):
            world.count(Fault.CALL_LATE)
            return self._arrived(sent, Reply(answer=Answer.LATE))
        if refused:
            world.count(Fault.CALL_REFUSED)
            return self._arrived(sent, Reply(answer=Answer.REFUSED, text="the controller is busy"))
        if first and sent.kind is None and self._struck(Fault.START_BEYOND_BOUND):
            beyond = (sent.deadline - world.host_now()).total_seconds() + world.bounds.call_seconds
            world.count(Fault.START_BEYOND_BOUND)
            return beyond + tape.among((5.0, 60.0, 200.0, 600.0)) * tape.seconds(0.5, 1.5)
        if first and self._struck(Fault.EFFECT_LATE):
            world.count(Fault.EFFECT_LATE)
            return world.bounds.call_seconds * tape.seconds(0.3, 0.999)
        return self._act(sent, act)

    def _act(self, sent: Sent, act: Callable[[], Reply]) -> Reply:
        world = self.world
        thing = world.scheduler.things.get(sent.object) if sent.object is not None else None
        taken = world.scheduler.reused.get(sent.object) if sent.object is not None else None
        name, run = (thing.name, thing.run) if thing is not None else (taken or "", 1 if taken else 0)
        ignored = sent.kind is Kind.STOP and thing is not None and self._struck(Fault.STOP_IGNORED)
        if ignored and thing is not None and thing.state is not State.ENDED:
            world.count(Fault.STOP_IGNORED)
            reply = Reply(answer=Answer.DONE)
        else:
            reply = act()
        self._arrived(sent, reply, name, run)
        world.changed()
        return reply

    def _arrived(self, sent: Sent, reply: Reply, name: str = "", run: int = 0) -> Reply:
        self.world.tell(Arrived(self.world.now, sent, reply, name, run, self._is_beyond(sent)))
        return reply

    def _is_beyond(self, sent: Sent) -> bool:
        """Whether a call has expired."""
        return (self.world.host_now() - sent.deadline).total_seconds() > self.world.bounds.call_seconds

    def _struck(self, fault: Fault) -> bool:
        return self.world.faults.strikes(fault, self.being.tape)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
