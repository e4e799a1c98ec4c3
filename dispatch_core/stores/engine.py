"""From a database URL to an engine, and from a database's errors to ours.

One rule: no password is ever in an error, and every call to a database is bounded in time. Which driver serves which
database, and what each must be told before it is safe to commit on, is known here and nowhere else.
"""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from sqlalchemy import URL, Connection, Dialect, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from dispatch_core.errors import BadInput, DispatchError, StoreUnavailable

CONNECT_SECONDS = 10
STATEMENT_SECONDS = 15
"""The longest wait for one statement, for SQLite's one writer and for a row that another transaction holds."""

TRANSACTION_SECONDS = 2 * STATEMENT_SECONDS
"""The longest for one try of a transaction, waiting for a connection included, whatever the driver can bound itself."""

IDLE_SECONDS = 60
"""PostgreSQL ends a transaction whose client is silent for so long: a supervisor stopped in mid-commit must not keep
the others from the job."""

WRITES = "dispatch_writes"
"""The execution option that says of a transaction that it writes."""

UPGRADE = "run `dispatch db upgrade` (in Airflow: `airflow db migrate`)"


class Driver(NamedTuple):
    """What serves one kind of database."""

    name: str
    extra: str
    """What to install with dispatch to have it."""


DRIVERS = {
    "sqlite": Driver("aiosqlite", ""),
    "postgresql": Driver("asyncpg", "postgres"),
    "postgres": Driver("asyncpg", "postgres"),
    "mysql": Driver("aiomysql", "mysql"),
    "mariadb": Driver("aiomysql", "mysql"),
}

BROKEN = (SQLAlchemyError, OSError)
"""What a database that breaks off or refuses raises: OSError, and with it TimeoutError, comes through bare."""

_REPEATABLE_STATES = frozenset({"25P03", "40001", "40P01", "53300", "55P03", "57P01", "57P02", "57P03"})
"""PostgreSQL: idle too long, serialization, deadlock, too many connections, row not free, shut down twice, starting."""

_REPEATABLE_NUMBERS = frozenset({1040, 1047, 1053, 1203, 1205, 1213, 1927, 2003, 2006, 2013})
"""MySQL and MariaDB: too many connections, a cluster's node not ready, shut down, too many of one user, row not free,
deadlock, hung up on, no connection, and lost twice."""

_NOT_SET_UP_STATES = frozenset({"42P01", "42703", "3F000"})
_NOT_SET_UP_NUMBERS = frozenset({1054, 1146})
_NOT_SET_UP_TEXTS = ("no such table", "no such column", "has no column")


def make_engine(url: str, schema: str | None = None, *, upgrading: bool = False) -> AsyncEngine:
    """An engine for one event loop; raises BadInput for a URL that cannot be served.

    `upgrading`: a SQLite file that is not there is made, and a statement may take its time. Without it a missing file
    is an error: an empty database that nobody asked for would be a second truth.
    """
    try:
        parsed = make_url(url)
    except ArgumentError:
        # Not chained: the library's text repeats the URL, password and all.
        raise BadInput("the database URL cannot be read; write it like postgresql://user@host/name") from None
    backend = parsed.get_backend_name()
    if backend not in DRIVERS:
        raise BadInput(f"{backend} databases are not served; use sqlite, postgresql, mysql or mariadb")
    if schema is not None and DRIVERS[backend].name != "asyncpg":
        raise BadInput(f"a schema can be chosen in PostgreSQL only, not in {backend}")
    family = "postgresql" if backend == "postgres" else backend
    parsed = parsed.set(drivername=f"{family}+{DRIVERS[backend].name}")
    parsed, options = _OPTIONS[family](parsed, schema, upgrading)
    try:
        engine = create_async_engine(
            parsed, hide_parameters=True, pool_size=5, max_overflow=5, pool_timeout=TRANSACTION_SECONDS, **options
        )
    except (ModuleNotFoundError, NoSuchModuleError) as error:
        raise BadInput(
            f"{backend} needs the driver {DRIVERS[backend].name}:"
            f" pip install 'dispatch-supervisor[{DRIVERS[backend].extra}]'"
        ) from error
    if family == "sqlite":
        _prepare_sqlite(engine)
    return engine


def _sqlite_options(url: URL, schema: str | None, upgrading: bool) -> tuple[URL, dict[str, Any]]:
    if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        raise BadInput("a SQLite store needs the path of a file: sqlite:///jobs.db")
    # The file's URI form is the only one in which SQLite can be told not to make a file.
    file = "file:" + quote(str(Path(url.database).absolute()))
    url = url.set(database=file, query={"mode": "rwc" if upgrading else "rw", "uri": "true"})
    return url, {"connect_args": {"timeout": STATEMENT_SECONDS, "isolation_level": None}}


