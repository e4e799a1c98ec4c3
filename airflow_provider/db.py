"""The tables in Airflow's metadata database: made, upgraded and dropped by Airflow's own commands.

One rule: the tables and their migrations are the core's; this room only tells Airflow where they are, so that
`airflow db migrate` makes what `dispatch db upgrade` would. A release that adds a migration adds its line to
`revision_heads_map`. Airflow discovers the class from the provider info; `airflow db-manager` alone reads only
`[database] external_db_managers`, where it has to be named too.
"""

from __future__ import annotations

from airflow.utils.db_manager import BaseDBManager
from alembic import command
from sqlalchemy import MetaData

from dispatch_core.stores.migrations import HERE
from dispatch_core.stores.schema import REVISION_TABLE, metadata


class DispatchDBManager(BaseDBManager):
    """What `airflow db migrate`, `check-migrations`, `reset` and `db-manager` do with the tables of dispatch."""

    metadata: MetaData = metadata
    version_table_name: str = REVISION_TABLE
    migration_dir: str = str(HERE)
    alembic_file: str = str(HERE / "alembic.ini")
    supports_table_dropping: bool = True
    revision_heads_map = {"0.1.0": "0001"}  # noqa: RUF012 - Airflow declares it as an instance's

    def downgrade(self, to_revision: str, from_revision: str | None = None, show_sql_only: bool = False) -> None:
        """Take the tables back to an earlier revision; "base" drops them, and every record with them."""
        revision = f"{from_revision}:{to_revision}" if show_sql_only and from_revision else to_revision
        command.downgrade(self.get_alembic_config(), revision, sql=show_sql_only)  # type: ignore[no-untyped-call]
