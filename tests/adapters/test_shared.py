"""One snapshot for all that ask at the same time, and each job's part of it."""

from __future__ import annotations

import asyncio
import itertools
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.adapters.contract import Job
from dispatch_core.adapters.shared import KEPT_CHANGES, Listings, Sighted, Snapshot, Snapshots, pause_of
from dispatch_core.errors import SchedulerUnavailable
from dispatch_core.evidence import Sighting
from dispatch_core.names import object_name
from dispatch_core.record import State


class Cluster:
    """Snapshots that are under way until they are let go."""

    def __init__(self) -> None:
        self.begun: list[asyncio.Future[str]] = []

    async def take(self) -> str:
        self.begun.append(asyncio.get_running_loop().create_future())
        return await self.begun[-1]

    async def let_go(self, number: int, told: str | Exception) -> None:
        """Wait until snapshot `number` has begun, and end it."""
        async with asyncio.timeout(10):
            while len(self.begun) < number:
                await asyncio.sleep(0)
        if isinstance(told, Exception):
            self.begun[number - 1].set_exception(told)
        else:
            self.begun[number - 1].set_result(told)


async def some_turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.promise("C4")
async def test_who_asks_is_not_answered_by_a_snapshot_already_under_way() -> None:
    cluster = Cluster()
    snapshots = Snapshots(cluster.take, 0.0)
    early = asyncio.create_task(snapshots.next())
    await some_turns()
    late = [asyncio.create_task(snapshots.next()) for _ in range(20)]
    await some_turns()
    assert len(cluster.begun) == 1
    await cluster.let_go(1, "first")
    await cluster.let_go(2, "second")
    assert await early == "first"
    assert await asyncio.gather(*late) == ["second"] * 20
    assert snapshots.count == 2
    await snapshots.close()


@pytest.mark.case("T55")
async def test_snapshots_begin_no_more_often_than_agreed() -> None:
    loop, times = asyncio.get_running_loop(), list[float]()

    async def take() -> int:
        times.append(loop.time())
        return len(times)

    snapshots = Snapshots(take, 0.1)

    async def job() -> None:
        for _ in range(4):
            await snapshots.next()

    await asyncio.gather(*(job() for _ in range(50)))
    assert snapshots.count == len(times) == 4
    assert all(after - before >= 0.099 for before, after in itertools.pairwise(times))
    await snapshots.close()


async def test_who_leaves_does_no_harm_and_nobody_is_asked_for_nobody() -> None:
    cluster = Cluster()
    snapshots = Snapshots(cluster.take, 0.0)
    leaving, staying = asyncio.create_task(snapshots.next()), asyncio.create_task(snapshots.next())
    await some_turns()
    leaving.cancel()
    await cluster.let_go(1, "told")
    assert await staying == "told"
    assert leaving.cancelled() or leaving.cancelling()
    await some_turns()
    assert snapshots.count == 1
    await snapshots.close()


@pytest.mark.parametrize("everyone_left", [False, True])
async def test_an_error_is_told_to_all_and_the_next_who_asks_is_answered(everyone_left: bool) -> None:
    cluster = Cluster()
    snapshots = Snapshots(cluster.take, 0.0)
    asking = [asyncio.create_task(snapshots.next()) for _ in range(3)]
    await some_turns()
    if everyone_left:
        for one in asking:
            one.cancel()
    await cluster.let_go(1, SchedulerUnavailable("no answer"))
    told = await asyncio.gather(*asking, return_exceptions=True)
    wanted = asyncio.CancelledError if everyone_left else SchedulerUnavailable
    assert [type(one) for one in told] == [wanted] * 3
    again = asyncio.create_task(snapshots.next())
    await cluster.let_go(2, "told")
    assert await again == "told"
    await snapshots.close()


@pytest.mark.promise("R2")
async def test_a_close_ends_what_runs_and_tells_who_waits() -> None:
    cluster = Cluster()
    snapshots = Snapshots(cluster.take, 0.0)
    under_way = asyncio.create_task(snapshots.next())
    await some_turns()
    waiting = asyncio.create_task(snapshots.next())
    await some_turns()
    await snapshots.close()
    told = await asyncio.gather(under_way, waiting, return_exceptions=True)
    assert [type(one) for one in told] == [SchedulerUnavailable] * 2
    with pytest.raises(SchedulerUnavailable, match="closed"):
        await snapshots.next()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await snapshots.close()