def _postgresql_options(url: URL, schema: str | None, upgrading: bool) -> tuple[URL, dict[str, Any]]:
    query = {"ssl" if name == "sslmode" else name: value for name, value in url.query.items()}
    settings = {"idle_in_transaction_session_timeout": str(IDLE_SECONDS * 1000), "application_name": "dispatch"}
    if schema is not None:
        settings["search_path"] = '"' + schema.replace('"', '""') + '"'
    patience = None if upgrading else STATEMENT_SECONDS
    arguments = {"timeout": CONNECT_SECONDS, "command_timeout": patience, "server_settings": settings}
    return url.set(query=query), {"isolation_level": "READ COMMITTED", "connect_args": arguments}


def _mysql_options(url: URL, schema: str | None, upgrading: bool) -> tuple[URL, dict[str, Any]]:
    wait = f"SET SESSION innodb_lock_wait_timeout = {math.ceil(STATEMENT_SECONDS)}"
    arguments = {"connect_timeout": CONNECT_SECONDS, "charset": "utf8mb4", "init_command": wait}
    return url, {"isolation_level": "READ COMMITTED", "connect_args": arguments}


_OPTIONS = {
    "sqlite": _sqlite_options,
    "postgresql": _postgresql_options,
    "mysql": _mysql_options,
    "mariadb": _mysql_options,
}


def _prepare_sqlite(engine: AsyncEngine) -> None:
    """Make SQLite keep what it says it committed, and take the right to write before it reads."""

    @event.listens_for(engine.sync_engine, "do_connect")
    def try_first(dialect: Dialect, entry: ConnectionPoolEntry, arguments: list[Any], options: dict[str, Any]) -> None:
        # A file that cannot be opened is refused here: the driver would leave a thread behind that answers to nobody.
        sqlite3.connect(*arguments, **options).close()

    @event.listens_for(engine.sync_engine, "connect")
    def configure(connection: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        # In WAL mode anything less may lose the last commits when the power fails.
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def begin(connection: Connection) -> None:
        # A transaction that reads first and then wants to write is refused at once, however long it would wait.
        # What only reads needs none: each of its statements sees one state of the file.
        if connection.get_execution_options().get(WRITES, False):
            connection.exec_driver_sql("BEGIN IMMEDIATE")


def is_repeatable(error: BaseException) -> bool:
    """Whether the same transaction may well succeed when it is repeated: another was in the way, or the line broke."""
    if not isinstance(error, DBAPIError):
        return isinstance(error, OSError)
    code = _code(error)
    return (
        error.connection_invalidated
        or isinstance(error, IntegrityError)  # another was faster: looked at again, it is there
        or code in _REPEATABLE_STATES
        or code in _REPEATABLE_NUMBERS
        or str(code).startswith(("08", "SQLITE_BUSY", "SQLITE_LOCKED"))
    )


def refusal(error: BaseException, engine: AsyncEngine) -> DispatchError:
    """What a person is told when the database did not do it."""
    where = shown(engine.url)
    if isinstance(error, PoolTimeout):
        return StoreUnavailable(f"the store {where} is too busy: no connection became free; try again later")
    text = " ".join(str(getattr(error, "orig", error)).split()) or type(error).__name__
    code = _code(error)
    if isinstance(error, IntegrityError):
        return BadInput(f"the store {where} has this uid or commit id for another record; nothing was written ({text})")
    if isinstance(error, DataError) or str(code).startswith("22"):
        return BadInput(f"the store {where} cannot hold this; nothing was written ({text})")
    if code == "SQLITE_CANTOPEN":
        return StoreUnavailable(f"the store {where} cannot be opened; its folder must exist; to make it, {UPGRADE}")
    missing = code in _NOT_SET_UP_STATES or code in _NOT_SET_UP_NUMBERS
    if missing or any(part in text for part in _NOT_SET_UP_TEXTS):
        return StoreUnavailable(f"the store {where} has no tables of this version of dispatch; {UPGRADE} ({text})")
    return StoreUnavailable(f"the store {where} did not answer: {text}; nothing is decided until it does")


def shown(url: URL) -> str:
    """The database as a person would name it, without what is secret: a query may hold a password as well."""
    if url.get_backend_name() == "sqlite":
        return unquote(str(url.database).removeprefix("file:"))
    return url.set(drivername=url.get_backend_name(), query={}).render_as_string(hide_password=True)


def _code(error: BaseException) -> str | int | None:
    """The database's own word for an error: SQLSTATE, MySQL's number, or SQLite's name."""
    cause = getattr(error, "orig", None)
    first = next(iter(getattr(cause, "args", ())), None)
    if isinstance(first, int):
        return first  # before the SQLSTATE that MySQL's drivers give beside it, which says HY000 of most
    found = (getattr(cause, name, None) for name in ("sqlstate", "sqlite_errorname"))
    return next((word for word in found if isinstance(word, str)), None)
