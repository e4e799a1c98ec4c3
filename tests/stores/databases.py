"""The databases of the conformance suite, each with the means to look behind its store and to break its connections."""

import asyncio
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import aiomysql
import aiosqlite
import asyncpg
import pymysql
import pytest
from asyncpg.prepared_stmt import PreparedStatement

from dispatch_core.stores.contract import Store
from dispatch_core.stores.memory import MemoryStore
from dispatch_core.stores.migrations import upgrade
from dispatch_core.stores.sql import SqlStore, open_store
from tests.mariadb import MariadbServer
from tests.postgres import PostgresServer
from tests.stores.proxy import Moment, Proxy, nothing

TIMES = {"dispatch_job": ("created", "updated", "lease_until"), "dispatch_history": ("at",)}
"""Where a database keeps what its clock said."""


class Refusal(NamedTuple):
    """A server's word for a statement that may be repeated: PostgreSQL's, and MariaDB's number for the same."""

    state: str
    number: int


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
            back = [f"{name} = strftime('%Y-%m-%d %H:%M:%f000', {name}, '-{seconds} seconds')" for name in columns]
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


class OnServer(OnSql):
    """One database on a server of the tests, reached directly or through a proxy."""

    kind: str
    executes: tuple[type, str]
    """The driver's method that every statement passes."""

    def __init__(self, shelf: "Shelf", name: str, proxy: Proxy, port: int) -> None:
        super().__init__(shelf.server.url(name))
        self._shelf, self._name = shelf, name
        self.proxy = proxy
        self._through_proxy = shelf.server.url(name, port)
        self.altered = False
        """Whether more than rows was changed, so that the next test cannot have it."""
        self._patch = pytest.MonkeyPatch()
        self.refused = 0
        """How often `refuse_statement` had its effect."""

    @classmethod
    async def make(cls, shelf: "Shelf") -> Self:
        proxy = Proxy(shelf.server.host, shelf.server.port, shelf.commit)
        return cls(shelf, await shelf.take(), proxy, await proxy.start())

    @property
    def broken(self) -> int:
        return self.proxy.broken

    async def query(self, statement: str, *values: object) -> list[Any]:
        """The rows of a statement, sent round the store; its parameters are written as the driver wants them."""
        return await self._shelf.administer(statement, *values, database=self._name)

    async def alter(self, *statements: str) -> None:
        """Change the tables themselves."""
        self.altered = True
        for statement in statements:
            await self.query(statement)

    async def refuse(self, table: str, when: str, refusal: Refusal, *, of: int = 3) -> None:
        """From now on each such write (`INSERT`, `UPDATE`) is refused but every `of`-th; 0: every one."""
        raise NotImplementedError

    def refuse_statement(self, number: int, refusal: Refusal) -> None:
        """Let the driver report this of the so-manieth statement from now on, counted from 0, once."""
        cursor, name = self.executes
        execute, left = getattr(cursor, name), number

        async def refusing(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == -1:
                self._patch.undo()
                self.refused += 1
                raise self.error(refusal)
            return await execute(*arguments, **options)

        self._patch.undo()
        self._patch.setattr(cursor, name, refusing)

    def error(self, refusal: Refusal) -> Exception:
        """What the driver raises where the server answers with this."""
        raise NotImplementedError

    async def deadlocks(self) -> int:
        """How many deadlocks the server has found since it was started; to be asked while no store is connected."""
        raise NotImplementedError

    async def waiting(self) -> bool:
        """Whether one of this database's connections waits for what another holds."""
        raise NotImplementedError

    async def until_waiting(self) -> None:
        async with asyncio.timeout(60):
            while not await self.waiting():
                await asyncio.sleep(0.2)  # MariaDB looks anew only when nobody has asked for 0.1 s

    async def hang_up(self) -> None:
        """End every connection to this database."""
        raise NotImplementedError

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
        self._patch.undo()
        await super().end()
        await self.proxy.stop()
        if not self.altered:
            await self.hang_up()
            for table in TIMES:
                await self.query(f"DELETE FROM {table}")
            self._shelf.put_back(self._name)


OTHERS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


class OnPostgres(OnServer):
    """One database on the tests' PostgreSQL server."""

    kind = "postgresql"
    executes = (PreparedStatement, "fetch")

    def error(self, refusal: Refusal) -> Exception:
        return asyncpg.PostgresError.new({"C": refusal.state, "M": "not now"})

    async def document(self, uid: str) -> bytes:
        rows = await self.query("SELECT document FROM dispatch_job WHERE uid = $1", uid)
        return str(rows[0]["document"]).encode()

    async def overwrite(self, uid: str, document: str) -> None:
        await self.query("UPDATE dispatch_job SET document = $1 WHERE uid = $2", document, uid)

    async def wait(self, seconds: float) -> None:
        for table, columns in TIMES.items():
            back = [f"{name} = {name} - make_interval(secs => {seconds})" for name in columns]
            await self.query(f"UPDATE {table} SET {', '.join(back)}")

    async def refuse(self, table: str, when: str, refusal: Refusal, *, of: int = 3) -> None:
        condition = f"nextval('tries') % {of} <> 0" if of else "true"
        await self.alter(
            "CREATE SEQUENCE IF NOT EXISTS tries",
            f"""CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF {condition} THEN RAISE EXCEPTION 'not now' USING ERRCODE = '{refusal.state}'; END IF;
                RETURN NEW; END $$""",
            f"CREATE TRIGGER refuse BEFORE {when} ON {table} FOR EACH ROW EXECUTE FUNCTION refuse()",
        )

    async def deadlocks(self) -> int:
        async with asyncio.timeout(60):
            while len(await self.query(f"{OTHERS} AND application_name = 'dispatch'")) > 0:
                await asyncio.sleep(0.02)  # a connection hands its counts in when it ends
        return int((await self.query("SELECT sum(deadlocks) FROM pg_stat_database"))[0][0])

    async def waiting(self) -> bool:
        return len(await self.query(f"{OTHERS} AND wait_event_type = 'Lock'")) > 0

    async def hang_up(self) -> None:
        await self.query(OTHERS.replace("pid", "pg_terminate_backend(pid)", 1))


class OnMariadb(OnServer):
    """One database on the tests' MariaDB server."""

    kind = "mariadb"
    executes = (aiomysql.Cursor, "execute")

    def error(self, refusal: Refusal) -> Exception:
        return pymysql.err.OperationalError(refusal.number, "not now", sqlstate=refusal.state)

    async def document(self, uid: str) -> bytes:
        rows = await self.query("SELECT document FROM dispatch_job WHERE uid = %s", uid)
        return str(rows[0][0]).encode()

    async def overwrite(self, uid: str, document: str) -> None:
        await self.query("UPDATE dispatch_job SET document = %s WHERE uid = %s", document, uid)

    async def wait(self, seconds: float) -> None:
        for table, columns in TIMES.items():
            back = [f"{name} = {name} - INTERVAL {seconds} SECOND" for name in columns]
            await self.query(f"UPDATE {table} SET {', '.join(back)}")

    async def refuse(self, table: str, when: str, refusal: Refusal, *, of: int = 3) -> None:
        condition = f"nextval(tries) % {of} <> 0" if of else "true"
        await self.alter(
            "CREATE SEQUENCE IF NOT EXISTS tries",
            f"""CREATE TRIGGER refuse_{when.lower()} BEFORE {when} ON {table} FOR EACH ROW BEGIN NOT ATOMIC
                IF {condition} THEN SIGNAL SQLSTATE '{refusal.state}'
                SET MYSQL_ERRNO = {refusal.number}, MESSAGE_TEXT = 'not now'; END IF; END""",
        )

    async def deadlocks(self) -> int:
        return int((await self.query("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'"))[0][1])

    async def waiting(self) -> bool:
        return len(await self.query("SELECT 1 FROM information_schema.innodb_lock_waits")) > 0

    async def hang_up(self) -> None:
        asked = "SELECT id FROM information_schema.processlist WHERE db = database() AND id <> connection_id()"
        for (number,) in await self.query(asked):
            with suppress(aiomysql.Error):  # it has left by itself
                await self.query(f"KILL {number}")


class Shelf(ABC):
    """Databases with the tables in them, each used by one test after the other."""

    commit: bytes
    """A COMMIT as the server's protocol has it."""

    def __init__(self, server: PostgresServer | MariadbServer, name: str) -> None:
        self.server = server
        self.name = name
        self._made = 0
        self._free: list[str] = []

    async def take(self) -> str:
        if self._free:
            return self._free.pop()
        self._made += 1
        name = f"{self.name}_{self._made}"
        await self.make(name)
        return name

    def put_back(self, name: str) -> None:
        self._free.append(name)

    @abstractmethod
    async def make(self, name: str) -> None:
        """A database of this name, with the tables in it."""

    @abstractmethod
    async def administer(self, statement: str, *values: object, database: str | None = None) -> list[Any]:
        """The rows of one statement, on a connection of its own."""


class PostgresShelf(Shelf):
    """Copies of one database with the tables in it."""

    commit = b"COMMIT;"

    async def make(self, name: str) -> None:
        if self._made == 1:
            await self.administer(f"CREATE DATABASE {self.name}")
            await upgrade(self.server.url(self.name))
        await self.administer(f"CREATE DATABASE {name} TEMPLATE {self.name}")

    async def administer(self, statement: str, *values: object, database: str | None = None) -> list[Any]:
        connection = await asyncpg.connect(self.server.url(database or "postgres"))
        try:
            return list(await connection.fetch(statement, *values))
        finally:
            await connection.close()


class MariadbShelf(Shelf):
    """MariaDB has no copies of databases: the tables are made in each."""

    commit = b"\x03COMMIT"

    async def make(self, name: str) -> None:
        await self.administer(f"CREATE DATABASE {name}")
        await upgrade(self.server.url(name))

    async def administer(self, statement: str, *values: object, database: str | None = None) -> list[Any]:
        connection = await aiomysql.connect(
            host=self.server.host, port=self.server.port, user="dispatch", db=database, autocommit=True
        )
        try:
            async with connection.cursor() as cursor:
                await cursor.execute(statement, values or None)
                return list(await cursor.fetchall())
        finally:
            await connection.ensure_closed()
