"""What may be deleted of a SQL database, and how: settled records that nothing has changed for long.

One rule: a record goes whole, job row and history in one transaction, and only if its own row still says that it is
settled and old. Rows are taken in the order of keys and numbers, by every prune, and a commit holds one row only: no
two can wait for each other. It reads documents to leave alone what this version cannot read; it decides nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Select, and_, delete, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from dispatch_core.errors import UnreadableRecord
from dispatch_core.stores import rules
from dispatch_core.stores.schema import history, job

BATCH = 100
"""Records of one transaction: so long do others wait, at most, for one of its rows."""

Place = tuple[str, int]
"""A record's key and number: where a prune has got to."""


def old_ones(before: datetime, after: Place | None) -> Select[Any]:
    """The next batch of records that may go; none of them is newer than one under its key that must stay."""
    older = job.alias()
    stays = or_(~older.c.settled, older.c.updated >= before)
    mine = and_(older.c.key == job.c.key, older.c.number < job.c.number, stays)
    wanted = [job.c.settled, job.c.updated < before, ~select(older.c.uid).where(mine).exists()]
    if after is not None:
        key, number = after
        wanted.append(or_(job.c.key > key, and_(job.c.key == key, job.c.number > number)))
    columns = (job.c.key, job.c.uid, job.c.number, job.c.revision, job.c.document)
    return select(*columns).where(*wanted).order_by(job.c.key, job.c.number).limit(BATCH)


def readable(rows: Sequence[Row[Any]], kept: set[str]) -> list[Row[Any]]:
    """The rows whose records can be read; the keys of the others, under which nothing newer may go, join `kept`."""
    found = []
    for row in rows:
        if row.key in kept:
            continue
        try:
            rules.read_document(row.document, row.key, row.uid, row.revision)
            found.append(row)
        except UnreadableRecord:
            kept.add(row.key)
    return found


async def drop(connection: AsyncConnection, rows: Sequence[Row[Any]], before: datetime, gone: set[str]) -> None:
    """Delete these records, unless they have changed since they were read; the uids of those deleted join `gone`."""
    changed = set()
    for row in rows:
        if row.key in changed:
            continue
        old = and_(job.c.uid == row.uid, job.c.settled, job.c.updated < before)
        if (await connection.execute(delete(job).where(old))).rowcount == 1:
            await connection.execute(delete(history).where(history.c.uid == row.uid))
            gone.add(row.uid)
        elif row.uid not in gone:
            changed.add(row.key)
