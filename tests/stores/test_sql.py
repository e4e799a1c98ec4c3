"""What is particular to SQL databases: URLs, drivers, errors that people read, connections, files and schemas."""

import asyncio
import shutil
import socket
import sqlite3
import sys
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import aiosqlite
import pymysql
import pytest
from msgspec.structs import replace
from sqlalchemy import select, update
from sqlalchemy.dialects import mysql
from sqlalchemy.event import listen
from sqlalchemy.exc import OperationalError
from sqlalchemy.schema import CreateTable

from dispatch_core.errors import BadInput, Displaced, NotFound, StoreUnavailable
from dispatch_core.stores.engine import is_repeatable, make_engine
from dispatch_core.stores.migrations import upgrade
from dispatch_core.stores.schema import DatabaseTime, job, metadata
from dispatch_core.stores.sql import SqlStore, open_store
from tests.postgres import PostgresServer, free_port
from tests.stores.databases import OnMariadb, OnPostgres, OnServer, OnSqlite
from tests.stores.records import committed, created, fresh, held, keep_trying
from tests.stores.served import OnHttp

ROOT = Path(__file__).parents[2]


class TestUrls:
    @pytest.mark.parametrize(
        ("url", "driver"),
        [
            ("sqlite:///jobs.db", "sqlite+aiosqlite"),
            ("sqlite+pysqlite:///jobs.db", "sqlite+aiosqlite"),
            ("postgresql://u@h/d", "postgresql+asyncpg"),
            ("postgresql+psycopg2://u@h/d", "postgresql+asyncpg"),
            ("postgres://u@h/d", "postgresql+asyncpg"),
        ],
    )
    def test_drivers(self, url: str, driver: str) -> None:
        assert make_engine(url).url.drivername == driver

    @pytest.mark.parametrize("url", ["mysql://u@h/d", "mysql+pymysql://u@h/d", "mariadb://u@h/d"])
    def test_mysql(self, url: str) -> None:
        assert make_engine(url).url.drivername.endswith("+aiomysql")

    @pytest.mark.parametrize(
        ("url", "extra", "module"),
        [("postgresql://u@h/d", "postgres", "asyncpg"), ("mysql://u@h/d", "mysql", "aiomysql")],
    )
    def test_missing_driver(self, monkeypatch: pytest.MonkeyPatch, url: str, extra: str, module: str) -> None:
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(BadInput, match=rf"pip install 'dispatch-supervisor\[{extra}\]'"):
            open_store(url)

    @pytest.mark.parametrize(
        "url", ["", "jobs.db", "postgresql//u:hunter2@h", "oracle://u:hunter2@h/d", "sqlite://", "sqlite:///:memory:"]
    )
    def test_that_cannot_be_served(self, url: str) -> None:
        with pytest.raises(BadInput) as caught:
            open_store(url)
        assert "hunter2" not in str(caught.value)
        assert caught.value.__cause__ is None

    def test_schema_where_there_are_none(self) -> None:
        with pytest.raises(BadInput, match="PostgreSQL"):
            open_store("sqlite:///jobs.db", schema="dispatch")

    def test_sslmode_of_other_drivers_is_understood(self) -> None:
        query = make_engine("postgresql://u@h/d?sslmode=require").url.query
        assert dict(query) == {"ssl": "require"}


