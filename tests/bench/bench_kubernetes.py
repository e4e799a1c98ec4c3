"""What thousands of jobs in one namespace of Kubernetes cost: `python -m tests.bench.bench_kubernetes [JOBS]`.

The API server of the tests runs in a process of its own. One job is supervised for a minute, then JOBS of them (5,000
unless said), all running; printed are the requests that the server was sent in a minute, by what they ask, how many
streams there were, how long a listing took, and what the supervising process used. The ratio of the two minutes is the
figure: the rest is this machine's.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from dispatch_core.adapters.kubernetes.cluster import KubernetesCluster
from dispatch_core.adapters.kubernetes.scheduler import KubernetesScheduler
from dispatch_core.adapters.kubernetes.transport import Answered, Api
from dispatch_core.client import Client
from dispatch_core.plan import Plan, Spec
from dispatch_core.stores.memory import MemoryStore
from dispatch_core.supervisor import Supervisor
from tests.kubernetes.rig import kubeconfig
from tests.kubernetes.server import ApiServer
from tests.kubernetes.server.controllers.programs import Played

MINUTE = 60.0
IMAGE = "registry.example/bench:1"
SPEC = Spec(command=("run",), options={"image": IMAGE})
AT_ONCE = 500
"""Jobs that are launched at the same time: how fast they come is not the question."""


class Counting(Api):
    """Counts what it is asked for."""

    def __init__(self, cluster: KubernetesCluster) -> None:
        super().__init__(cluster)
        self.counts: Counter[str] = Counter()
        self.streams = 0
        self.most_streams = 0

    async def request(self, method: str, path: str, *args: Any, **options: Any) -> Answered:
        plural = path.split("/namespaces/")[-1].split("/")[1] if "/namespaces/" in path else path
        self.counts[f"{method} {plural}"] += 1
        return await super().request(method, path, *args, **options)

    async def lines(self, path: str, query: Any, silent_seconds: float) -> AsyncIterator[bytes]:
        self.counts["watches begun"] += 1
        self.streams += 1
        self.most_streams = max(self.most_streams, self.streams)
        try:
            async for line in super().lines(path, query, silent_seconds):
                yield line
        finally:
            self.streams -= 1


async def serve(folder: Path) -> None:
    """Until it is ended from outside."""
    async with ApiServer() as server:
        server.store.keep = 1_000_000
        server.node.programs[IMAGE] = Played
        gc.freeze()
        (folder / "url.new").write_text(server.url)
        (folder / "url.new").rename(folder / "url")
        while True:
            await asyncio.sleep(0.2)
            seen, server.requests[:] = server.requests[-1000:], []
            del seen


async def measured(scheduler: KubernetesScheduler, api: Counting, jobs: int) -> dict[str, float]:
    """One minute of a process that has nothing to do but wait."""
    api.counts.clear()
    listings, cpu, began = scheduler.listings, time.process_time(), time.monotonic()
    await asyncio.sleep(MINUTE)
    minutes = (time.monotonic() - began) / 60.0
    counts = {f"{name} a minute": count / minutes for name, count in sorted(api.counts.items())}
    return {
        "jobs": jobs,
        "listings a minute": (scheduler.listings - listings) / minutes,
        **counts,
        "requests a minute": sum(api.counts.values()) / minutes,
        "streams at a time": api.most_streams,
        "seconds of a listing": scheduler.lister.seconds,
        "cpu of the process, %": (time.process_time() - cpu) / minutes / 0.6,
        "memory, MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0,
    }


async def bench(url: str, folder: Path, many: int) -> list[dict[str, float]]:
    cluster = KubernetesCluster(name="bench", kubeconfig=str(kubeconfig(url, folder)), proxy_seconds=0.0)
    scheduler = KubernetesScheduler(cluster)
    api = Counting(cluster)
    scheduler.api = scheduler.lister._api = scheduler.calls._api = api
    for stream in scheduler._streams:
        stream._api = api
    store = MemoryStore()
    client, supervisor = Client(store, who="bench"), Supervisor(store, scheduler)
    attending: list[asyncio.Task[object]] = []
    waited_for: list[str] = []
    rows = []
    for total in (1, many):
        began = time.monotonic()
        while len(attending) < total:
            for number in range(len(attending), min(total, len(attending) + AT_ONCE)):
                await client.submit(f"job-{number}", SPEC, Plan(), scheduler="bench")
                attending.append(asyncio.create_task(supervisor.attend(f"job-{number}")))
                waited_for.append(f"job-{number}")
            while waited_for:
                waited_for = [key for key in waited_for if not await runs(store, key)]
                await asyncio.sleep(0.2)
        print(f"{total} jobs run after {time.monotonic() - began:.0f} s", file=sys.stderr)
        await asyncio.sleep(30.0)
        rows.append(await measured(scheduler, api, total))
    for one in attending:
        one.cancel()
    await asyncio.gather(*attending, return_exceptions=True)
    await scheduler.close()
    return rows


async def runs(store: MemoryStore, key: str) -> bool:
    return any(object.state == "running" for object in (await store.read(key)).objects)


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(serve(Path(sys.argv[2])))
        return
    many = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        server = subprocess.Popen([sys.executable, "-m", "tests.bench.bench_kubernetes", "serve", name])
        try:
            while not (folder / "url").exists():
                time.sleep(0.1)
            one, all_of_them = asyncio.run(bench((folder / "url").read_text(), folder, many))
        finally:
            server.terminate()
            server.wait()
    for name in dict.fromkeys((*one, *all_of_them)):
        before, after = one.get(name, 0.0), all_of_them.get(name, 0.0)
        print(f"{name:>28} {before:10.2f} {after:10.2f}   x {after / before if before else float('nan'):.1f}")


if __name__ == "__main__":
    main()
