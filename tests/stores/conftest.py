"""The stores under test: every conformance test runs on each of them."""

import asyncio
import shutil
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dispatch_core.stores.contract import Store
from dispatch_core.stores.migrations import upgrade
from tests.mariadb import MariadbServer
from tests.postgres import PostgresServer
from tests.stores.databases import (
    Database,
    InMemory,
    MariadbShelf,
    OnMariadb,
    OnPostgres,
    OnServer,
    OnSqlite,
    PostgresShelf,
)
from tests.stores.served import OnHttp


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many tries as always, sooner after each other."""
    for room in ("sql", "line"):
        monkeypatch.setattr(f"dispatch_core.stores.{room}.PAUSES", (0.01, 0.02, 0.04))


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the tables in it, to copy."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    asyncio.run(upgrade(f"sqlite:///{path}"))
    return path


def shelf_name() -> str:
    """Another folder of tests may have a shelf on the same server."""
    return f"dispatch_{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def postgres_shelf(postgres_server: PostgresServer) -> PostgresShelf:
    """PostgreSQL databases with the tables in them."""
    return PostgresShelf(postgres_server, shelf_name())


@pytest.fixture(scope="session")
def mariadb_shelf(mariadb_server: MariadbServer) -> MariadbShelf:
    """MariaDB databases with the tables in them."""
    return MariadbShelf(mariadb_server, shelf_name())


@pytest.fixture
async def sqlite(sqlite_template: Path, tmp_path: Path) -> AsyncIterator[OnSqlite]:
    path = tmp_path / "jobs.db"
    shutil.copy(sqlite_template, path)
    database = OnSqlite(path)
    yield database
    await database.end()


@pytest.fixture
async def postgresql(postgres_shelf: PostgresShelf) -> AsyncIterator[OnPostgres]:
    database = await OnPostgres.make(postgres_shelf)
    yield database
    await database.end()


@pytest.fixture
async def mariadb(mariadb_shelf: MariadbShelf) -> AsyncIterator[OnMariadb]:
    database = await OnMariadb.make(mariadb_shelf)
    yield database
    await database.end()


@pytest.fixture
async def http(sqlite: OnSqlite) -> AsyncIterator[OnHttp]:
    """SQLite behind a server."""
    database = OnHttp(sqlite)
    yield database
    await database.end()


@pytest.fixture
async def http_postgresql(postgresql: OnPostgres) -> AsyncIterator[OnHttp]:
    """PostgreSQL behind a server."""
    database = OnHttp(postgresql)
    yield database
    await database.end()


@pytest.fixture(params=["memory", "sqlite", "postgresql", "mariadb", "http", "http_postgresql"])
def database(request: pytest.FixtureRequest) -> Database:
    """One database of each kind, empty."""
    return InMemory() if request.param == "memory" else request.getfixturevalue(request.param)


@pytest.fixture(params=["sqlite", "postgresql", "mariadb", "http"])
def breakable(request: pytest.FixtureRequest) -> OnSqlite | OnServer | OnHttp:
    """One database of each kind whose connections can be broken."""
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def transactional(request: pytest.FixtureRequest) -> OnSqlite | OnServer:
    """One database of each kind whose transaction ends with the caller's wait; a request that was sent goes on."""
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["postgresql", "mariadb"])
def server(request: pytest.FixtureRequest) -> OnServer:
    """One database on each kind of server, whose lines pass a proxy."""
    return request.getfixturevalue(request.param)


@pytest.fixture
async def store(database: Database) -> Store:
    return await database.open()
