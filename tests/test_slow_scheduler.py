"""A scheduler on which every call takes 30 s for ten minutes, beside one that is well (T5), at a fiftieth of the time.

The real supervisor, and two real local schedulers in one loop; the slow one's calls, and its looks at the spool, take
their time in the scheduler's own threads, half of it before they act and half before they answer. Whoever asked may
leave meanwhile: what is under way stays under way, and is counted there.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.adapters.contract import Job
from dispatch_core.adapters.local.scheduler import THREADS, LocalScheduler
from dispatch_core.client import Client
from dispatch_core.evidence import Bounds, Listing
from dispatch_core.janitor import Janitor
from dispatch_core.plan import Action, Cause, Delay, Plan, Rule, Spec, When
from dispatch_core.record import ATTEMPTS, Result, is_late
from dispatch_core.stores.memory import MemoryStore

SCALE = 50
TAKES_SECONDS, LASTS_SECONDS = 30 / SCALE, 600 / SCALE
BOUNDS = Bounds(
    call_seconds=5 / SCALE,
    window_seconds=15 / SCALE,
    absence_seconds=5 / SCALE,
    repeat_seconds=2 / SCALE,
    resync_seconds=30 / SCALE,
)
"""The local scheduler's own, at this scale: a step is given up after 20 s, long before a slow call answers."""
JOBS = 12
"""On each of the two schedulers; more than the scheduler has threads."""
AGAIN = Rule(
    name="never created",
    when=When(cause=(Cause.NEVER_CREATED,)),
    do=Action.RESUBMIT,
    budget=9,
    delay=Delay(seconds=120 / SCALE),
)
"""What a plan says for a scheduler that is slower than it declares: three Starts are too late, and then it waits."""
CHANGING = ("start", "open", "shut", "stop", "stop_job", "hold", "release", "requeue")


class Slowness:
    """What takes its time while it lasts, and what of it is under way."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.guard = threading.Lock()
        self.under_way: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        """The most that was ever under way at once: of one job, of all jobs, and of looks at the spool."""
        self.made: Counter[str] = Counter()

    def taking(self, work: Callable[..., Any], whose: Callable[..., list[str]]) -> Callable[..., Any]:
        """The same work, slowly."""

        def slow(*args: Any) -> Any:
            counted = whose(*args)
            with self.guard:
                self.under_way.update(counted)
                self.made.update(counted)
                for name in counted:
                    self.most[name] = max(self.most[name], self.under_way[name])
            try:
                self.over.wait(TAKES_SECONDS / 2)
                result = work(*args)
                self.over.wait(TAKES_SECONDS / 2)
                return result
            finally:
                with self.guard:
                    self.under_way.subtract(counted)

        return slow


def whose(first: Any, *_: Any) -> list[str]:
    """The job that a call is about, by the names that it carries."""
    name = first[0] if isinstance(first, tuple) else first.name
    return ["all jobs", name.split("-")[1]]


class Cluster(LocalScheduler):
    """A local scheduler that counts what a pass asks of it."""

    def __init__(self, spool: Path, slowness: Slowness | None, *, slow_looks: bool = True) -> None:
        super().__init__(spool, slots=64, bounds=BOUNDS, listing_seconds=1 / SCALE, grace_seconds=0.5)
        self.passes: Counter[str] = Counter()
        self.calls_in_a_pass: Counter[tuple[str, int]] = Counter()
        if slowness is None:
            return
        for name in CHANGING:
            setattr(self._calls, name, slowness.taking(getattr(self._calls, name), whose))
        if slow_looks:
            self._lister.snapshot = slowness.taking(self._lister.snapshot, lambda: ["looks"])  # type: ignore[method-assign]

    async def find(self, job: Job) -> Listing:
        self.passes[job.uid] += 1
        return await super().find(job)

    def __getattribute__(self, name: str) -> Any:
        if name in CHANGING:
            return _counted(self, super().__getattribute__(name))
        return super().__getattribute__(name)


def _counted(cluster: Cluster, call: Callable[..., Any]) -> Callable[..., Any]:
    async def counted(first: Any, *rest: Any) -> Any:
        (uid,) = whose(first)[1:]
        cluster.calls_in_a_pass[uid, cluster.passes[uid]] += 1
        return await call(first, *rest)

    return counted


@pytest.mark.case("T5")
@pytest.mark.parametrize("slow_looks", [True, False], ids=["everything is slow", "calls are slow"])
async def test_other_jobs_keep_moving_and_calls_do_not_pile_up(tmp_path: Path, slow_looks: bool) -> None:
    slowness = Slowness()
    clusters = {
        "slow": Cluster(tmp_path / "slow", slowness, slow_looks=slow_looks),
        "well": Cluster(tmp_path / "well", None),
    }
    store, began = MemoryStore(), time.monotonic()
    client = Client(store, "person ann")
    for number in range(JOBS):
        for name in clusters:
            spec = Spec(command=("sh", "-c", f"echo {name}{number} >>{tmp_path / 'lines'}"))
            await client.submit(f"{name}{number}", spec, Plan(rules=(AGAIN,)), scheduler=name)
    janitor = asyncio.ensure_future(Janitor(store, clusters, period_seconds=0.5).run())
    try:
        async with asyncio.timeout(120):
            await settled(store, "well")  # while the other is slow: it is for as long as this takes
            moved_after = time.monotonic() - began
            while time.monotonic() - began < LASTS_SECONDS:
                await asyncio.sleep(0.05)
            while_slow = await store.jobs(settled=False, key_prefix="slow")
            slowness.over.set()
            await settled(store, "slow")
    finally:
        slowness.over.set()
        janitor.cancel()
        await asyncio.gather(janitor, return_exceptions=True)
        for cluster in clusters.values():
            await cluster.close()
    records = [job.record for job in await store.jobs()]
    uids = {record.uid for record in records if record is not None and record.scheduler == "slow"}
    of_one = max(slowness.most[uid] for uid in uids)
    in_a_pass = max(clusters["slow"].calls_in_a_pass.values())
    print(
        f"\nin ten minutes: {slowness.made['all jobs']} calls and {slowness.made['looks']} looks for {JOBS} jobs; under"
        f" way at once: {of_one} of one job, {slowness.most['all jobs']} of all, {slowness.most['looks']} looks;"
        f" {in_a_pass} calls a pass at most; {len(while_slow)} jobs unsettled when it was over; the other scheduler's"
        f" jobs were settled after {moved_after * SCALE:.0f} s"
    )
    assert of_one <= 3, "those that were given up pile up"
    assert slowness.most["all jobs"] <= THREADS
    assert slowness.most["looks"] <= 1
    assert in_a_pass <= 1
    assert sorted((tmp_path / "lines").read_text().split()) == sorted(f"{n}{i}" for n in clusters for i in range(JOBS))
    for record in records:
        assert record is not None
        assert record.outcome is not None
        assert record.outcome.result is Result.SUCCEEDED
        for submission in record.submissions:
            counted = [attempt for attempt in submission.attempts if not is_late(attempt)]
            assert len(counted) <= ATTEMPTS


async def settled(store: MemoryStore, prefix: str) -> None:
    while await store.jobs(settled=False, key_prefix=prefix):
        await asyncio.sleep(0.05)
