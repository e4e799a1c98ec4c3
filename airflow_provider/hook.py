"""The connection type `dispatch`: where the records are, and where the local scheduler's spool is.

One rule: the records are where a deployer wrote into a connection on purpose; what Airflow itself is configured with is
never looked at. That is a database, which may be Airflow's own, best by a role that has rights on the `dispatch_`
tables alone; or, for workers that reach none, the address of a server: Airflow's API server with `/dispatch`.

A connection is looked up once in a process. In a triggerer, the first lookup that Airflow's API has to answer stops the
heartbeat for as long as that API takes to load, 10 to 26 s on a small machine; one in the environment, as
`AIRFLOW_CONN_DISPATCH_DEFAULT`, or in a secrets backend does not. Where it has to be the API, set `[triggerer]
triggerer_health_check_threshold` to 120 or more, so that the triggers are not given to another triggerer meanwhile.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from dispatch_core.errors import BadInput, DispatchError
from dispatch_core.places import is_served
from dispatch_core.stores.contract import Lease, Store

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
    user: str | None = None
    """Who logs in to the server at `url`; None: the password is a token."""
    password: str | None = field(default=None, repr=False)

    @property
    def served(self) -> bool:
        """Whether the records are behind a server."""
        return is_served(self.url)

    def open_store(self) -> Store:
        """The store, in the event loop that is running; whoever opened it closes it. Raises BadInput."""
        if not self.served:
            from dispatch_core.stores.sql import open_store

            return open_store(self.url, schema=self.tables_schema)
        from airflow_provider.login import Login
        from dispatch_core.stores.http import HttpStore
        from dispatch_core.stores.line import Credential, Token

        credential: Credential = Token(self.password)
        if self.user is not None:
            credential = Login(self.url.rpartition("/")[0], self.user, self.password or "")
        return HttpStore(self.url, credential)


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
    url = extra.get("url") or _address(connection)
    served = url is not None and is_served(url)
    url = url or _url(connection, extra.get("driver") or "postgresql", named)
    spool = extra.get("spool")
    if spool is not None and not Path(spool).is_absolute():
        raise BadInput(f"{named}: the spool {spool!r} is not absolute; a triggerer has no directory to start from")
    found = Settings(url=url, tables_schema=extra.get("tables_schema"), spool=Path(spool) if spool else None)
    return _with_user(found, connection, named) if served else found


def _address(connection: Connection) -> str | None:
    """The address of a server, where the host is one; None: it is a database's."""
    host = connection.host or ""
    if not is_served(host):
        return None
    address = urlsplit(host)
    if connection.port is None or address.port is not None:
        return host
    return urlunsplit(address._replace(netloc=f"{address.netloc}:{connection.port}"))


def _with_user(found: Settings, connection: Connection, named: str) -> Settings:
    """The settings of a server, with who asks it. Raises BadInput."""
    from dispatch_core.stores.line import read_url

    if found.tables_schema is not None:
        raise BadInput(f"{named}: tables_schema is a database's, and its url is a server's address; leave it empty")
    if not connection.password:
        raise BadInput(f"{named}: the server wants a password: the one of the user in login, or without one a token")
    try:
        url = read_url(found.url)
    except BadInput as error:
        raise BadInput(f"{named}: {error}") from None
    user = connection.login or None
    if user is not None and urlsplit(url).path in ("", "/"):
        raise BadInput(f"{named}: {url} is no address of the plugin in Airflow's API server, which ends in /dispatch")
    return replace(found, url=url, user=user, password=connection.password)


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


async def _tried(found: Settings) -> str:
    """One line about a server that lets this user supervise; nothing is changed. Raises DispatchError."""
    store = found.open_store()
    try:
        await store.release(Lease(uid="0" * 16, owner="a trial", epoch=0))  # of no record: nothing happens
    finally:
        await store.close()
    return f"{found.url} answers, and lets {found.user or 'this token'} supervise jobs"


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
        """Whether the database answers and has the tables, or the server lets its user in; and one line about it."""
        from dispatch_core.stores import migrations

        try:
            found = read_settings(self.get_connection(self.dispatch_conn_id))
            if found.served:
                return True, asyncio.run(_tried(found))
            revision = asyncio.run(migrations.current(found.url, schema=found.tables_schema))
        except DispatchError as error:
            return False, str(error)
        newest = migrations.newest()
        if revision != newest:
            return False, f"its tables are at {revision or 'nothing'}, and {newest} is needed: `airflow db migrate`"
        return True, f"the database answers, and its tables are at {revision}"
