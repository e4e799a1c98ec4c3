"""What thousands of jobs on one Slurm cost: `python -m tests.bench.bench_slurm [JOBS]`, as root.

A cluster of its own is started. One job is supervised for a minute, then JOBS of them (3,000 unless said), all but a
dozen held; printed are the commands that the controller's host was sent in a minute, how long a listing took, and what
the supervising process used. The ratio of the two minutes is the figure: the rest is this machine's.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import tempfile
import time
from pathlib import Path

from dispatch_core.adapters.slurm.cluster import SlurmCluster
from dispatch_core.adapters.slurm.scheduler import SlurmScheduler
from dispatch_core.adapters.slurm.transport import LocalTransport
from dispatch_core.client import Client
from dispatch_core.plan import Plan, Spec
from dispatch_core.stores.migrations import upgrade
from dispatch_core.stores.sql import open_store
from dispatch_core.supervisor import Supervisor
from tests.slurm.cluster import Cluster, Job, Options, running

MINUTE = 60.0
RUNNING = 12
SPEC = Spec(command=("sleep", "3600"), options={"tasks": 1})


async def measured(scheduler: SlurmScheduler, jobs: int) -> dict[str, float]:
    """One minute of a process that has nothing to do but wait."""
    commands, cpu, began = scheduler.commands, time.process_time(), time.monotonic()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    await asyncio.sleep(MINUTE)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    minutes = (time.monotonic() - began) / 60.0
    spent = after.ru_utime + after.ru_stime - children.ru_utime - children.ru_stime
    return {
        "jobs": jobs,
        "commands a minute": (scheduler.commands - commands) / minutes,
        "seconds of a listing": scheduler.listing_seconds,
        "cpu of the process, %": (time.process_time() - cpu) / minutes / 0.6,
        "cpu of its commands, %": spent / minutes / 0.6,
        "memory, MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0,
    }


async def bench(cluster: Cluster, folder: Path, many: int) -> list[dict[str, float]]:
    settings = SlurmCluster(name="bench", directory=str(folder / "home"), submits_per_second=1000.0)
    scheduler = SlurmScheduler(settings, LocalTransport(cluster.env | {"HOME": str(folder)}))
    await upgrade(f"sqlite:///{folder}/jobs.db")
    store = open_store(f"sqlite:///{folder}/jobs.db")
    client, supervisor = Client(store, who="bench"), Supervisor(store, scheduler)
    tasks: list[asyncio.Task[object]] = []
    rows = []
    for total in (1, many):
        began = time.monotonic()
        for number in range(len(tasks), total):
            key = f"job-{number}"
            await client.submit(key, SPEC, Plan(), scheduler="bench")
            if number >= RUNNING:
                await client.hold(key, reason="to be many")
            tasks.append(asyncio.create_task(supervisor.attend(key)))
        while len(cluster_jobs := await asyncio.to_thread(cluster.jobs)) < total or not settled(cluster_jobs):
            await asyncio.sleep(2.0)
        print(f"{total} jobs are there after {time.monotonic() - began:.0f} s", file=sys.stderr)
        await asyncio.sleep(90.0)
        rows.append(await measured(scheduler, total))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await scheduler.close()
    await store.close()
    return rows


def settled(jobs: list[Job]) -> bool:
    return sum(job.state == "RUNNING" for job in jobs) >= min(RUNNING, len(jobs))


def main() -> None:
    many = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
    with running(Options()) as cluster, tempfile.TemporaryDirectory(prefix="bench-", dir=cluster.work) as folder:
        one, all_of_them = asyncio.run(bench(cluster, Path(folder), many))
    for name in one:
        ratio = all_of_them[name] / one[name] if one[name] else float("nan")
        print(f"{name:>24} {one[name]:10.2f} {all_of_them[name]:10.2f}   x {ratio:.1f}")


if __name__ == "__main__":
    main()
