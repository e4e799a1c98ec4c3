"""No two calls of a store wait for each other in a circle: the servers count the deadlocks that they find.

And where one comes from outside, its victim tries again.
"""

import asyncio
import random
from collections import Counter
from contextlib import suppress

import pytest
from sqlalchemy import event, insert, update
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError

from dispatch_core.errors import Conflict, Displaced, KeyTaken, NotFound, Owned
from dispatch_core.record import Record
from dispatch_core.stores.contract import Lease
from dispatch_core.stores.schema import DatabaseTime, history, job
from dispatch_core.stores.sql import SqlStore
from tests.stores.databases import OnServer
from tests.stores.records import commit_id, committed, created, fresh, held, settled

ACTORS = 20
KEYS = 4


class Actor:
    """One that does anything to any record, in any order, as a supervisor, a person, a janitor or a cleaner would."""

    def __init__(self, store: SqlStore, number: int) -> None:
        self.store = store
        self.name = f"actor {number}"
        self.chance = random.Random(number)
        self.leases: dict[str, Lease] = {}
        self.done: Counter[str] = Counter()

    async def act(self, steps: int) -> None:
        ways: dict[str, int] = {"commit": 8, "acquire": 4, "renew": 4, "release": 3, "jobs": 2, "settle": 2, "prune": 1}
        for way in self.chance.choices(list(ways), list(ways.values()), k=steps):
            try:
                record = await self.take(f"job {self.chance.randrange(KEYS)}")
                if record.settled:
                    continue  # another was faster, and has ended it since
                await getattr(self, way)(record, self.leases.get(record.uid))
                self.done[way] += 1
            except (Conflict, Displaced, Owned, NotFound, KeyTaken) as refused:
                self.done[type(refused).__name__] += 1

    async def take(self, key: str) -> Record:
        """The newest record under a key; where there is none, or it is over, the next."""
        try:
            record = await self.store.read(key)
        except NotFound:
            return await created(self.store, fresh(key))
        return (
            record
            if not record.settled
            else await self.store.create(fresh(key), commit=commit_id(), actor=self.name, new=True)
        )

    async def commit(self, record: Record, lease: Lease | None) -> None:
        await committed(self.store, held(record, self.name), lease=lease)

    async def settle(self, record: Record, lease: Lease | None) -> None:
        await committed(self.store, settled(record), lease=lease)

    async def acquire(self, record: Record, lease: Lease | None) -> None:
        self.leases[record.uid] = await self.store.acquire(record, self.name, self.chance.choice([0.01, 5]))

    async def renew(self, record: Record, lease: Lease | None) -> None:
        if lease is not None:
            await self.store.renew(lease, 5)

    async def release(self, record: Record, lease: Lease | None) -> None:
        if lease is not None:
            await self.store.release(lease)

    async def jobs(self, record: Record, lease: Lease | None) -> None:
        await self.store.jobs(settled=self.chance.choice([None, True, False]))

    async def prune(self, record: Record, lease: Lease | None) -> None:
        newest = await self.store.jobs()
        if newest:
            await self.store.prune(max(row.updated for row in newest))


def listen(store: SqlStore, heard: list[str]) -> None:
    """Keep whatever the database says against a statement."""

    @event.listens_for(store._engine.sync_engine, "handle_error")
    def keep(context: ExceptionContext) -> None:
        heard.append(str(context.original_exception).lower())


async def hunt(server: OnServer, steps: int) -> None:
    before = await server.deadlocks()
    stores, heard = [await server.open(), await server.open()], list[str]()
    for store in stores:
        listen(store, heard)
    actors = [Actor(stores[number % 2], number) for number in range(ACTORS)]
    await asyncio.gather(*(actor.act(steps) for actor in actors))
    done: Counter[str] = Counter()
    for actor in actors:
        done += actor.done
    assert {"commit", "acquire", "renew", "release", "jobs", "settle", "prune", "Conflict", "Owned"} <= done.keys()
    for row in await stores[0].jobs():
        changes = await stores[0].history(row.key, row.uid)
        assert [change.revision for change in changes] == list(range(1, row.revision + 1))
    strays = await server.query("SELECT count(*) FROM dispatch_history WHERE uid NOT IN (SELECT uid FROM dispatch_job)")
    assert strays[0][0] == 0
    for store in stores:
        await store.close()  # PostgreSQL's connections hand their counts in when they end
    assert [words for words in heard if "deadlock" in words] == []
    assert await server.deadlocks() == before


@pytest.mark.case("T50")
async def test_none_among_twenty_actors_on_four_jobs(server: OnServer) -> None:
    await hunt(server, 25)


@pytest.mark.long
@pytest.mark.case("T50")
async def test_none_among_twenty_actors_for_long(server: OnServer) -> None:
    await hunt(server, 200)


@pytest.mark.case("T50")
async def test_a_victim_of_another_program_tries_again(server: OnServer) -> None:
    """The history row of the next revision is taken first, the job's row then: a circle. It is counted, so the counts
    above are not blind; and the commit lands once."""
    before = await server.deadlocks()
    store = await server.open()
    record = await created(store)
    stranger = (await server.open())._engine
    taken = {"uid": record.uid, "revision": 2, "commit_id": "theirs", "at": DatabaseTime(), "actor": "x", "lines": "[]"}
    async with stranger.connect() as connection:
        await connection.execute(insert(history).values(taken))
        commit = asyncio.create_task(committed(store, held(record, "ada"), commit="once"))
        await server.until_waiting()
        with suppress(DBAPIError):  # one of the two is the victim
            await connection.execute(update(job).where(job.c.uid == record.uid).values(result="x"))
        await connection.rollback()
    written = await commit
    assert (written.revision, written.commit) == (2, "once")
    assert await store.read(record.key) == written
    assert [change.commit for change in await store.history(record.key)] == [record.commit, "once"]
    await store.close()
    await stranger.dispose()
    assert await server.deadlocks() == before + 1
