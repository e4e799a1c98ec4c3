"""The connection type `dispatch`: which database holds the records, and where the local scheduler's spool is.

One rule: the database is the one that a deployer wrote into a connection on purpose; what Airflow itself is configured
with is never looked at. It may be Airflow's own, best by a role that has rights on the `dispatch_` tables alone.

A connection is looked up once in a process. In a triggerer, the first lookup that Airflow's API has to answer stops the
heartbeat for as long as that API takes to load, 10 to 26 s on a small machine; one in the environment, as
`AIRFLOW_CONN_DISPATCH_DEFAULT`, or in a secrets backend does not. Where it has to be the API, set `[triggerer]
triggerer_health_check_threshold` to 120 or more, so that the triggers are not given to another triggerer meanwhile.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from dispatch_core.errors import BadInput, DispatchError
from dispatch_core.stores.sql import SqlStore, open_store

if TYPE_CHECKING:
    from airflow.sdk import Connection

DEFAULT = "dispatch_default"

DRIVERS = ("postgresql", "mysql", "mariadb", "sqlite")
FIELDS = ("url", "driver", "tables_schema", "spool")


@dataclass(frozen=True)
class Settings:
    """What one connection says."""

    url: str = field(repr=False)
    tables_schema: str | None = None
    spool: Path | None = None
    """The local scheduler's directory; None: the user's own."""

    def open_store(self) -> SqlStore:
        """The store, in the event loop that is running; whoever opened it closes it. Raises BadInput."""
        return open_store(self.url, schema=self.tables_schema)


_found: dict[str, Settings] = {}
"""What was looked up in this process."""


def settings(conn_id: str) -> Settings:
    """What a connection says, in a worker. Raises BadInput in one line where there is none, or it says nothing."""
    if conn_id not in _found:
        try:
            connection = BaseHook.get_connection(conn_id)
        except AirflowNotFoundException:
            raise _undefined(conn_id) from None
        _found[conn_id] = read_settings(connection)
    return _found[conn_id]


async def asettings(conn_id: str) -> Settings:
    """As `settings`, in a trigger."""
    if conn_id not in _found:
        try:
            connection = await BaseHook.aget_connection(conn_id)
        except AirflowNotFoundException:
            raise _undefined(conn_id) from None
        _found[conn_id] = read_settings(connection)
    return _found[conn_id]


def forget(conn_id: str) -> None:
    """Look a connection up again the next time: what it said did not lead to a store."""
    _found.pop(conn_id, None)


def _undefined(conn_id: str) -> BadInput:
    return BadInput(
        f"the connection {conn_id!r} is not defined here, or Airflow did not answer; define it, best in the environment"
        f" of every worker and triggerer: AIRFLOW_CONN_{conn_id.upper()}="
        """'{"conn_type": "dispatch", "extra": {"url": "postgresql://..."}}'"""
    )


def read_settings(connection: Connection) -> Settings:
    """What the fields of a connection mean. Raises BadInput in one line that repeats no secret."""
    named = f"the connection {connection.conn_id!r}"
    if connection.conn_type != "dispatch":
        raise BadInput(f"{named} has the type {connection.conn_type!r}; make it one of type 'dispatch'")
    extra = _texts(connection, named)
    url = extra.get("url") or _url(connection, extra.get("driver") or "postgresql", named)
    spool = extra.get("spool")
    if spool is not None and not Path(spool).is_absolute():
        raise BadInput(f"{named}: the spool {spool!r} is not absolute; a triggerer has no directory to start from")
    return Settings(url=url, tables_schema=extra.get("tables_schema"), spool=Path(spool) if spool else None)


def read_extra(connection: Connection, named: str, names: Sequence[str]) -> dict[str, object]:
    """The extra fields that are filled in. Not `extra_dejson`, which would talk to Airflow from a running loop."""
    try:
        extra = json.loads(connection.extra or "{}")
    except ValueError:
        raise BadInput(f"{named}: its extra is not JSON") from None
    if not isinstance(extra, dict):
        raise BadInput(f"{named}: its extra is not a mapping of {', '.join(names)}")
    for name in extra:
        if name not in names:
            raise BadInput(f"{named}: its extra has no field {name!r}; there are {', '.join(names)}")
    return {name: value for name, value in extra.items() if value is not None and value != ""}


def _texts(connection: Connection, named: str) -> Mapping[str, str]:
    extra = read_extra(connection, named, FIELDS)
    for name, value in extra.items():
        if not isinstance(value, str):
            raise BadInput(f"{named}: {name} in its extra is not a text")
    return {name: str(value) for name, value in extra.items()}


def _url(connection: Connection, driver: str, named: str) -> str:
    from sqlalchemy import URL

    if driver not in DRIVERS:
        raise BadInput(f"{named}: {driver!r} databases are not served; driver is one of {', '.join(DRIVERS)}")
    if driver == "sqlite":
        if not connection.schema:
            raise BadInput(f"{named}: driver is sqlite and schema, the path of its file, is empty")
        return URL.create("sqlite", database=connection.schema).render_as_string(hide_password=False)
    missing = [name for name in ("host", "schema") if not getattr(connection, name)]
    if missing:
        raise BadInput(
            f"{named} names no database: fill in {' and '.join(missing)}, or a whole SQLAlchemy URL as url in its extra"
        )
    url = URL.create(
        driver,
        username=connection.login or None,
        password=connection.password or None,
        host=connection.host,
        port=connection.port,
        database=connection.schema,
    )
    return url.render_as_string(hide_password=False)


class DispatchHook(BaseHook):
    """The connection type in Airflow's forms; tasks use `DispatchOperator`."""

    conn_name_attr = "dispatch_conn_id"
    default_conn_name = DEFAULT
    conn_type = "dispatch"
    hook_name = "dispatch"

    def __init__(self, dispatch_conn_id: str = DEFAULT, **options: Any) -> None:
        super().__init__(**options)
        self.dispatch_conn_id = dispatch_conn_id

    def get_conn(self) -> Settings:
        """What the connection says."""
        return settings(self.dispatch_conn_id)

    def test_connection(self) -> tuple[bool, str]:
        """Whether the database answers and has the tables, and one line about it."""
        from dispatch_core.stores import migrations

        try:
            found = read_settings(self.get_connection(self.dispatch_conn_id))
            revision = asyncio.run(migrations.current(found.url, schema=found.tables_schema))
        except DispatchError as error:
            return False, str(error)
        newest = migrations.newest()
        if revision != newest:
            return False, f"its tables are at {revision or 'nothing'}, and {newest} is needed: `airflow db migrate`"
        return True, f"the database answers, and its tables are at {revision}"
