"""The tables of jobs and of their history.

A released migration is never edited, so it repeats what `schema` says today and imports none of it.
"""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

EXACT = {"charset": "utf8mb4", "collation": "utf8mb4_bin"}


def name(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(mysql.VARCHAR(length, **EXACT), "mysql", "mariadb")


def long() -> sa.types.TypeEngine[str]:
    return sa.Text().with_variant(mysql.LONGTEXT(**EXACT), "mysql", "mariadb")


def moment() -> sa.types.TypeEngine[datetime]:
    return sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def upgrade() -> None:
    op.create_table(
        "dispatch_job",
        sa.Column("uid", name(32), nullable=False),
        sa.Column("key", name(250), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("scheduler", name(250), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("commit_id", name(64), nullable=False),
        sa.Column("document", long(), nullable=False),
        sa.Column("settled", sa.Boolean(), nullable=False),
        sa.Column("result", name(16), nullable=True),
        sa.Column("created", moment(), nullable=False),
        sa.Column("updated", moment(), nullable=False),
        sa.Column("lease_owner", name(250), nullable=True),
        sa.Column("lease_epoch", sa.Integer(), nullable=False),
        sa.Column("lease_until", moment(), nullable=True),
        sa.PrimaryKeyConstraint("uid", name=op.f("pk_dispatch_job")),
        sa.UniqueConstraint("key", "number", name=op.f("uq_dispatch_job_key_number")),
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )
    op.create_index(op.f("ix_dispatch_job_settled_updated"), "dispatch_job", ["settled", "updated"])
    op.create_table(
        "dispatch_history",
        sa.Column("uid", name(32), nullable=False),
        sa.Column("revision", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("commit_id", name(64), nullable=False),
        sa.Column("at", moment(), nullable=False),
        sa.Column("actor", long(), nullable=False),
        sa.Column("lines", long(), nullable=False),
        sa.PrimaryKeyConstraint("uid", "revision", name=op.f("pk_dispatch_history")),
        sa.UniqueConstraint("commit_id", name=op.f("uq_dispatch_history_commit_id")),
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )


def downgrade() -> None:
    op.drop_table("dispatch_history")
    op.drop_table("dispatch_job")
