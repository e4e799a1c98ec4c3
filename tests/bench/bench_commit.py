"""A commit beside a bare `UPDATE ... WHERE revision`: `python -m tests.bench.bench_commit [commits] [rounds]`.

The bare UPDATE writes a row of the same size through the same engine and pool, in a transaction of its own, at the same
durability; ours adds the history row, the lease check, and that it could be read back. Beside them the driver alone,
one UPDATE a transaction. The three take turns in rounds, so that what disturbs the machine disturbs each of them; the
medians are shown. Servers sync every commit: first in a folder on disk, then in one in memory, where syncing is free
and only our own work counts.
"""

import asyncio
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiomysql
import asyncpg
from sqlalchemy import bindparam, make_url, update

from dispatch_core.plan import Action, Plan, Rule, When
from dispatch_core.record import Record, encode
from dispatch_core.stores.migrations import upgrade
from dispatch_core.stores.schema import job
from dispatch_core.stores.sql import SqlStore, open_store
from tests import mariadb, postgres
from tests.stores.databases import MariadbShelf
from tests.stores.records import commit_id, created, fresh

Once = Callable[[], Awaitable[object]]

HOLDERS = ("the engine's bare UPDATE", "a commit", "the driver's UPDATE")


def typical(key: str) -> Record:
    """A record of usual size: about 2 KiB."""
    rules = tuple(Rule(name=f"rule {number}", when=When(message="x" * 200), do=Action.FAIL) for number in range(5))
    return fresh(key, command="y" * 500, plan=Plan(rules=rules))


async def ours(store: SqlStore, record: Record) -> Once:
    lease = await store.acquire(record, "supervisor one", 3600)
    newest = record

    async def once() -> None:
        nonlocal newest
        newest = await store.commit(
            newest,
            against=newest.revision,
            commit=commit_id(),
            actor="supervisor one",
            lines=("submission 1 is authorized: first",),
            lease=lease,
        )

    return once


async def bare(store: SqlStore, record: Record) -> Once:
    document, revision = encode(record).decode(), record.revision
    mine = (job.c.uid == bindparam("mine")) & (job.c.revision == bindparam("against"))
    statement = update(job).where(mine).values(revision=bindparam("next"), document=bindparam("text"))

    async def once() -> None:
        nonlocal revision
        async with store._writer.connect() as connection:
            given = {"mine": record.uid, "against": revision, "next": revision + 1, "text": document}
            done = await connection.execute(statement, given)
            assert done.rowcount == 1
            await connection.commit()
        revision += 1

    return once


RAW = "UPDATE dispatch_job SET revision = {0}, document = {1} WHERE uid = {2} AND revision = {3}"


@asynccontextmanager
async def driver(url: str) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    """Execute one statement, which is a transaction."""
    where = make_url(url)
    if where.get_backend_name() == "postgresql":
        lines = await asyncpg.connect(url)
        yield lambda *values: lines.execute(RAW.format("$1", "$2", "$3", "$4"), *values)
        await lines.close()
    elif where.get_backend_name() == "mariadb":
        line = await aiomysql.connect(
            host=where.host, port=where.port, user=where.username, db=where.database, autocommit=True
        )
        async with line.cursor() as cursor:
            yield lambda *values: cursor.execute(RAW.format(*["%s"] * 4), values)
        await line.ensure_closed()
    else:
        file = sqlite3.connect(str(where.database), isolation_level=None)
        file.execute("PRAGMA synchronous=FULL")

        async def execute(*values: object) -> None:
            file.execute(RAW.format(*"????"), values)

        yield execute
        file.close()


async def alone(execute: Callable[..., Awaitable[Any]], record: Record) -> Once:
    document, revision = encode(record).decode(), record.revision

    async def once() -> None:
        nonlocal revision
        await execute(revision + 1, document, record.uid, revision)
        revision += 1

    return once


async def measured(url: str, commits: int, rounds: int) -> list[float]:
    """Calls a second of each of the three, the median of the rounds."""
    await upgrade(url)
    store = open_store(url)
    async with driver(url) as execute:
        records = [await created(store, typical(f"job {number}")) for number in range(3)]
        calls = [await bare(store, records[0]), await ours(store, records[1]), await alone(execute, records[2])]
        found: list[list[float]] = [[] for _ in calls]
        for turn in range(rounds + 1):
            for place in range(3):
                which = (place + turn) % 3
                began = time.perf_counter()
                for _ in range(commits):
                    await calls[which]()
                if turn:  # the first warms up
                    found[which].append(commits / (time.perf_counter() - began))
    await store.close()
    return [statistics.median(each) for each in found]


@contextmanager
def databases(in_memory: bool) -> Iterator[dict[str, str]]:
    with ExitStack() as stack:
        memory = "/dev/shm" if in_memory else None  # noqa: S108 - a folder of our own in it
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=memory))
        found = {"sqlite": f"sqlite:///{Path(folder) / 'jobs.db'}"}
        if (programs := postgres.binaries()) is not None:
            server = stack.enter_context(postgres.running(programs, durable=True, in_memory=in_memory))
            found["postgresql"] = server.url("postgres")
        if (program := mariadb.program()) is not None:
            other = stack.enter_context(mariadb.running(program, durable=True, in_memory=in_memory))
            found["mariadb"] = other.url(asyncio.run(MariadbShelf(other, "bench").take()))
        yield found


def main(commits: int, rounds: int) -> None:
    for in_memory in (False, True):
        sys.stdout.write(f"\n{'in memory' if in_memory else 'on disk'}, calls a second\n")
        sys.stdout.write(f"{'':<12}" + "".join(f"{name:>26}" for name in HOLDERS) + f"{'commit to bare':>16}\n")
        with databases(in_memory) as urls:
            for name, url in urls.items():
                rates = asyncio.run(measured(url, commits, rounds))
                row = "".join(f"{rate:26.0f}" for rate in rates)
                sys.stdout.write(f"{name:<12}{row}{rates[1] / rates[0]:16.2f}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    main(*[*given, *(100, 9)[len(given) :]])
