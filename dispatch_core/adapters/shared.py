"""What adapters share: one snapshot of a cluster for all that ask at the same time, and each job's part of it.

One rule: who asks is answered by a snapshot that begins after the question, never by one already under way, and
snapshots begin no more often than agreed. Nothing runs while nobody asks; what runs belongs to this object, and `close`
ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import Any, Generic, TypeVar

from dispatch_core.adapters.contract import Job
from dispatch_core.errors import SchedulerUnavailable
from dispatch_core.evidence import Listing, Sighting
from dispatch_core.names import read_name

Taken = TypeVar("Taken")

SLOW_FACTOR = 5.0
"""A scheduler that takes long over a listing is left in peace for so many times as long."""
PATIENCE_SECONDS = 18.0
"""But whoever asks is to have the next listing within this: who waits for longer than the longest step gives up."""


def pause_of(poll_seconds: float, took_seconds: float, factor: float = SLOW_FACTOR) -> float:
    """Seconds from the beginning of one listing to that of the next, at least, where the latest took so long."""
    peace = min(factor * took_seconds, max(took_seconds, PATIENCE_SECONDS - took_seconds))
    return max(poll_seconds, peace)


class Snapshots(Generic[Taken]):
    """Takes snapshots for any number of askers, in one event loop."""

    def __init__(self, take: Callable[[], Awaitable[Taken]], seconds: float | Callable[[], float]) -> None:
        """`seconds`: from the beginning of one to that of the next, at least; or what says so at each."""
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
                pause = self._seconds() if callable(self._seconds) else self._seconds
                self._asked, self._not_before = None, loop.time() + pause
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


def _fail(asked: asyncio.Future[Any], error: Exception) -> None:
    if not asked.done():
        asked.set_exception(error)
        asked.exception()  # everyone who asked may have left; then nobody is to be warned of it


Key = tuple[str, str]
"""What objects and jobs are found by: ("id", ...), ("uid", ...) or ("key", ...)."""


def keys_of(sighting: Sighting) -> list[Key]:
    tags = read_name(sighting.name)
    keys = [("id", sighting.id), ("key", sighting.key)]
    return keys if tags is None else [*keys, ("uid", tags.uid)]


def keys_for(job: Job) -> list[Key]:
    return [("uid", job.uid), ("key", job.key), *(("id", id) for id in job.known)]


class Sighted:
    """All objects of one snapshot, sorted so that one job's are found without looking at every other job's.

    It is made of nothing that the garbage collector has to look at again and again: tuples, not lists, for the one
    object that most keys have.
    """

    def __init__(self, sightings: Iterable[Sighting]) -> None:
        self.all = tuple(sightings)
        self._by: dict[Key, tuple[Sighting] | list[Sighting]] = {}
        self._ids: dict[str, Sighting] = {}
        for sighting in self.all:
            self._ids[sighting.id] = sighting
            for key in keys_of(sighting):
                rows = self._by.setdefault(key, (sighting,))
                if isinstance(rows, list):
                    rows.append(sighting)
                elif rows[0] is not sighting:
                    self._by[key] = [*rows, sighting]

    def of(self, job: Job) -> tuple[Sighting, ...]:
        """The objects that concern a job."""
        found = {sighting.id: sighting for key in keys_for(job) for sighting in self._by.get(key, ())}
        return tuple(sighting for _, sighting in sorted(found.items()) if job.concerns(sighting))

    def changed(self, before: Sighted) -> frozenset[Key]:
        """The keys of all objects that came, went or changed, other than by their progress."""
        ids = {id for id, now in self._ids.items() if _is_other(now, before._ids.get(id))}
        ids |= before._ids.keys() - self._ids.keys()
        rows = [*self._rows(ids), *before._rows(ids)]
        return frozenset(key for sighting in rows for key in keys_of(sighting))

    def _rows(self, ids: Iterable[str]) -> list[Sighting]:
        return [sighting for id in ids for sighting in self._by.get(("id", id), ())]


def _is_other(now: Sighting, before: Sighting | None) -> bool:
    """Whether an object is shown otherwise than before, its progress aside."""
    if before is None:
        return True
    return (now.state, now.run, now.hold, now.name, now.key, now.end, now.earlier_ends) != (
        before.state,
        before.run,
        before.hold,
        before.name,
        before.key,
        before.end,
        before.earlier_ends,
    )


class Snapshot:
    """A cluster at one moment."""

    def __init__(
        self,
        began: datetime,
        ended: datetime,
        sightings: Iterable[Sighting],
        misses: Callable[[Job | None], bool] = lambda _: False,
    ) -> None:
        """`misses`: whether something of this job, of any job for None, may have been there and is not shown."""
        self.began, self.ended, self.misses = began, ended, misses
        self.sighted = Sighted(sightings)
        self.number = 0

    def of(self, job: Job) -> Listing:
        """One job's part of it."""
        objects, complete = self.sighted.of(job), not self.misses(job)
        return Listing(objects=objects, began=self.began, ended=self.ended, complete=complete)

    def everything(self) -> Listing:
        return Listing(objects=self.sighted.all, began=self.began, ended=self.ended, complete=not self.misses(None))


