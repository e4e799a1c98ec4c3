"""Thousands of live jobs on one cluster: what is read of it is counted, and grows with passes, not with jobs (T55)."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.adapters.contract import Job, Launch, Target
from dispatch_core.adapters.local import spool
from dispatch_core.adapters.local.scheduler import LocalScheduler
from dispatch_core.adapters.shared import Listings, Snapshot
from dispatch_core.client import Client
from dispatch_core.evidence import Bounds, Capabilities, Listing, Sighting
from dispatch_core.names import object_name
from dispatch_core.plan import Cause, End, Plan, Spec
from dispatch_core.record import Answer, Record, Reply, Result, State
from dispatch_core.stores.memory import MemoryStore
from dispatch_core.supervisor import Supervisor
from tests.bench.bench_waits import measured

MANY = 5000
SPEC = Spec(command=("true",))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each directory is listed, from now on."""
    counted, real = Counter[str](), os.listdir

    def listdir(path: Any = ".") -> list[str]:
        counted[str(path)] += 1
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    return counted


@pytest.mark.case("T55")
async def test_a_spool_is_read_once_a_pass_however_many_jobs_ask(tmp_path: Path, reads: Counter[str]) -> None:
    """All jobs list and watch, three times over; then two of them change, and nobody else is woken."""
    jobs = [Job(key=f"job{n}", uid=f"{n:016x}") for n in range(MANY)]
    scheduler = LocalScheduler(tmp_path / "spool", listing_seconds=0.0)
    ids = [put(tmp_path / "spool", job) for job in jobs]
    folders = [tmp_path / "spool" / "objects" / id for id in ids]
    for _ in range(3):
        listings = await asyncio.gather(*map(scheduler.find, jobs))
        assert [[object.id for object in listing.objects] for listing in listings] == [[id] for id in ids]
        assert all(listing.complete for listing in listings)
    looks = scheduler.listings
    assert looks == 3
    assert reads[str(tmp_path / "spool" / "objects")] == looks
    assert {reads[str(folder / "runs")] for folder in folders} == {looks}
    watching = [asyncio.ensure_future(scheduler.watch(job, 600.0)) for job in jobs]
    changed = {7, MANY - 1}
    for number in changed:
        (folders[number] / "runs" / "1" / spool.STOP).touch()
    async with asyncio.timeout(60):
        await asyncio.gather(*(watching[number] for number in changed))
    assert {number for number, woken in enumerate(watching) if woken.done()} == changed
    looks = scheduler.listings
    for work in watching:
        work.cancel()
    await asyncio.gather(*watching, return_exceptions=True)
    await scheduler.close()
    shutil.rmtree(tmp_path / "spool")
    print(f"\n{MANY} jobs: {sum(reads.values())} directory reads, {looks} looks, {looks / MANY:.4f} a job")
    assert reads[str(tmp_path / "spool" / "objects")] in (looks, scheduler.listings)
    assert max(reads[str(folder / "runs")] for folder in folders) <= scheduler.listings


def put(root: Path, job: Job) -> str:
    """A gated object as a Start makes it, without waiting for the disk."""
    folder = root / "objects" / job.uid
    (folder / "runs" / "1").mkdir(parents=True)
    tags = {
        "id": job.uid,
        "key": job.key,
        "uid": job.uid,
        "name": object_name(job.uid, 1, 1),
        "may_requeue": False,
    }
    (folder / spool.TAGS).write_text(json.dumps(tags))
    (folder / spool.CLAIM).touch()
    return job.uid


