"""The databases of the conformance suite, each with the means to look behind its store and to break its connections."""

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import aiosqlite
import asyncpg
import pytest

from dispatch_core.stores.contract import Store
from dispatch_core.stores.memory import MemoryStore
from dispatch_core.stores.sql import SqlStore, open_store
from tests.postgres import PostgresServer
from tests.stores.proxy import Moment, Proxy, nothing

TIMES = {"dispatch_job": ("created", "updated", "lease_until"), "dispatch_history": ("at",)}
"""Where a database keeps what its clock said."""


class Database(Protocol):
    """What a conformance test may do besides using the store."""

    async def open(self) -> Store:
        """Another store on the same records; it is closed with the database."""

    async def document(self, uid: str) -> bytes:
        """The stored document, as it is."""

    async def overwrite(self, uid: str, document: str) -> None:
        """Put something else where a record was, round the store."""

    async def wait(self, seconds: float) -> None:
        """Let the store's clock run on; in a database, what it has written lies so much further back."""


class InMemory:
    """One MemoryStore; its clock stands still but for `wait`."""

    def __init__(self) -> None:
        self._now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        self._store = MemoryStore(self._tick)

    def _tick(self) -> datetime:
        self._now += timedelta(microseconds=1)
        return self._now

    async def open(self) -> Store:
        return self._store

    async def document(self, uid: str) -> bytes:
        return self._store.rows[uid].document

    async def overwrite(self, uid: str, document: str) -> None:
        self._store.rows[uid].document = document.encode()

    async def wait(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)


class OnSql:
    """What the SQL databases have in common."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._stores: list[SqlStore] = []

    async def open(self) -> SqlStore:
        return self._opened(self.url)

    def _opened(self, url: str) -> SqlStore:
        store = open_store(url)
        self._stores.append(store)
        return store

    async def end(self) -> None:
        for store in self._stores:
            await store.close()


class OnSqlite(OnSql):
    """One SQLite file."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"sqlite:///{path}")
        self.path = path
        self._patch = pytest.MonkeyPatch()
        self.broken = 0

    async def document(self, uid: str) -> bytes:
        row = self.query("SELECT document FROM dispatch_job WHERE uid = ?", uid)[0]
        return str(row[0]).encode()

    async def overwrite(self, uid: str, document: str) -> None:
        self.query("UPDATE dispatch_job SET document = ? WHERE uid = ?", document, uid)

    def query(self, statement: str, *values: object) -> list[Any]:
        with closing(sqlite3.connect(self.path, timeout=30)) as connection, connection:
            return connection.execute(statement, values).fetchall()

    async def wait(self, seconds: float) -> None:
        for table, columns in TIMES.items():
            back = [f"{name} = strftime('%Y-%m-%d %H:%M:%f', {name}, '-{seconds} seconds')" for name in columns]
            self.query(f"UPDATE {table} SET {', '.join(back)}")

    async def open_breakable(self) -> SqlStore:
        return await self.open()

    def break_commit(self, moment: Moment, then: Callable[[], Awaitable[None]] = nothing) -> None:
        """Let the driver's next commit fail, once, before or after it did what it should."""
        commit = aiosqlite.Connection.commit

        async def broken(connection: aiosqlite.Connection) -> None:
            self._patch.undo()
            self.broken += 1
            if moment is not Moment.BEFORE:
                await commit(connection)
            else:
                await connection.rollback()
            await then()
            raise sqlite3.OperationalError("disk I/O error")

        self._patch.setattr(aiosqlite.Connection, "commit", broken)

    async def cut_off(self) -> None:
        """From now on, the database cannot be reached."""
        self.path.rename(self.path.with_suffix(".away"))

    async def restore(self) -> None:
        self.path.with_suffix(".away").rename(self.path)

    async def end(self) -> None:
        self._patch.undo()
        await super().end()


class OnPostgres(OnSql):
    """One database on the tests' PostgreSQL server, reached directly or through a proxy."""

    def __init__(self, shelf: "Shelf", name: str, proxy: Proxy, port: int) -> None:
        super().__init__(shelf.server.url(name))
        self._shelf, self._name = shelf, name
        self.proxy = proxy
        self._through_proxy = shelf.server.url(name, port)
        self.altered = False
        """Whether more than rows was changed, so that the next test cannot have it."""

    @classmethod
    async def make(cls, shelf: "Shelf") -> "OnPostgres":
        proxy = Proxy(shelf.server.host, shelf.server.port)
        return cls(shelf, await shelf.take(), proxy, await proxy.start())

    @property
    def broken(self) -> int:
        return self.proxy.broken

    async def document(self, uid: str) -> bytes:
        rows = await self.query("SELECT document FROM dispatch_job WHERE uid = $1", uid)
        return str(rows[0]["document"]).encode()

    async def overwrite(self, uid: str, document: str) -> None:
        await self.query("UPDATE dispatch_job SET document = $1 WHERE uid = $2", document, uid)

    async def query(self, statement: str, *values: object) -> list[Any]:
        return await administer(self._shelf.server, statement, *values, database=self._name)

    async def wait(self, seconds: float) -> None:
        for table, columns in TIMES.items():
            back = [f"{name} = {name} - make_interval(secs => {seconds})" for name in columns]
            await self.query(f"UPDATE {table} SET {', '.join(back)}")

    async def alter(self, statement: str) -> None:
        """Change the tables themselves."""
        self.altered = True
        await self.query(statement)

    async def open_breakable(self) -> SqlStore:
        return self._opened(self._through_proxy)

    def break_commit(self, moment: Moment, then: Callable[[], Awaitable[None]] = nothing) -> None:
        self.proxy.break_commit(moment, then)

    async def cut_off(self) -> None:
        """From now on, the database cannot be reached through the proxy."""
        self.proxy.refuses = True

    async def restore(self) -> None:
        self.proxy.refuses = False

    async def end(self) -> None:
        await super().end()
        await self.proxy.stop()
        if not self.altered:
            await self.query(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            await self.query("TRUNCATE dispatch_job, dispatch_history")
            self._shelf.put_back(self._name)


class Shelf:
    """Databases with the tables in them, each used by one test after the other."""

    def __init__(self, server: PostgresServer, template: str) -> None:
        self.server = server
        self._template = template
        self._made = 0
        self._free: list[str] = []

    async def take(self) -> str:
        if self._free:
            return self._free.pop()
        self._made += 1
        name = f"{self._template}_{self._made}"
        await administer(self.server, f"CREATE DATABASE {name} TEMPLATE {self._template}")
        return name

    def put_back(self, name: str) -> None:
        self._free.append(name)


async def administer(server: PostgresServer, statement: str, *values: object, database: str = "postgres") -> list[Any]:
    connection = await asyncpg.connect(server.url(database))
    try:
        return list(await connection.fetch(statement, *values))
    finally:
        await connection.close()
