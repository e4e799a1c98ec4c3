"""An actor's connection to the simulated scheduler: the adapter contract, with everything that can go wrong on the way.

One rule: a call that its host let through takes effect within the declared bound of that moment, a Start excepted; what
its sender learns of it is another matter. Nothing is repeated here and nothing is decided.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime

from dispatch_core.adapters.contract import Job, Launch, Log, Piece, Target
from dispatch_core.errors import SchedulerUnavailable
from dispatch_core.evidence import Listing
from dispatch_core.plan import Spec
from dispatch_core.record import Kind, Reply
from dispatch_core.simulator.flight import Flight, is_beyond
from dispatch_core.simulator.query import Query
from dispatch_core.simulator.trace import Looked, Replied, Sent, Unanswered
from dispatch_core.simulator.world import Being, Ended, Voice, World, resume


class Connection:
    """The adapter of one actor."""

    def __init__(self, world: World, being: Being, voice: Voice | None = None) -> None:
        self.world = world
        self.being = being
        self.voice = voice or being.voice
        self.bounds = world.bounds
        self.capabilities = world.capabilities

    def problems(self, spec: Spec) -> list[tuple[tuple[str | int, ...], str]]:
        if spec.queue == "nowhere":
            return [(("spec", "queue"), "there is no queue 'nowhere' on this cluster")]
        return []

    async def settled(self, uid: str, names: tuple[str, ...]) -> None:
        """Nothing is kept for it."""

    async def kept(self) -> frozenset[str]:
        return frozenset()

    async def close(self) -> None:
        """Nothing to end."""

    async def read_log(self, target: Target, stream: int, begin: int, length: int) -> Piece:
        return Piece(log=Log.NOT_BEGUN)

    # --- listings

    async def find(self, job: Job) -> Listing:
        return await self._look(job)

    async def everything(self) -> Listing:
        return await self._look(None)

    async def _look(self, job: Job | None) -> Listing:
        query = Query(self.world, self.being, job)
        try:
            listing, *when = await self.world.exchange(self.being, query.there, query.begin)
        except (SchedulerUnavailable, asyncio.CancelledError) as error:
            if job is not None and not self.being.unwinding:
                self.world.tell(Unanswered(self.world.now, self.voice.name, str(error)))
            raise
        assert isinstance(listing, Listing)  # noqa: S101 - what the query handed back
        self.world.tell(Looked(self.world.now, self.voice.name, job is not None, listing, *when))
        return listing

    async def watch(self, job: Job, seconds: float) -> None:
        world, being = self.world, self.being
        if being.unwinding:
            raise Ended
        future: asyncio.Future[None] = world.clock.create_future()
        world.watchers[future] = being
        being.waiting[future] = None
        due = world.clock.call_later(seconds, resume, future)
        try:
            await future
        finally:
            world.watchers.pop(future, None)
            being.waiting.pop(future, None)
            due.cancel()

    # --- calls

    async def start(self, launch: Launch, secrets: Mapping[str, str], deadline: datetime) -> Reply:
        sent = self._sent(
            None, launch.name, (launch.name,), deadline, submission=launch.submission, attempt=launch.attempt
        )

        def act() -> Reply:
            return self.world.scheduler.starts(launch.name, sent, beyond=is_beyond(self.world, sent))

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
            self.voice.name,
            self.world.sent,
            kind,
            object,
            run,
            submission,
            attempt,
            name,
            names,
            deadline,
            self.voice.read,
        )
        self.world.tell(sent)
        return sent

    async def _call(self, sent: Sent, act: Callable[[], Reply]) -> Reply:
        flight = Flight(self.world, self.being.tape, sent, act)
        reply = await self.world.exchange(self.being, flight.there, flight.arrive)
        assert isinstance(reply, Reply)  # noqa: S101 - what the flight handed back
        self.world.tell(Replied(self.world.now, self.voice.name, sent.number))
        return reply
