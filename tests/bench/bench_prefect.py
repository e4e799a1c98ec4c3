"""What a thousand waits cost one flow's process: `python -m tests.bench.bench_prefect [jobs] [seconds]`.

A real Prefect server, and flows in processes of their own; all jobs are submitted to one local spool beforehand, where
a few run and the others wait. `watched`: the flow awaits every job with `dispatch_job`. `polled`: the flow has a task
for each job that starts a program every 5 s, as `squeue -j` is started by a task that was written by hand. Printed of
each, over the same time once all waits have begun: listings or programs, processor time of the flow's process and of
the programs that it has started and waited for, and its resident memory. The jobs are not counted: whoever launches
them, they are nobody's children.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

POLL_SECONDS = 5.0
ENDS = 'while [ -d "$0" ]; do sleep 5; done'
"""A job, which is over once the bench's folder is gone."""


def command(folder: Path) -> tuple[str, ...]:
    return ("sh", "-c", ENDS, str(folder))


async def written(jobs: int, folder: Path) -> None:
    """Records of jobs that nobody has launched."""
    from dispatch_core.client import Client
    from dispatch_core.plan import Plan, Spec
    from dispatch_core.stores.migrations import upgrade
    from dispatch_core.stores.sql import open_store

    url = f"sqlite:///{folder / 'jobs.db'}"
    await upgrade(url)
    store = open_store(url)
    client = Client(store, "bench")
    for number in range(jobs):
        await client.submit(f"job {number}", Spec(command=command(folder)), Plan(), scheduler="local")
    await store.close()


def processor() -> tuple[float, float]:
    """Seconds of this process, and of its programs that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time(), children.ru_utime + children.ru_stime


def inside(kind: str, jobs: int, seconds: float, folder: Path) -> None:
    """The flow, in the engine's environment; ends its process, and the jobs are left as they are."""
    from prefect import flow, task
    from prefect.cache_policies import NO_CACHE

    from dispatch_core import places
    from dispatch_core.adapters.contract import Job
    from dispatch_core.adapters.local.scheduler import LocalScheduler
    from prefect_collection.blocks import DispatchStore
    from prefect_collection.tasks import dispatch_job

    opened: list[LocalScheduler] = []
    open_cluster = places.open_cluster

    def counted(cluster: Any) -> Any:
        made = open_cluster(cluster)
        opened.append(made)  # type: ignore[arg-type]
        return made

    places.open_cluster = counted
    begun: set[int] = set()
    polls = [0]

    @task(cache_policy=NO_CACHE)
    async def poll(number: int) -> None:
        while True:
            program = await asyncio.create_subprocess_exec("sh", "-c", ":")
            await program.wait()
            polls[0] += 1
            begun.add(number)
            await asyncio.sleep(POLL_SECONDS)

    def listings() -> int:
        return polls[0] if kind == "polled" else sum(one.listings for one in opened)

    async def measured() -> None:
        while len(begun) < jobs:
            await asyncio.sleep(0.2)
        await asyncio.sleep(20)  # what the beginning left over
        before, (own, childrens), at = listings(), processor(), time.monotonic()
        await asyncio.sleep(seconds)
        taken = time.monotonic() - at
        own_after, childrens_after = processor()
        status = Path("/proc/self/status").read_text()  # noqa: ASYNC240 - it is in memory
        rss = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
        told = {
            "seconds": taken,
            "listings": listings() - before,
            "own": own_after - own,
            "children": childrens_after - childrens,
            "rss": int(rss) / 1024,
            "most": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        (folder / f"{kind}.json").write_text(json.dumps(told))
        os._exit(0)

    @flow(log_prints=False)
    async def waits() -> None:
        store = DispatchStore(url=f"sqlite:///{folder / 'jobs.db'}", spool=folder / "spool")
        measuring = asyncio.ensure_future(measured())
        if kind == "polled":
            await asyncio.gather(*(poll(number) for number in range(jobs)))
        else:
            find = LocalScheduler.watch

            async def watch(self: LocalScheduler, job: Job, most: float) -> None:
                begun.add(int(job.key.partition(" ")[2]))
                await find(self, job, most)

            LocalScheduler.watch = watch  # type: ignore[method-assign]
            given: dict[str, Any] = {"command": list(command(folder)), "store": store, "across_runs": True}
            await asyncio.gather(*(dispatch_job(f"job {number}", **given) for number in range(jobs)))
        await measuring

    asyncio.run(waits())


def share(told: dict[str, float], whose: str) -> float:
    return 100 * told[whose] / told["seconds"]


def main(jobs: int, seconds: float) -> None:
    from dispatch_core.environments import make_environment
    from tests.prefect.server import Prefect

    with tempfile.TemporaryDirectory(prefix="dispatch-bench-") as name:
        home = Path(name)
        asyncio.run(written(jobs, home))
        prefect = Prefect(make_environment("prefect"), home)
        prefect.env["PREFECT_LOGGING_TO_API_ENABLED"] = "false"
        prefect.env["PREFECT_LOGGING_LEVEL"] = "ERROR"
        with prefect.server():
            for kind in ("watched", "polled"):
                words = ("-m", "tests.bench.bench_prefect", kind, str(jobs), str(seconds), str(home))
                ran = prefect.run(prefect.environment.python, *words, seconds=1800)
                if ran.returncode:
                    sys.exit(ran.stderr[-2000:])
                told = json.loads((home / f"{kind}.json").read_text())
                sys.stdout.write(
                    f"{jobs} jobs {kind} for {told['seconds']:.0f} s: {told['listings']} looks at the scheduler,"
                    f" {share(told, 'own'):.1f} % of a processor and {share(told, 'children'):.1f} % in its programs,"
                    f" {told['rss']:.0f} MB (at most {told['most']:.0f})\n"
                )
                sys.stdout.flush()


if __name__ == "__main__":
    if len(sys.argv) == 5:
        inside(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4]))
    else:
        main(*(int(told) for told in (*sys.argv[1:], *("1000", "60")[len(sys.argv) - 1 :])))
