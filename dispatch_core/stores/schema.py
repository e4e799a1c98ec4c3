"""The two tables of a database, and its clock.

One rule: every time that is stored or compared comes from the database, so that no supervisor's clock decides who holds
a job. The tables have a metadata of their own and names that begin with `dispatch_`, to live in a database that belongs
to somebody else. The migrations make the same tables; a test compares them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    Dialect,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    literal,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import DateTime, TypeDecorator, TypeEngine

from dispatch_core.record import KEY_LENGTH

REVISION_TABLE = "dispatch_alembic_version"
"""Where Alembic keeps the revision of these tables."""

NAMES = {
    "pk": "pk_%(table_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
}

metadata = MetaData(naming_convention=NAMES)


class Moment(TypeDecorator[datetime]):
    """A point in time, aware and UTC, to the microsecond (SQLite: millisecond)."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name in ("mysql", "mariadb"):
            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return dialect.type_descriptor(DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        value = value.astimezone(UTC)
        return value if dialect.name == "postgresql" else value.replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None or value.tzinfo is not None:
            return value
        return value.replace(tzinfo=UTC)


def _exact(length: int) -> TypeEngine[str]:
    """Text in which `a` and `A` differ, also where a database's default is that they do not."""
    binary = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return String(length).with_variant(binary, "mysql", "mariadb")


def _long() -> TypeEngine[str]:
    """Text without a limit of its own: MySQL's plain TEXT ends at 64 KiB."""
    return Text().with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb")


job = Table(
    "dispatch_job",
    metadata,
    Column("uid", _exact(32), primary_key=True),
    Column("key", _exact(KEY_LENGTH), nullable=False),
    Column("number", Integer, nullable=False),  # which record under its key: 1, 2, ...
    Column("scheduler", _exact(250), nullable=False),
    Column("revision", Integer, nullable=False),
    Column("commit_id", _exact(64), nullable=False),  # of the commit that made this revision
    Column("document", _long(), nullable=False),
    Column("settled", Boolean, nullable=False),
    Column("result", _exact(16)),  # of the outcome, for people who look with SQL
    Column("created", Moment, nullable=False),
    Column("updated", Moment, nullable=False),
    Column("lease_owner", _exact(250)),
    Column("lease_epoch", Integer, nullable=False),
    Column("lease_until", Moment),
    UniqueConstraint("key", "number"),
    Index(None, "settled", "updated"),
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)

history = Table(
    "dispatch_history",
    metadata,
    Column("uid", _exact(32), primary_key=True),
    Column("revision", Integer, primary_key=True, autoincrement=False),
    Column("commit_id", _exact(64), nullable=False),
    Column("at", Moment, nullable=False),
    Column("actor", _long(), nullable=False),
    Column("lines", _long(), nullable=False),
    UniqueConstraint("commit_id"),
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)


class DatabaseTime(FunctionElement[datetime]):
    """The database's clock now, or so many seconds from now: not the time at which the transaction began."""

    name = "database_time"
    inherit_cache = True
    type = Moment()

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__(literal(seconds, Float))


@compiles(DatabaseTime, "sqlite")
def _sqlite(element: DatabaseTime, compiler: SQLCompiler, **options: Any) -> str:
    seconds = compiler.process(element.clauses, **options)
    # As SQLAlchemy writes a datetime: SQLite compares them as text.
    return f"strftime('%Y-%m-%d %H:%M:%f000', 'now', ({seconds}) || ' seconds')"


@compiles(DatabaseTime, "postgresql")
def _postgresql(element: DatabaseTime, compiler: SQLCompiler, **options: Any) -> str:
    # clock_timestamp, unlike now(), is read again when a row that was waited for is looked at again.
    return f"(clock_timestamp() + make_interval(secs => {compiler.process(element.clauses, **options)}))"


@compiles(DatabaseTime, "mysql", "mariadb")
def _mysql(element: DatabaseTime, compiler: SQLCompiler, **options: Any) -> str:
    seconds = compiler.process(element.clauses, **options)
    return f"TIMESTAMPADD(MICROSECOND, ROUND(({seconds}) * 1000000), UTC_TIMESTAMP(6))"
