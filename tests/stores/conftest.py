"""The stores under test: every conformance test runs on each of them."""

import asyncio
import shutil
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dispatch_core.stores.contract import Store
from dispatch_core.stores.migrations import upgrade
from tests.postgres import PostgresServer
from tests.stores.databases import Database, InMemory, OnPostgres, OnSqlite, Shelf, administer


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many tries as always, sooner after each other."""
    monkeypatch.setattr("dispatch_core.stores.sql.PAUSES", (0.01, 0.02, 0.04))


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the tables in it, to copy."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    asyncio.run(upgrade(f"sqlite:///{path}"))
    return path


@pytest.fixture(scope="session")
def shelf(postgres_server: PostgresServer) -> Shelf:
    """PostgreSQL databases with the tables in them."""
    template = f"dispatch_{uuid.uuid4().hex[:8]}"  # another folder of tests may have a shelf on the same server
    asyncio.run(administer(postgres_server, f"CREATE DATABASE {template}"))
    asyncio.run(upgrade(postgres_server.url(template)))
    return Shelf(postgres_server, template)


@pytest.fixture
async def sqlite(sqlite_template: Path, tmp_path: Path) -> AsyncIterator[OnSqlite]:
    path = tmp_path / "jobs.db"
    shutil.copy(sqlite_template, path)
    database = OnSqlite(path)
    yield database
    await database.end()


@pytest.fixture
async def postgresql(shelf: Shelf) -> AsyncIterator[OnPostgres]:
    database = await OnPostgres.make(shelf)
    yield database
    await database.end()


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> Database:
    """One database of each kind, empty."""
    return InMemory() if request.param == "memory" else request.getfixturevalue(request.param)


@pytest.fixture(params=["sqlite", "postgresql"])
def breakable(request: pytest.FixtureRequest) -> OnSqlite | OnPostgres:
    """One database of each kind whose connections can be broken."""
    return request.getfixturevalue(request.param)


@pytest.fixture
async def store(database: Database) -> Store:
    return await database.open()