class TestUnavailable:
    async def test_without_tables(self, breakable: OnSqlite | OnServer | OnHttp) -> None:
        store = await breakable.open()
        database = breakable.behind if isinstance(breakable, OnHttp) else breakable
        if isinstance(database, OnSqlite):
            database.query("DROP TABLE dispatch_job")
        else:
            await database.alter("DROP TABLE dispatch_job")
        for use in (store.read("x"), created(store), store.jobs(), store.history("x"), committed(store, fresh())):
            with pytest.raises(StoreUnavailable, match="`dispatch db upgrade`") as caught:
                await use
            assert "airflow db migrate" in str(caught.value)
            assert "\n" not in str(caught.value)

    async def test_with_tables_of_another_revision(self, sqlite: OnSqlite) -> None:
        sqlite.query("ALTER TABLE dispatch_job DROP COLUMN scheduler")
        with pytest.raises(StoreUnavailable, match="`dispatch db upgrade`"):
            await created(await sqlite.open())

    async def test_missing_file_is_not_made(self, tmp_path: Path) -> None:
        path = tmp_path / "jobs.db"
        store = open_store(f"sqlite:///{path}")
        with pytest.raises(StoreUnavailable, match="`dispatch db upgrade`"):
            await store.read("x")
        await store.close()
        assert not path.exists()

    def test_missing_file_leaves_no_thread_behind_a_loop(self, tmp_path: Path) -> None:
        """A thread that answers to a loop that has ended would end in a traceback, after the command's one line."""

        async def ask() -> None:
            with pytest.raises(StoreUnavailable):
                await open_store(f"sqlite:///{tmp_path / 'jobs.db'}").jobs()

        for _ in range(20):
            asyncio.run(ask())

    async def test_that_is_no_database(self, tmp_path: Path) -> None:
        path = tmp_path / "notes.txt"
        path.write_text("not a database, whatever its name says" * 100)
        store = open_store(f"sqlite:///{path}")
        with pytest.raises(StoreUnavailable, match=r"notes\.txt"):
            await store.jobs()
        await store.close()

    async def test_nobody_listens(self) -> None:
        store = open_store(f"postgresql://ada:hunter2@127.0.0.1:{free_port()}/jobs?ssl=disable")
        with pytest.raises(StoreUnavailable, match=r"postgresql://ada:\*\*\*@127\.0\.0\.1:\d+/jobs") as caught:
            await store.jobs()
        assert "hunter2" not in f"{caught.value} {caught.value.__cause__!r}"
        await store.close()

    async def test_that_never_answers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("dispatch_core.stores.engine.CONNECT_SECONDS", 0.2)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            store = open_store(f"postgresql://ada:hunter2@127.0.0.1:{silent.getsockname()[1]}/jobs?ssl=disable")
            with pytest.raises(StoreUnavailable, match="TimeoutError"):
                await store.jobs()
            await store.close()

    async def test_no_such_database(self, postgres_server: PostgresServer) -> None:
        store = open_store(postgres_server.url("nowhere"))
        with pytest.raises(StoreUnavailable, match="nowhere"):
            await store.jobs()
        await store.close()

    async def test_what_a_job_holds_is_in_no_error(self, postgresql: OnPostgres) -> None:
        store = await postgresql.open()
        await postgresql.alter("ALTER TABLE dispatch_job ADD CHECK (length(document) < 10)")
        with pytest.raises(BadInput) as caught:
            await created(store, fresh(command="--token=hunter2"))
        assert "hunter2" not in str(caught.value.__cause__)

    async def test_what_the_database_cannot_hold(self, postgresql: OnPostgres) -> None:
        store = await postgresql.open()
        with pytest.raises(BadInput, match="cannot hold"):
            await created(store, fresh("a\0b"))

    @pytest.mark.parametrize("number", [1040, 1047, 1205, 1213, 1927, 2006, 2013])
    async def test_mysql_is_asked_again_by_its_number(self, number: int) -> None:
        """Its drivers give an SQLSTATE too, which is HY000 for nearly all of these."""
        cause = pymysql.err.OperationalError(number, "not now", sqlstate="HY000")
        assert is_repeatable(OperationalError("UPDATE", {}, cause))
        never = pymysql.err.OperationalError(1235, "never", sqlstate="HY000")
        assert not is_repeatable(OperationalError("UPDATE", {}, never))


