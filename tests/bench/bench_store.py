"""What a call costs, store by store: `python -m tests.bench.bench_store [commits]`; `bench_commit` is the closer look.

Everything is measured in this one run on this one machine, and only the ratios mean anything elsewhere. Each number is
the best of three, since what disturbs a measurement only ever makes it slower.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dispatch_core.record import Record
from dispatch_core.stores.contract import Store
from dispatch_core.stores.memory import MemoryStore
from dispatch_core.stores.migrations import upgrade
from dispatch_core.stores.sql import open_store
from tests import mariadb, postgres
from tests.stores.databases import MariadbShelf
from tests.stores.records import commit_id, committed, created, fresh, held, keep_trying

WRITERS = 20
ROUNDS = 3

Measure = Callable[[Store, int], Awaitable[float]]


def one_hold(record: Record) -> Record:
    """A change that leaves the record as long as it was."""
    return held(
        Record(
            key=record.key,
            uid=record.uid,
            scheduler=record.scheduler,
            spec=record.spec,
            plan=record.plan,
            revision=record.revision,
        ),
        "bench",
    )


async def one_writer(store: Store, commits: int) -> float:
    """Seconds a commit, one after the other."""
    record = await created(store, fresh(commit_id()))
    began = time.perf_counter()
    for _ in range(commits):
        record = await committed(store, one_hold(record))
    return (time.perf_counter() - began) / commits


async def reads(store: Store, commits: int) -> float:
    """Seconds a read, one after the other."""
    record = await created(store, fresh(commit_id()))
    began = time.perf_counter()
    for _ in range(commits):
        await store.read(record.key)
    return (time.perf_counter() - began) / commits


async def own_keys(store: Store, commits: int) -> float:
    """Seconds a commit, twenty writers at once, each on a job of its own."""
    return await _twenty(store, commits, [(await created(store, fresh(commit_id()))).key for _ in range(WRITERS)])


async def one_key(store: Store, commits: int) -> float:
    """Seconds a commit, twenty writers at once on one job, who read again after every conflict."""
    return await _twenty(store, commits, [(await created(store, fresh(commit_id()))).key] * WRITERS)


async def _twenty(store: Store, commits: int, keys: list[str]) -> float:
    each = max(1, commits // WRITERS)

    async def write(key: str) -> None:
        for _ in range(each):
            await keep_trying(store, key, one_hold)

    began = time.perf_counter()
    await asyncio.gather(*map(write, keys))
    return (time.perf_counter() - began) / (each * WRITERS)


MEASURES: tuple[Measure, ...] = (reads, one_writer, own_keys, one_key)


async def measured(url: str | None, commits: int) -> list[float]:
    if url is not None:
        await upgrade(url)
    store: Store = MemoryStore() if url is None else open_store(url)
    best = [min([await measure(store, commits) for _ in range(ROUNDS)]) for measure in MEASURES]
    await store.close()
    return best


@contextmanager
def databases() -> Iterator[dict[str, str | None]]:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        found: dict[str, str | None] = {"memory": None, "sqlite": f"sqlite:///{Path(folder) / 'jobs.db'}"}
        if (programs := postgres.binaries()) is not None:
            found["postgresql"] = stack.enter_context(postgres.running(programs)).url("postgres")
        if (program := mariadb.program()) is not None:
            server = stack.enter_context(mariadb.running(program))
            found["mariadb"] = server.url(asyncio.run(MariadbShelf(server, "bench").take()))
        yield found


def main(commits: int) -> None:
    with databases() as urls:
        results = {name: asyncio.run(measured(url, commits)) for name, url in urls.items()}
    lines = [f"{'ms a call':<12}" + "".join(f"{measure.__name__:>12}" for measure in MEASURES)]
    lines += [f"{name:<12}" + "".join(f"{seconds * 1000:12.3f}" for seconds in row) for name, row in results.items()]
    lines += ["", "ratios"]
    for name, (read, alone, own, shared) in results.items():
        lines.append(
            f"{name}: a commit costs {alone / read:.1f} reads; twenty writers on one key take {shared / own:.1f}"
            f" times as long as on keys of their own; {alone / own:.1f} times as fast together as alone"
        )
    lines += [
        f"{name} to memory: a commit {row[1] / results['memory'][1]:.0f}, a read {row[0] / results['memory'][0]:.0f}"
        for name, row in results.items()
        if name != "memory"
    ]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
