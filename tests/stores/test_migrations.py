"""The migrations make the tables that the code wants, beside anybody's, once, and whoever drives them."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Connection, MetaData, create_engine, inspect, text
from sqlalchemy.ext.asyncio import AsyncConnection

from dispatch_core.errors import BadInput, StoreUnavailable
from dispatch_core.stores import migrations
from dispatch_core.stores.engine import WRITES, make_engine
from dispatch_core.stores.migrations import current, downgrade, newest, upgrade
from dispatch_core.stores.schema import REVISION_TABLE, metadata
from dispatch_core.stores.sql import open_store
from tests.stores.databases import Shelf
from tests.stores.records import created

OURS = {"dispatch_job", "dispatch_history"}


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database with nothing in it, whose file, on SQLite, is not there yet."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'jobs.db'}"
        return
    shelf: Shelf = request.getfixturevalue("postgres_shelf" if request.param == "postgresql" else "mariadb_shelf")
    asyncio.run(shelf.administer("CREATE DATABASE migrations"))
    yield shelf.server.url("migrations")
    force = " WITH (FORCE)" if request.param == "postgresql" else ""
    asyncio.run(shelf.administer(f"DROP DATABASE migrations{force}"))


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[AsyncConnection]:
    engine = make_engine(url, upgrading=True)
    async with engine.connect() as connection:
        await connection.execution_options(**{WRITES: True})
        yield connection
        await connection.commit()
    await engine.dispose()


async def tables(url: str) -> set[str]:
    async with connected(url) as connection:
        return set(await connection.run_sync(lambda sync: inspect(sync).get_table_names()))


def describe(connection: Connection) -> dict[str, Any]:
    """Everything that a database says of our tables, names of constraints and indexes included."""
    looking = inspect(connection)
    return {
        table: {
            "columns": {
                column["name"]: (str(column["type"]), column["nullable"]) for column in looking.get_columns(table)
            },
            "key": looking.get_pk_constraint(table),
            "unique": sorted(map(str, looking.get_unique_constraints(table))),
            "indexes": sorted(map(str, looking.get_indexes(table))),
        }
        for table in sorted(OURS)
    }


async def test_make_what_the_code_wants(empty: str) -> None:
    assert await upgrade(empty) == newest()
    async with connected(empty) as connection:

        def differences(sync: Connection) -> list[Any]:
            options = {"compare_type": True, "compare_server_default": True, "version_table": REVISION_TABLE}
            return list(compare_metadata(MigrationContext.configure(sync, opts=options), metadata))

        assert await connection.run_sync(differences) == []
        migrated = await connection.run_sync(describe)
        await connection.run_sync(metadata.drop_all)
        await connection.run_sync(metadata.create_all)
        assert await connection.run_sync(describe) == migrated
    # MariaDB gives no primary key a name of its own.
    assert migrated["dispatch_job"]["key"]["name"] == (None if empty.startswith("mariadb") else "pk_dispatch_job")
    assert "uq_dispatch_job_key_number" in str(migrated["dispatch_job"]["unique"])
    assert "ix_dispatch_job_settled_updated" in str(migrated["dispatch_job"]["indexes"])
    assert "uq_dispatch_history_commit_id" in str(migrated["dispatch_history"]["unique"])


async def test_a_difference_would_be_seen(empty: str) -> None:
    """The comparison above is not blind."""
    await upgrade(empty)
    other = MetaData()
    for table in metadata.tables.values():
        table.to_metadata(other)
    other.tables["dispatch_job"].indexes.clear()
    async with connected(empty) as connection:
        found = await connection.run_sync(lambda sync: compare_metadata(MigrationContext.configure(sync), other))
    assert "remove_index" in str(found)


async def test_a_second_time_change_nothing(empty: str) -> None:
    await upgrade(empty)
    store = open_store(empty)
    record = await created(store)
    assert await upgrade(empty) == newest() == await current(empty)
    assert await store.read(record.key) == record
    await store.close()


async def test_two_at_once_in_one_loop(empty: str) -> None:
    assert await asyncio.gather(*(upgrade(empty) for _ in range(4))) == [newest()] * 4


async def test_two_at_once_in_two_processes(empty: str) -> None:
    """Both have all that they need loaded, and begin at one word."""
    script = (
        "import asyncio, sys; from dispatch_core.stores.migrations import upgrade; print('ready', flush=True);"
        " sys.stdin.readline(); print(asyncio.run(upgrade(sys.argv[1])))"
    )
    runs = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", script, empty, stdin=-1, stdout=-1, stderr=-1)
        for _ in range(2)
    ]
    for run in runs:
        assert run.stdout is not None
        assert await run.stdout.readline() == b"ready\n"
    answers = await asyncio.gather(*(run.communicate(b"now\n") for run in runs))
    assert answers == [(f"{newest()}\n".encode(), b"")] * 2


async def test_leave_the_tables_of_others_alone(empty: str) -> None:
    """An engine's tables, and its revision table of Alembic's usual name, are as they were, down and up again."""
    others = ["CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)", "CREATE TABLE task_instance (id INT)"]
    async with connected(empty) as connection:
        for statement in (*others, "INSERT INTO alembic_version VALUES ('theirs')"):
            await connection.execute(text(statement))
    await upgrade(empty)
    assert await tables(empty) == {"alembic_version", "task_instance", REVISION_TABLE, *OURS}
    assert await downgrade(empty, "base") == "base"
    assert await tables(empty) == {"alembic_version", "task_instance", REVISION_TABLE}
    assert await upgrade(empty) == newest()
    async with connected(empty) as connection:
        assert (await connection.execute(text("SELECT version_num FROM alembic_version"))).all() == [("theirs",)]


async def test_current_makes_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with pytest.raises(StoreUnavailable, match="`dispatch db upgrade`"):
        await current(url)
    assert not os.listdir(tmp_path)


async def test_current_of_a_database_without_tables(empty: str) -> None:
    async with connected(empty):
        pass
    assert await current(empty) is None


async def test_to_a_revision_that_does_not_exist(empty: str) -> None:
    await upgrade(empty)
    with pytest.raises(BadInput, match="left as they are"):
        await downgrade(empty, "9999")
    assert await current(empty) == newest()


async def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="folder"):
        await upgrade(f"sqlite:///{tmp_path / 'nowhere' / 'jobs.db'}")


@contextmanager
def configured(path: Path) -> Iterator[Config]:
    """Alembic's configuration as an engine that upgrades its providers' tables makes it."""
    folder = Path(migrations.__file__).parent
    config = Config(str(folder / "alembic.ini"))
    config.set_main_option("script_location", str(folder))
    config.set_main_option("sqlalchemy.url", f"sqlite:///{path}")
    yield config


class TestDrivenByAnEngine:
    async def test_upgraded(self, tmp_path: Path) -> None:
        path = tmp_path / "engine.db"
        with configured(path) as config:
            command.upgrade(config, "heads")
            assert await current(f"sqlite:///{path}") == newest()
            command.downgrade(config, "base")
        assert await tables(f"sqlite:///{path}") == {REVISION_TABLE}

    async def test_made_from_the_metadata_and_stamped(self, tmp_path: Path) -> None:
        path = tmp_path / "engine.db"
        engine = create_engine(f"sqlite:///{path}")
        metadata.create_all(engine)
        engine.dispose()
        with configured(path) as config:
            command.stamp(config, "head")
        assert await upgrade(f"sqlite:///{path}") == newest()
        store = open_store(f"sqlite:///{path}")
        assert (await created(store)).revision == 1
        await store.close()

    def test_shown_as_sql(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with configured(tmp_path / "engine.db") as config:
            command.upgrade(config, "heads", sql=True)
        shown = capsys.readouterr().out
        assert "CREATE TABLE dispatch_job" in shown
        assert f"INSERT INTO {REVISION_TABLE}" in shown