class Cluster:
    """A scheduler whose runs last until they are let go, on the listings that adapters share; it counts its queries."""

    bounds = Bounds(call_seconds=600, window_seconds=600, absence_seconds=600, repeat_seconds=600, resync_seconds=600)
    capabilities = Capabilities()

    def __init__(self) -> None:
        self.shown: dict[str, Sighting] = {}
        self.listings = Listings(self.take, 0.02)
        self.asked: Counter[str] = Counter()

    async def take(self) -> Snapshot:
        began = datetime.now(UTC)
        await asyncio.sleep(0)
        return Snapshot(began, datetime.now(UTC), list(self.shown.values()))

    async def find(self, job: Job) -> Listing:
        self.asked["find"] += 1
        return await self.listings.find(job)

    async def watch(self, job: Job, seconds: float) -> None:
        self.asked["watch"] += 1
        await self.listings.watch(job, seconds)

    async def start(self, launch: Launch, secrets: Mapping[str, str], deadline: datetime) -> Reply:
        self.shown[launch.uid] = Sighting(id=launch.uid, name=launch.name, key=launch.key, state=State.GATED)
        return Reply(answer=Answer.DONE, text=launch.uid)

    async def open(self, target: Target, deadline: datetime) -> Reply:
        self.show(target.id, State.RUNNING)
        return Reply(answer=Answer.DONE)

    async def refuse(self, *_: object) -> Reply:
        return Reply(answer=Answer.REFUSED, text="not here")

    shut = stop = stop_job = hold = release = requeue = refuse

    def show(self, id: str, state: State, end: End | None = None) -> None:
        before = self.shown[id]
        self.shown[id] = Sighting(id=id, name=before.name, key=before.key, state=state, end=end)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    yield cluster
    await cluster.listings.close()


@pytest.mark.case("T55")
@pytest.mark.parametrize("count", [300, pytest.param(MANY, marks=pytest.mark.long)])
async def test_one_query_a_pass_for_all_supervised_jobs(
    cluster: Cluster, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each job has its own supervising loop; while nothing happens to any, nobody lists, and one poller looks."""
    monkeypatch.setattr("dispatch_core.supervisor.Supervisor.record_seconds", 600.0)
    store: Any = MemoryStore()
    client = Client(store, "person ann")
    records = [await client.submit(f"job{n}", SPEC, Plan(), scheduler="many") for n in range(count)]
    adapter: Any = cluster
    supervisor = Supervisor(store, adapter, lease_seconds=None)
    work = [asyncio.ensure_future(supervisor.run(record.key, record.uid, until_outcome=True)) for record in records]
    async with asyncio.timeout(240):
        while waiting(cluster) < count or not all_running(cluster, count):
            assert not any(one.done() for one in work)
            await asyncio.sleep(0.05)
        launching, finds = cluster.listings.count, cluster.asked["find"]
        while cluster.listings.count < launching + 20:
            await asyncio.sleep(0.05)
        assert cluster.asked["find"] == finds, "twenty looks showed nothing new, and no job asked"
        for record in records:
            cluster.show(record.uid, State.ENDED, End(cause=Cause.COMPLETED))
        done: list[Record] = await asyncio.gather(*work)
    assert {record.outcome.result for record in done if record.outcome} == {Result.SUCCEEDED}
    total, passes = cluster.listings.count, cluster.asked["find"]
    print(f"\n{count} jobs: {passes} passes, {total} queries, {launching} of them while all were launched")
    assert passes >= 4 * count
    assert total < passes / 4


@pytest.mark.case("T52")
async def test_ten_thousand_waits_and_a_slow_cluster_leave_the_loop_free() -> None:
    """Counted is what this program does between two turns of its loop, in all its threads: what others do on this
    machine meanwhile is not ours. A hundred jobs change, are woken and list again in each of the slow snapshots."""
    found = await measured(10_000, changing=100, snapshots=5, slow_seconds=0.5, clock=time.process_time)
    p99 = statistics.quantiles(found, n=100)[98]
    print(f"\n10000 waits: p99 of what comes between two turns is {p99 * 1000:.0f} ms, at most {max(found) * 1000:.0f}")
    assert len(found) > 100
    assert max(found) < 0.2, "and so their p99"


def all_running(cluster: Cluster, count: int) -> bool:
    return sum(sighting.state is State.RUNNING for sighting in cluster.shown.values()) == count


def waiting(cluster: Cluster) -> int:
    """Jobs that watch now."""
    return len({woken for watching in cluster.listings._watching.values() for woken in watching})