LARGE = 1000
"""Objects from which on two snapshots are compared in a thread: no job of the loop must wait for it."""


async def _changed(after: Sighted, before: Sighted) -> frozenset[Key]:
    if len(after.all) < LARGE:
        return after.changed(before)
    return await asyncio.to_thread(after.changed, before)


KEPT_CHANGES = 64
"""Snapshots that a watch may look back on, for what changed between its job's latest listing and its own beginning."""
KEPT_JOBS = 20_000


class Listings:
    """Listings and watches of any number of jobs, all from the same snapshots; those of jobs at rest cost nothing."""

    def __init__(self, take: Callable[[], Awaitable[Snapshot]], seconds: float | Callable[[], float]) -> None:
        self._take = take
        self._snapshots: Snapshots[Snapshot] = Snapshots(self._noted, seconds)
        self._latest: Snapshot | None = None
        self._changes: deque[tuple[int, frozenset[Key]]] = deque(maxlen=KEPT_CHANGES)
        self._shown: dict[str, int] = {}
        """The number of the snapshot that a job was last listed from, by its uid."""
        self._watching: dict[Key, set[asyncio.Future[None]]] = {}
        self._poller: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def count(self) -> int:
        """Snapshots begun so far."""
        return self._snapshots.count

    async def find(self, job: Job) -> Listing:
        """A listing that begins after this is asked for."""
        snapshot = await self._snapshots.next()
        self._shown.pop(job.uid, None)
        self._shown[job.uid] = snapshot.number
        if len(self._shown) > KEPT_JOBS:
            del self._shown[next(iter(self._shown))]
        return snapshot.of(job)

    async def everything(self) -> Listing:
        return (await self._snapshots.next()).everything()

    async def watch(self, job: Job, seconds: float) -> None:
        """Return once a snapshot shows something else of the job than its latest listing, or after so many seconds."""
        if self._closed:
            raise closed()
        keys, since = keys_for(job), self._shown.get(job.uid)
        if since is not None and self._has_changed(keys, since):
            return
        woken = asyncio.get_running_loop().create_future()
        for key in keys:
            self._watching.setdefault(key, set()).add(woken)
        if self._poller is None:
            self._poller = asyncio.create_task(self._poll())
        try:
            async with asyncio.timeout(seconds):
                await woken
        except TimeoutError:
            return
        finally:
            for key in keys:
                watching = self._watching[key]
                watching.discard(woken)
                if not watching:
                    del self._watching[key]

    def _has_changed(self, keys: list[Key], since: int) -> bool:
        """Whether anything with these keys has changed since that snapshot; yes, where that is not known any more."""
        if self._changes and self._changes[0][0] > since + 1:
            return True
        return any(number > since and not changed.isdisjoint(keys) for number, changed in self._changes)

    async def _poll(self) -> None:
        """Take snapshots for as long as somebody watches; one that fails is no reason to wake anybody."""
        try:
            while self._watching and not self._closed:
                with contextlib.suppress(SchedulerUnavailable):
                    await self._snapshots.next()
        finally:
            self._poller = None

    async def _noted(self) -> Snapshot:
        """Take a snapshot, and wake those whose jobs it shows otherwise than the one before."""
        snapshot, before = await self._take(), self._latest
        if before is not None:
            snapshot.number = before.number + 1
            changed = await _changed(snapshot.sighted, before.sighted)
            self._changes.append((snapshot.number, changed))
            for woken in {woken for key in changed for woken in self._watching.get(key, ())}:
                if not woken.done():
                    woken.set_result(None)
        self._latest = snapshot
        return snapshot

    async def close(self) -> None:
        """End what runs, and tell those who wait."""
        self._closed = True
        await self._snapshots.close()
        for woken in {woken for watching in self._watching.values() for woken in watching}:
            _fail(woken, closed())
        if self._poller is not None:
            await asyncio.wait([self._poller])
