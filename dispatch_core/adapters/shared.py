"""What adapters share: one snapshot of a cluster for all that ask at the same time, and each job's part of it.

One rule: who asks is answered by a snapshot that begins after the question, never by one already under way, and
snapshots begin no more often than agreed. Nothing runs while nobody asks; what runs belongs to this object, and `close`
ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

from dispatch_core.adapters.contract import Job
from dispatch_core.errors import SchedulerUnavailable
from dispatch_core.evidence import Sighting
from dispatch_core.record import State, read_name

Taken = TypeVar("Taken")


class Snapshots(Generic[Taken]):
    """Takes snapshots for any number of askers, in one event loop."""

    def __init__(self, take: Callable[[], Awaitable[Taken]], seconds: float) -> None:
        self._take, self._seconds = take, seconds
        self._asked: asyncio.Future[Taken] | None = None
        """The answer to all who have asked since the latest snapshot began."""
        self._work: asyncio.Task[None] | None = None
        self._not_before = 0.0
        self._closed = False
        self.count = 0
        """Snapshots begun so far."""

    async def next(self) -> Taken:
        """The next snapshot to begin. Raises what taking it raised, and SchedulerUnavailable once closed."""
        if self._closed:
            raise closed()
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()
        if self._work is None:
            self._work = asyncio.create_task(self._answer())
        return await asyncio.shield(self._asked)

    async def _answer(self) -> None:
        """Take snapshots for as long as somebody has asked for one."""
        loop = asyncio.get_running_loop()
        try:
            while (asked := self._asked) is not None:
                await asyncio.sleep(self._not_before - loop.time())
                self._asked, self._not_before = None, loop.time() + self._seconds
                self.count += 1
                await self._tell(asked)
        finally:
            self._work = None

    async def _tell(self, asked: asyncio.Future[Taken]) -> None:
        try:
            asked.set_result(await self._take())
        except asyncio.CancelledError:
            _fail(asked, closed())
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, everyone who asked is told
            _fail(asked, error)

    async def close(self) -> None:
        """End what runs, and tell those who wait."""
        self._closed = True
        asked, work = self._asked, self._work
        if work is not None:
            work.cancel()
            await asyncio.wait([work])
        if asked is not None:
            _fail(asked, closed())


def closed() -> SchedulerUnavailable:
    """What is told of a connection that was closed."""
    return SchedulerUnavailable("the connection to the scheduler is closed; open another one")


def _fail(asked: asyncio.Future[Taken], error: Exception) -> None:
    if not asked.done():
        asked.set_exception(error)
        asked.exception()  # everyone who asked may have left; then nobody is to be warned of it


class Sighted:
    """All objects of one snapshot, sorted so that one job's are found without looking at every other job's."""

    def __init__(self, sightings: Iterable[Sighting]) -> None:
        self.all = tuple(sightings)
        self._by: dict[tuple[str, str], list[int]] = {}
        for place, sighting in enumerate(self.all):
            tags = read_name(sighting.name)
            for key in (
                ("id", sighting.id),
                ("uid", "" if tags is None else tags.uid),
                ("key", "" if sighting.state is State.ENDED else sighting.key),
            ):
                self._by.setdefault(key, []).append(place)

    def of(self, job: Job) -> tuple[Sighting, ...]:
        """The objects that concern a job, in the order of the snapshot."""
        asked = [("uid", job.uid), ("key", job.key), *(("id", id) for id in job.known)]
        places = sorted({place for key in asked for place in self._by.get(key, ())})
        return tuple(self.all[place] for place in places)
