"""The store on Airflow's own database engine, as the API server has it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from airflow import settings
from airflow.settings import create_async_metadata_engine
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from airflow_provider import plugin
from dispatch_core.errors import Conflict, Displaced, StoreUnavailable
from dispatch_core.stores.migrations import upgrade
from dispatch_core.stores.sql import SqlStore
from tests.postgres import PostgresServer
from tests.stores.records import committed, created, fresh, held, keep_trying, settled

# As Airflow makes it of its defaults.
POOL = {"pool_size": 5, "pool_recycle": 1800, "pool_pre_ping": True, "max_overflow": 10}

WRITERS, COMMITS = 12, 3


@pytest.fixture(params=["sqlite", "postgresql"])
async def airflows(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[AsyncEngine]:
    """Airflow's asynchronous engine, on a database with our tables."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'airflow.db'}"
        made = create_async_metadata_engine(url.replace("sqlite:", "sqlite+aiosqlite:"), connect_args={})
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        maker = create_async_metadata_engine(
            server.url("postgres").replace("postgresql:", "postgresql+asyncpg:"), connect_args={}
        )
        async with maker.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            await connection.execute(text("DROP DATABASE IF EXISTS plugins"))
            await connection.execute(text("CREATE DATABASE plugins"))
        await maker.dispose()
        url = server.url("plugins")
        made = create_async_metadata_engine(
            url.replace("postgresql:", "postgresql+asyncpg:"), connect_args={}, engine_args=POOL
        )
    await upgrade(url)
    monkeypatch.setattr(settings, "async_engine", made)
    yield made
    await made.dispose()


@pytest.fixture
async def stores(airflows: AsyncEngine) -> AsyncIterator[list[SqlStore]]:
    """Two, as two API servers would have."""
    opened = [plugin.open_metadata_store() for _ in range(2)]
    yield opened
    for store in opened:
        await store.close()


@pytest.mark.promise("C1")
async def test_many_writers_lose_nothing(stores: list[SqlStore]) -> None:
    record = await created(stores[0])

    async def write(number: int) -> int:
        store = stores[number % 2]
        return sum([await keep_trying(store, record.key, lambda read: held(read, str(number))) for _ in range(COMMITS)])

    conflicts = sum(await asyncio.gather(*(write(number) for number in range(WRITERS))))
    assert conflicts > 0, "no two writers met"
    last = await stores[1].read(record.key)
    assert last.revision == 1 + WRITERS * COMMITS == len(await stores[0].history(record.key))
    assert len(last.holds) == WRITERS * COMMITS


@pytest.mark.promise("C2")
async def test_a_job_lives_its_life(stores: list[SqlStore]) -> None:
    one, two = stores
    record = await created(one)
    lease = await one.acquire(record, "one", 60)
    later = await committed(one, held(record, "ada"), lease=lease)
    with pytest.raises(Conflict):
        await committed(two, held(record, "stale"))
    await two.release(lease)
    await two.acquire(record, "two", 60)
    with pytest.raises(Displaced):
        await committed(one, held(later, "ada"), lease=lease)
    last = await committed(two, settled(later))
    new = await two.create(fresh(), commit="new", actor="x", new=True)
    assert await one.read(record.key, record.uid) == last
    assert [row.record for row in await one.jobs()] == [new]
    assert await one.revision(new.key, new.uid) == 1


async def test_airflows_engine_is_left_as_it_was(airflows: AsyncEngine) -> None:
    """Its own sessions begin transactions as before, with their own isolation."""
    store = plugin.open_metadata_store()
    await created(store)
    async with airflows.connect() as connection:
        rows = await connection.execute(text("SELECT count(*) FROM dispatch_job"))
        assert rows.scalar() == 1
        assert connection.in_transaction()
        await connection.execute(text("DELETE FROM dispatch_history"))
        await connection.rollback()
    assert len(await store.history("nightly/train")) == 1
    await store.close()


async def test_without_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "async_engine", None)
    with pytest.raises(StoreUnavailable, match="sql_alchemy_conn_async"):
        plugin.open_metadata_store()
