"""What many waits in one event loop cost it: `python -m tests.bench.bench_waits [jobs] [snapshots]`.

Every job watches through the snapshots that adapters share, as a supervisor does; in each snapshot one job in a hundred
has changed, lists, and watches again. Printed: the lag of the loop (how much later than asked a short sleep ends) at
p50, p99 and at most, and the same while nothing changes.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

from dispatch_core.adapters.contract import Job
from dispatch_core.adapters.shared import Listings, Snapshot
from dispatch_core.evidence import Sighting
from dispatch_core.names import object_name
from dispatch_core.record import State

TICK_SECONDS = 0.005


class Cluster:
    """Objects of which some change from one snapshot to the next; a snapshot is made in a thread, as real ones are, and
    takes `slow_seconds` longer than it would."""

    def __init__(self, jobs: int, changing: int, slow_seconds: float = 0.0) -> None:
        self.ids = [f"{n:016x}" for n in range(jobs)]
        self.changing, self.slow_seconds = changing, slow_seconds
        self.turns = itertools.count()
        self.listings = Listings(self.take, 0.2)

    async def take(self) -> Snapshot:
        return await asyncio.to_thread(self._snapshot, next(self.turns))

    def _snapshot(self, turn: int) -> Snapshot:
        time.sleep(self.slow_seconds)
        first = turn * self.changing % len(self.ids)
        now = datetime.now(UTC)
        rows = []
        for number, id in enumerate(self.ids):
            state = State.RUNNING if first <= number < first + self.changing else State.PENDING
            rows.append(Sighting(id=id, name=object_name(id, 1, 1), key=f"job {number}", state=state))
        return Snapshot(now, now, rows)

    async def job(self, number: int) -> None:
        job = Job(key=f"job {number}", uid=self.ids[number], known=(self.ids[number],))
        while True:
            await self.listings.find(job)
            await self.listings.watch(job, 3600.0)


async def lag(until: asyncio.Event, clock: Callable[[], float]) -> list[float]:
    """How much later than asked each of many short sleeps ended; by a clock that counts work, how much was done."""
    found = []
    asked = TICK_SECONDS if clock is time.perf_counter else 0.0
    while not until.is_set():
        began = clock()
        await asyncio.sleep(TICK_SECONDS)
        found.append(clock() - began - asked)
    return found


async def measured(
    jobs: int, changing: int, snapshots: int, slow_seconds: float = 0.0, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    cluster = Cluster(jobs, changing, slow_seconds)
    work = [asyncio.ensure_future(cluster.job(number)) for number in range(jobs)]
    while cluster.listings.count < 3:
        await asyncio.sleep(0.01)
    over = asyncio.Event()
    measuring = asyncio.ensure_future(lag(over, clock))
    while cluster.listings.count < 3 + snapshots:
        await asyncio.sleep(0.01)
    over.set()
    found = await measuring
    for one in work:
        one.cancel()
    await asyncio.gather(*work, return_exceptions=True)
    await cluster.listings.close()
    return found


def main(jobs: int, snapshots: int) -> None:
    for changing in (0, jobs // 100):
        found = asyncio.run(measured(jobs, changing, snapshots))
        cuts = statistics.quantiles(found, n=100)
        sys.stdout.write(
            f"{jobs} waits, {changing} change in each of {snapshots} snapshots: loop lag"
            f" p50 {cuts[49] * 1000:.0f} ms, p99 {cuts[98] * 1000:.0f} ms, at most {max(found) * 1000:.0f} ms\n"
        )


if __name__ == "__main__":
    main(*(int(told) for told in (*sys.argv[1:], *("10000", "20")[len(sys.argv) - 1 :])))