class TestConnections:
    async def test_closing_leaves_no_thread(self, sqlite: OnSqlite) -> None:
        before = set(threading.enumerate())
        store = await sqlite.open()
        await asyncio.gather(*(created(store, fresh(f"job {number}")) for number in range(8)))
        await asyncio.gather(*(store.jobs() for _ in range(8)))
        made = set(threading.enumerate()) - before
        assert made
        await store.close()
        # Each has been told to end, and said that it will: that is all that can be waited for.
        for thread in made:
            thread.join(2)
        assert not any(thread.is_alive() for thread in made)

    async def test_of_sqlite_keep_what_they_commit(self, sqlite: OnSqlite) -> None:
        store = await sqlite.open()
        async with store._engine.connect() as connection:
            mode = (await connection.exec_driver_sql("PRAGMA journal_mode")).scalar()
            synchronous = (await connection.exec_driver_sql("PRAGMA synchronous")).scalar()
        assert (mode, synchronous) == ("wal", 2)

    async def test_of_sqlite_take_the_right_to_write_first(
        self, sqlite: OnSqlite, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One that reads first and then wants to write is refused at once when another was faster."""
        store, execute, words = await sqlite.open(), aiosqlite.Cursor.execute, []

        async def listening(cursor: aiosqlite.Cursor, *arguments: Any) -> aiosqlite.Cursor:
            words.append(" ".join(arguments[0].split()[:2]))
            return await execute(cursor, *arguments)

        record = await created(store)
        monkeypatch.setattr(aiosqlite.Cursor, "execute", listening)
        await committed(store, await store.read(record.key))
        assert words == ['SELECT dispatch_job."key",', "BEGIN IMMEDIATE", "UPDATE dispatch_job", "INSERT INTO"]

    async def test_of_mariadb_wait_for_a_row_and_no_longer(self, mariadb: OnMariadb) -> None:
        store = await mariadb.open()
        await store.jobs()
        async with store._engine.connect() as connection:
            asked = "SELECT @@innodb_lock_wait_timeout, @@tx_isolation, @@character_set_client"
            (row,) = await connection.exec_driver_sql(asked)
        assert tuple(row) == (15, "READ-COMMITTED", "utf8mb4")

    async def test_of_postgresql_do_not_keep_a_row_for_ever(self, postgresql: OnPostgres) -> None:
        store = await postgresql.open()
        await store.jobs()
        async with store._engine.connect() as connection:
            idle = (await connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout")).scalar()
            isolation = (await connection.exec_driver_sql("SHOW transaction_isolation")).scalar()
        assert (idle, isolation) == ("1min", "read committed")

    async def test_more_callers_than_connections(self, breakable: OnSqlite | OnServer) -> None:
        store = await breakable.open()
        record = await created(store)
        assert await asyncio.gather(*(store.read(record.key) for _ in range(200))) == [record] * 200


class TestTwoAtOnce:
    @pytest.mark.promise("C1")
    @pytest.mark.case("T50")
    async def test_two_processes_on_one_file(self, tmp_path: Path) -> None:
        """Both make the tables, then write to one record and to one of their own."""
        url, commits, names = f"sqlite:///{tmp_path / 'jobs.db'}", 25, ("ada", "bob")
        writers = [
            await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.stores.writer", url, name, str(commits), cwd=ROOT, stdout=-1, stderr=-1
            )
            for name in names
        ]
        outputs = await asyncio.gather(*(writer.communicate() for writer in writers))
        assert [(writer.returncode, errors) for writer, (_, errors) in zip(writers, outputs, strict=True)] == [
            (0, b""),
            (0, b""),
        ]
        store = open_store(url)
        shared = await store.read("shared")
        assert Counter(hold.asked_by for hold in shared.holds) == dict.fromkeys(names, commits)
        assert shared.revision == 1 + 2 * commits == len(await store.history("shared"))
        for name in names:
            assert (await store.read(f"{name}'s own")).revision == 1 + commits
        await store.close()

    async def test_a_loop_each_with_a_store_each(self, sqlite: OnSqlite) -> None:
        """Stores in two threads, each with a loop and a store of its own."""

        async def write(name: str) -> None:
            store = open_store(sqlite.url)
            await created(store)
            for _ in range(10):
                await keep_trying(store, "nightly/train", lambda read: held(read, name))
            await store.close()

        await asyncio.gather(*(asyncio.to_thread(asyncio.run, write(name)) for name in ("ada", "bob")))
        assert (await (await sqlite.open()).read("nightly/train")).revision == 21


class TestSchema:
    async def test_of_its_own(self, postgresql: OnPostgres) -> None:
        postgresql.altered = True
        await upgrade(postgresql.url, schema="jobs'n\"all")
        store, public = open_store(postgresql.url, schema="jobs'n\"all"), await postgresql.open()
        record = await created(store)
        assert await store.read(record.key) == record
        with pytest.raises(NotFound):
            await public.read(record.key)
        await store.close()

    async def test_that_is_not_there(self, postgresql: OnPostgres) -> None:
        store = open_store(postgresql.url, schema="nowhere")
        with pytest.raises(StoreUnavailable, match="`dispatch db upgrade`"):
            await store.jobs()
        await store.close()


class TestOtherDialects:
    """No server of theirs is started here: that what they are asked for is in their language."""

    def test_mysql_has_its_spellings(self) -> None:
        tables = "".join(str(CreateTable(table).compile(dialect=mysql.dialect())) for table in metadata.tables.values())
        assert "LONGTEXT" in tables
        assert "DATETIME(6)" in tables
        assert "COLLATE utf8mb4_bin" in tables
        free = update(job).where(job.c.lease_until <= DatabaseTime()).values(lease_until=DatabaseTime(30.0))
        assert str(free.compile(dialect=mysql.dialect())).count("UTC_TIMESTAMP(6)") == 2

    def test_sqlite_counts_from_its_own_now(self) -> None:
        with closing(sqlite3.connect(":memory:")) as connection:
            engine = make_engine("sqlite:///x.db")
            query = select(DatabaseTime(90.5), DatabaseTime()).compile(engine, compile_kwargs={"literal_binds": True})
            later, now = connection.execute(str(query)).fetchone()
        assert later > now


async def test_a_file_is_found_wherever_it_is(
    sqlite: OnSqlite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path means what it meant when the store was opened, and no character in it is special."""
    folder = tmp_path / "a #1 50%?"
    folder.mkdir()
    shutil.copy(sqlite.path, folder / "jobs.db")
    monkeypatch.chdir(tmp_path)
    store: SqlStore = open_store(f"sqlite:///{folder.name.replace('%', '%25').replace('?', '%3F')}/jobs.db")
    monkeypatch.chdir("/")
    record = await created(store)
    assert await store.read(record.key) == record
    await store.close()


class TestGathered:
    async def test_many_questions_are_one_query(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/jobs.db"
        await upgrade(url)
        store = open_store(url)
        records = [await created(store, fresh(f"job {number}")) for number in range(20)]
        asked: list[str] = []
        listen(store._engine.sync_engine, "before_cursor_execute", lambda *told: asked.append(told[2]))
        told = await asyncio.gather(*(store.revision(record.key, record.uid) for record in records * 3))
        assert told == [1] * 60
        assert len([statement for statement in asked if "revision" in statement]) == 1
        await store.close()

    async def test_many_leases_are_renewed_in_one_statement(self, tmp_path: Path) -> None:
        """Each answer is its own: whose lease is another's by now, or whose record is gone, is told so."""
        url = f"sqlite:///{tmp_path}/jobs.db"
        await upgrade(url)
        store = open_store(url)
        records = [await created(store, fresh(f"job {number}")) for number in range(20)]
        leases = [await store.acquire(record, record.key, 60) for record in records]
        await store.release(leases[3])
        await store.acquire(records[3], "another", 60)
        leases.append(replace(leases[0], uid="0" * 8))
        asked: list[str] = []
        listen(store._engine.sync_engine, "before_cursor_execute", lambda *told: asked.append(told[2]))
        told = await asyncio.gather(*(store.renew(lease, 60) for lease in leases), return_exceptions=True)
        assert {number: type(answer) for number, answer in enumerate(told) if answer is not None} == {
            3: Displaced,
            20: NotFound,
        }
        assert len([statement for statement in asked if statement.startswith("UPDATE")]) == 1
        await store.close()

    async def test_all_who_ask_are_told_of_an_outage(self, tmp_path: Path) -> None:
        store = open_store(f"sqlite:///{tmp_path}/nothing.db")
        told = await asyncio.gather(*(store.revision("job", uid) for uid in ("a", "b")), return_exceptions=True)
        assert [type(error) for error in told] == [StoreUnavailable, StoreUnavailable]
        await store.close()

    async def test_closing_ends_the_question(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/jobs.db"
        await upgrade(url)
        store = open_store(url)
        asking = asyncio.ensure_future(store.revision("job", "a"))
        await asyncio.sleep(0)
        await store.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            async with asyncio.timeout(10):
                await asking
