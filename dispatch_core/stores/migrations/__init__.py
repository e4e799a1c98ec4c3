"""The tables' own history: brings a database to the tables that this version of dispatch wants.

One rule: nothing in the database is touched but the two tables and the revision table beside them, so that they can
live in one that belongs to Airflow, Prefect or anybody else. Two upgrades at once are one upgrade: the second waits and
then finds nothing to do.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, make_url, text
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.schema import CreateSchema

from dispatch_core.errors import BadInput, StoreUnavailable
from dispatch_core.stores.engine import BROKEN, UPGRADE, WRITES, make_engine, refusal, shown
from dispatch_core.stores.schema import REVISION_TABLE

HERE = Path(__file__).parent

NEWEST = "head"
BEFORE_THE_FIRST = "base"

_ALONE = {
    "postgresql": "SELECT pg_advisory_xact_lock(4127093655)",
    "mysql": "SELECT GET_LOCK('dispatch_upgrade', 60)",
    "mariadb": "SELECT GET_LOCK('dispatch_upgrade', 60)",
}
"""Makes other upgrades wait until this one has ended; SQLite's BEGIN IMMEDIATE does so by itself."""

_alembic = threading.Semaphore(1)
"""Alembic keeps what it works on in globals of its modules: one upgrade at a time in one interpreter."""

T = TypeVar("T")


async def upgrade(url: str, *, schema: str | None = None) -> str:
    """Make the tables, or bring them to the newest revision; returns it. A second time, it changes nothing.

    A SQLite file and a PostgreSQL schema that are not there are made. Raises StoreUnavailable, BadInput.
    """
    return await _migrate(url, schema, lambda config: command.upgrade(config, NEWEST)) or BEFORE_THE_FIRST


async def downgrade(url: str, revision: str, *, schema: str | None = None) -> str:
    """Take the tables back to an earlier revision; "base" drops them, and every record with them."""
    return await _migrate(url, schema, lambda config: command.downgrade(config, revision)) or BEFORE_THE_FIRST


async def current(url: str, *, schema: str | None = None) -> str | None:
    """The revision of the tables in a database; None: there are none."""
    return await _connected(url, schema, _revision, upgrading=False)


def newest() -> str:
    """The revision that this version of dispatch wants."""
    return str(ScriptDirectory(str(HERE)).get_current_head())


async def must_fit(url: str, *, schema: str | None = None, upgrade: str = UPGRADE) -> None:
    """Return if the tables in a database are those of this version; nothing is written. `upgrade`: what makes them so.

    Raises StoreUnavailable, with one line.
    """
    found, wanted = await current(url, schema=schema), newest()
    if found == wanted:
        return
    where = shown(make_url(url))
    if found is None:
        raise StoreUnavailable(f"the store {where} has no tables of dispatch{_in(schema)}; {upgrade}")
    if found not in {script.revision for script in ScriptDirectory(str(HERE)).walk_revisions()}:
        raise StoreUnavailable(
            f"the store {where} has tables of revision {found}, which a newer dispatch has made; this one knows "
            f"{wanted}: install that release here"
        )
    raise StoreUnavailable(
        f"the store {where} has tables of revision {found}, and this version of dispatch needs {wanted}; {upgrade}"
    )


def _in(schema: str | None) -> str:
    return f" in its schema {schema!r}" if schema is not None else ""


async def _migrate(url: str, schema: str | None, step: Callable[[Config], None]) -> str | None:
    def work(connection: Connection) -> str | None:
        config = Config()
        config.set_main_option("script_location", str(HERE).replace("%", "%%"))
        config.attributes["connection"] = connection
        try:
            step(config)
        except CommandError as error:
            raise BadInput(f"the tables were left as they are: {error}") from error
        return _revision(connection)

    while not _alembic.acquire(blocking=False):  # noqa: ASYNC110 - the other may be in another thread's loop
        await asyncio.sleep(0.05)
    try:
        return await _connected(url, schema, work, upgrading=True)
    finally:
        _alembic.release()


async def _connected(url: str, schema: str | None, work: Callable[[Connection], T], *, upgrading: bool) -> T:
    engine = make_engine(url, schema, upgrading=upgrading)
    try:
        async with engine.connect() as connection:
            await connection.execution_options(**{WRITES: upgrading})
            if upgrading:
                await _alone(connection, schema)
            result = await connection.run_sync(work)
            await connection.commit()
            return result
    except BROKEN as error:
        raise refusal(error, engine) from error
    finally:
        await engine.dispose()


async def _alone(connection: AsyncConnection, schema: str | None) -> None:
    await connection.begin()
    statement = _ALONE.get(connection.dialect.name)
    if statement is not None:
        await connection.execute(text(statement))
    if schema is not None:
        there = text("SELECT 1 FROM pg_namespace WHERE nspname = :schema")
        # Asked first: who may not make schemas may still use one that was made for them.
        if (await connection.execute(there, {"schema": schema})).first() is None:
            await connection.execute(CreateSchema(schema))


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection, opts={"version_table": REVISION_TABLE}).get_current_revision()
