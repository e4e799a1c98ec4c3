"""Jobs' records in the Prefect server's own database: which database that is, proof of it, and the tables in it.

One rule: a database is used only after it was proved to be the server's. A program that knows the server's address and
not its database's falls back to an empty SQLite file of its own, without a word; records written there would be a
second truth, and jobs would run twice. What proves it is an id that was published through the API, found again in the
database, together with the row of the very flow run that asks. Tables are made by `set_up` only.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import VariableCreate
from prefect.exceptions import ObjectAlreadyExists
from prefect.settings import get_current_settings
from sqlalchemy import JSON, String, Uuid, column, func, make_url, select, table
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from dispatch_core.errors import StoreUnavailable
from dispatch_core.stores import migrations
from dispatch_core.stores.engine import BROKEN, is_repeatable, make_engine
from prefect_collection.blocks import SERVER_SCHEMA

STORE_ID = "dispatch-store-id"
"""The Prefect Variable that holds the published id."""

SET_UP = "run `python -m prefect_collection.setup` where the Prefect server runs, with the server's own settings"
SAME_SETTINGS = "set PREFECT_SERVER_DATABASE_CONNECTION_URL here as the server has it, or use a store of your own"


# What is read of Prefect's own tables; nothing in them is ever written.
_variable = table("variable", column("name", String), column("value", JSON))
_flow_run = table("flow_run", column("id", Uuid(as_uuid=False).with_variant(String(36), "sqlite")))


def server_url() -> str:
    """The database that this program's Prefect settings name. Raises StoreUnavailable where they name none."""
    told = get_current_settings().server.database.connection_url
    if told is None:
        raise StoreUnavailable(f"the Prefect settings name no database; {SAME_SETTINGS}")
    return told.get_secret_value() if not isinstance(told, str) else told


def server_schema(url: str, told: str | None) -> str | None:
    """The schema for our tables: PostgreSQL has schemas, SQLite has none."""
    return told or SERVER_SCHEMA if make_url(url).get_backend_name() == "postgresql" else told


async def prove(url: str, schema: str | None, flow_runs: Sequence[uuid.UUID]) -> None:
    """Return if this is the server's database, with our tables in it. `flow_runs`: some that the server surely has.

    Raises StoreUnavailable otherwise. Nothing is written.
    """
    async with get_client() as client:
        published = await client.read_variable_by_name(STORE_ID)
    if published is None:
        raise StoreUnavailable(f"the Prefect server has no store of dispatch in its database yet; {SET_UP}")
    async with _looking(url) as connection:
        if await _stored_id(connection) != published.value:
            raise _not_the_servers(url, "it does not hold the id that the server publishes")
        for flow_run in flow_runs:
            if not await _has_flow_run(connection, flow_run):
                raise _not_the_servers(url, f"it does not hold the flow run {flow_run}")
    await migrations.must_fit(url, schema=schema, upgrade=SET_UP)


async def set_up(schema: str | None = None) -> tuple[str, str]:
    """Publish an id, prove by it that this program's database is the server's, and make the tables there.

    Returns the database, without its password, and the tables' revision. A second time, it brings the tables up to
    date. Raises StoreUnavailable, and makes no table, where the database is another one.
    """
    url = server_url()
    async with get_client() as client:
        published = await client.read_variable_by_name(STORE_ID)
        if published is None:
            try:
                published = await client.create_variable(VariableCreate(name=STORE_ID, value=uuid.uuid4().hex))
            except ObjectAlreadyExists:  # another was faster
                published = await client.read_variable_by_name(STORE_ID)
    async with _looking(url) as connection:
        if published is None or await _stored_id(connection) != published.value:
            raise _not_the_servers(url, "it does not hold the id that the server publishes")
        await _must_outlive_a_reset(connection, url, server_schema(url, schema))
    return _shown(url), await migrations.upgrade(url, schema=server_schema(url, schema))


async def _must_outlive_a_reset(connection: AsyncConnection, url: str, schema: str | None) -> None:
    """A reset of Prefect's database empties the schema that its user comes to first: on PostgreSQL, the one that is
    named like the user, as soon as it is there. Raises StoreUnavailable."""
    if connection.dialect.name != "postgresql":
        return
    user = (await connection.execute(select(func.current_user()))).scalar()
    if schema == user:
        raise StoreUnavailable(
            f"the schema {schema!r} of {_shown(url)} is named like the server's database user, so that a reset of "
            "Prefect's database would take every record along; nothing was made; give --schema another name"
        )


@asynccontextmanager
async def _looking(url: str) -> AsyncIterator[AsyncConnection]:
    """A connection to read Prefect's tables on; a database that is not there, or has none, is not the server's."""
    engine = make_engine(url)
    try:
        async with engine.connect() as connection:
            yield connection
    except BROKEN as error:
        said = " ".join(str(getattr(error, "orig", error)).split())
        if isinstance(error, DBAPIError) and not is_repeatable(error):
            raise _not_the_servers(url, said) from error
        raise StoreUnavailable(
            f"the database {_shown(url)} did not answer: {said}; nothing is decided until it does"
        ) from error
    finally:
        await engine.dispose()


async def _stored_id(connection: AsyncConnection) -> object:
    return (await connection.execute(select(_variable.c.value).where(_variable.c.name == STORE_ID))).scalar()


async def _has_flow_run(connection: AsyncConnection, id: uuid.UUID) -> bool:
    return (await connection.execute(select(_flow_run.c.id).where(_flow_run.c.id == str(id)))).first() is not None


def _not_the_servers(url: str, why: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"the database {_shown(url)} is not the Prefect server's own: {why}; nothing was written; {SAME_SETTINGS}"
    )


def _shown(url: str) -> str:
    parsed = make_url(url)
    return parsed.set(drivername=parsed.get_backend_name(), query={}).render_as_string(hide_password=True)