@pytest.mark.promise("R2")
async def test_nothing_runs_while_nobody_asks() -> None:
    async def take() -> str:
        return "told"

    snapshots = Snapshots(take, 0.0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert await snapshots.next() == "told"
    await some_turns()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert await snapshots.next() == "told"
    assert snapshots.count == 2
    await snapshots.close()


class World:
    """What a cluster shows, and whether it answers."""

    def __init__(self) -> None:
        self.shown: dict[str, State] = {}
        self.down = False
        self.listings = Listings(self.take, 0.0)

    async def take(self) -> Snapshot:
        if self.down:
            raise SchedulerUnavailable("no answer")
        now = datetime.now(UTC)
        names = {id: object_name(job_of(id).uid, 1, 1) for id in self.shown}
        rows = [Sighting(id=id, name=names[id], key=job_of(id).key, state=s) for id, s in self.shown.items()]
        return Snapshot(now, now, rows)

    def watch(self, id: str) -> asyncio.Task[None]:
        return asyncio.create_task(self.listings.watch(job_of(id), 60.0))

    async def turns(self, snapshots: int = 3) -> None:
        """Wait for some more snapshots."""
        async with asyncio.timeout(10):
            until = self.listings.count + snapshots
            while self.listings.count < until:
                await asyncio.sleep(0)


def job_of(id: str) -> Job:
    return Job(key=f"job {id}", uid=f"{id}1111111")


@pytest.mark.promise("A3")
async def test_a_watch_wakes_for_its_own_job_only() -> None:
    world = World()
    world.shown = {"a": State.GATED, "b": State.GATED}
    await world.listings.find(job_of("a"))
    first, second = world.watch("a"), world.watch("b")
    await world.turns()
    assert not first.done()
    world.shown["a"] = State.RUNNING
    await asyncio.wait_for(first, 10)
    await world.turns()
    assert not second.done()
    del world.shown["b"]
    await asyncio.wait_for(second, 10)
    await some_turns()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await world.listings.close()


async def test_a_watch_wakes_for_what_changed_since_the_latest_listing() -> None:
    """Another job's listing took note of it in between."""
    world = World()
    world.shown = {"a": State.GATED}
    await world.listings.find(job_of("a"))
    world.shown = {"a": State.ENDED}
    await world.listings.find(job_of("b"))
    await world.listings.find(job_of("b"))
    await asyncio.wait_for(world.watch("a"), 10)
    await world.listings.find(job_of("a"))
    watching = world.watch("a")
    await world.turns()
    assert not watching.done()
    watching.cancel()
    for _ in range(KEPT_CHANGES + 2):
        await world.listings.everything()
    await asyncio.wait_for(world.watch("a"), 10)
    await world.listings.close()


async def test_a_watch_outlasts_an_outage_and_its_time_is_bounded() -> None:
    world = World()
    world.shown = {"a": State.GATED}
    await world.listings.find(job_of("a"))
    watching = world.watch("a")
    world.down = True
    await world.turns()
    assert not watching.done()
    world.shown, world.down = {"a": State.ENDED}, False
    await asyncio.wait_for(watching, 10)
    await asyncio.wait_for(world.listings.watch(job_of("c"), 0.01), 10)
    await world.listings.close()


@pytest.mark.promise("R2")
async def test_who_watches_is_told_of_a_close() -> None:
    world = World()
    watching = world.watch("a")
    await world.turns()
    await world.listings.close()
    (told,) = await asyncio.gather(watching, return_exceptions=True)
    assert isinstance(told, SchedulerUnavailable)
    with pytest.raises(SchedulerUnavailable):
        await world.listings.watch(job_of("a"), 1.0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


UIDS = st.sampled_from(["0f3a9c21b7d4e865", "1111111111111111"])
NAMES = st.one_of(st.builds(object_name, UIDS, st.integers(1, 2), st.integers(1, 2)), st.sampled_from(["", "mangled"]))
KEYS = st.sampled_from(["", "one", "other"])
IDS = st.sampled_from(["a", "b", "c"])
SIGHTINGS = st.builds(Sighting, id=IDS, name=NAMES, key=KEYS, state=st.sampled_from(State))
JOBS = st.builds(Job, key=KEYS, uid=UIDS, known=st.lists(IDS).map(tuple))


@given(st.lists(SIGHTINGS, max_size=12), JOBS)
def test_a_jobs_part_is_what_concerns_it(sightings: list[Sighting], job: Job) -> None:
    listed = {sighting.id: sighting for sighting in sightings}
    wanted = [listed[id] for id in sorted(listed) if job.concerns(listed[id])]
    assert list(Sighted(listed.values()).of(job)) == wanted


@pytest.mark.case("T5")
@pytest.mark.parametrize("took", [0.001, 1.0, 3.0, 6.0])
@pytest.mark.parametrize("poll", [0.1, 3.0, 15.0])
def test_whoever_asks_when_a_listing_has_just_begun_has_the_next_within_the_shortest_step(
    poll: float, took: float
) -> None:
    """Else they give up before it has ended, again and again."""
    assert took <= pause_of(poll, took) < 22.0 - took
