"""A database that is ended with -9 in mid-load and started again, several times: what it said that it committed stays.

The servers here keep their promises to the disk as a real one does, unlike those of the other tests, and belong to one
test each.
"""

import asyncio
import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import msgspec
import pytest

from dispatch_core.errors import CommitUnknown, Conflict, StoreUnavailable
from dispatch_core.record import Record
from dispatch_core.stores.sql import SqlStore, open_store
from tests import mariadb, postgres
from tests.mariadb import MariadbServer
from tests.postgres import PostgresServer
from tests.stores.databases import MariadbShelf, PostgresShelf
from tests.stores.records import commit_id, committed, created, fresh, held

RECORDS = 12
WRITERS = 8


@pytest.fixture(params=["postgresql", "mariadb"])
def durable(request: pytest.FixtureRequest) -> Iterator[PostgresServer | MariadbServer]:
    """A server of its own, which loses nothing that it acknowledged."""
    with ExitStack() as stack:
        if request.param == "postgresql":
            if (programs := postgres.binaries()) is None:
                pytest.skip("PostgreSQL's server is not installed: apt-get install postgresql-15")
            yield stack.enter_context(postgres.running(programs, durable=True, in_memory=True))
        else:
            if (program := mariadb.program()) is None:
                pytest.skip("MariaDB's server is not installed: apt-get install mariadb-server-core")
            yield stack.enter_context(mariadb.running(program, durable=True, in_memory=True))


@dataclass
class Load:
    """Writers that commit to a few records all the time, and remember what they were told."""

    stores: list[SqlStore]
    acknowledged: list[Record] = field(default_factory=list)
    unknown: list[Record] = field(default_factory=list)
    """As they were to be written, with the id of their commit."""
    refused: int = 0
    """How often the store was not there, and said so."""

    async def write(self, number: int) -> None:
        """Until it is cancelled. Each commit leaves its own id in the record, as the one who asks for a hold."""
        store, chance = self.stores[number % len(self.stores)], random.Random(number)
        while True:
            key, commit = f"job {chance.randrange(RECORDS)}", commit_id()
            try:
                read = await store.read(key)
                changed = held(read, commit)
                self.acknowledged.append(await committed(store, changed, commit=commit))
            except Conflict:
                continue
            except CommitUnknown:
                self.unknown.append(msgspec.structs.replace(changed, commit=commit))
            except StoreUnavailable:
                self.refused += 1
                await asyncio.sleep(0.05)


async def whole(store: SqlStore, key: str) -> dict[str, int]:
    """The commits of a job, checked against its record: each there once, none skipped, none half done."""
    record, changes = await store.read(key), await store.history(key)
    assert [change.revision for change in changes] == list(range(1, record.revision + 1))
    assert changes[-1].commit == record.commit
    ids = {change.commit: change.revision for change in changes}
    assert len(ids) == len(changes)
    assert [hold.asked_by for hold in record.holds] == [change.commit for change in changes[1:]]
    return ids


async def more(load: Load, writers: list[asyncio.Task[None]]) -> None:
    """Until twenty more commits were acknowledged."""
    enough = len(load.acknowledged) + 20
    async with asyncio.timeout(60):
        while len(load.acknowledged) < enough:
            await asyncio.sleep(0.01)
            assert not any(writer.done() for writer in writers)


async def settle_unknown(store: SqlStore, asked: Record) -> None:
    """One whose commit is unknown asks again by its id, twice: it landed or it did not, and that is what it is told."""
    landed = asked.commit in await whole(store, asked.key)
    for _ in range(2):
        try:
            written = await store.commit(
                asked, against=asked.revision, commit=asked.commit, actor="supervisor", lines=("again",)
            )
            landed = True
            assert written.revision == asked.revision + 1
        except Conflict:
            assert not landed
    assert (asked.commit in await whole(store, asked.key)) == landed


async def crashes(server: PostgresServer | MariadbServer, times: int, seconds: float) -> None:
    """Load, and as often a server that dies at a moment of its own; then every record against what was told."""
    shelf = PostgresShelf(server, "jobs") if isinstance(server, PostgresServer) else MariadbShelf(server, "jobs")
    url = server.url(await shelf.take())
    load, chance = Load([open_store(url), open_store(url)]), random.Random()
    for number in range(RECORDS):
        await created(load.stores[0], fresh(f"job {number}"))
    writers = [asyncio.create_task(load.write(number)) for number in range(WRITERS)]
    for _ in range(times):
        await more(load, writers)
        await asyncio.sleep(chance.uniform(0, seconds))
        trouble = load.refused + len(load.unknown)
        server.crash()
        async with asyncio.timeout(60):
            while load.refused + len(load.unknown) == trouble:
                await asyncio.sleep(0.01)
        await asyncio.to_thread(server.start)
    await more(load, writers)
    for writer in writers:
        writer.cancel()
    ends = await asyncio.gather(*writers, return_exceptions=True)
    assert [end for end in ends if not isinstance(end, asyncio.CancelledError)] == []

    store = open_store(url)
    ids = {f"job {number}": await whole(store, f"job {number}") for number in range(RECORDS)}
    lost = [record for record in load.acknowledged if ids[record.key].get(record.commit) != record.revision]
    assert lost == []
    for asked in load.unknown:
        await settle_unknown(store, asked)
    for each in (store, *load.stores):
        await each.close()


@pytest.mark.promise("C5")
@pytest.mark.case("T50")
async def test_a_server_that_dies_in_mid_load_loses_nothing(durable: PostgresServer | MariadbServer) -> None:
    await crashes(durable, 2, 0.2)


@pytest.mark.long
@pytest.mark.promise("C5")
async def test_a_server_that_dies_again_and_again_loses_nothing(durable: PostgresServer | MariadbServer) -> None:
    await crashes(durable, 25, 1.5)
