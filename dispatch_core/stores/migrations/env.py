"""What Alembic runs to reach the database: on the connection it was given, or on the URL in its configuration.

One rule: only our tables are looked at, and their revision is kept in a table of our own, whoever drives this: our own
upgrade, or an engine that upgrades its providers' tables together with its own.
"""

from __future__ import annotations

from typing import Any

from alembic import context
from sqlalchemy import Connection, create_engine
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import SchemaItem

from dispatch_core.stores.schema import REVISION_TABLE, metadata


def is_ours(item: SchemaItem, name: str | None, kind: str, reflected: bool, compared: SchemaItem | None) -> bool:
    return kind != "table" or name in metadata.tables


def migrate(**source: Any) -> None:
    context.configure(target_metadata=metadata, version_table=REVISION_TABLE, include_object=is_ours, **source)
    with context.begin_transaction():
        context.run_migrations()


given: Connection | None = context.config.attributes.get("connection")
url = context.config.get_main_option("sqlalchemy.url")
if context.is_offline_mode():
    migrate(url=url, literal_binds=True)
elif given is not None:
    migrate(connection=given)
else:
    engine = create_engine(str(url), poolclass=NullPool)
    with engine.connect() as connection:
        migrate(connection=connection)
    engine.dispose()
