"""The block that says where the records of jobs are kept, and where the local scheduler has its spool.

One rule: a block is configuration and opens nothing. Pydantic is used here because Prefect's blocks demand it, and no
further in.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect.blocks.core import Block
from pydantic import Field, SecretStr, model_validator

SERVER_SCHEMA = "dispatch"
"""The PostgreSQL schema that holds our tables in Prefect's own database: a reset of that database leaves it alone."""


class DispatchStore(Block):
    """The store of a job's record: a database of your own, the Prefect server's own, or the user's own SQLite file.

    Attributes:
        url: A SQLAlchemy URL, `sqlite:////path/jobs.db` or `postgresql://user@host/name`.
        server: Use the database of the Prefect server itself, after `python -m prefect_collection.setup`.
        database_schema: The PostgreSQL schema that holds the tables.
        spool: The directory of the local scheduler.

    Example:
        ```python
        from prefect_collection.blocks import DispatchStore

        await DispatchStore(url="postgresql://dispatch@db/dispatch").save("jobs")
        ```
    """

    _block_type_name = "Dispatch Store"
    _block_type_slug = "dispatch-store"
    _description = "Where dispatch keeps the record of every job."

    url: SecretStr | None = Field(
        default=None,
        title="Database URL",
        description="A SQLAlchemy URL. Without one: the SQLite file of the user who runs the flow.",
    )
    server: bool = Field(
        default=False,
        title="The Prefect server's own database",
        description="Needs the server's database settings where the flow runs; refused where they lead elsewhere.",
    )
    database_schema: str | None = Field(
        default=None,
        title="Schema",
        description=f"PostgreSQL only. In the server's own database it is {SERVER_SCHEMA!r} unless told otherwise.",
    )
    spool: Path | None = Field(
        default=None,
        title="Spool directory",
        description="Of the local scheduler. Without one: in the data directory of the user who runs the flow.",
    )

    @classmethod
    def of_server(cls, **options: Any) -> DispatchStore:
        """The store in the Prefect server's own database; `options` are the other fields."""
        return cls(server=True, **options)

    @model_validator(mode="after")
    def _one_database(self) -> DispatchStore:
        if self.server and self.url is not None:
            raise ValueError("give a database URL, or server=True for the server's own database, not both")
        return self
