"""The statements of a commit, made once: building them anew took longer than the database takes to carry them out.

One rule: the record's row is changed by one UPDATE that names the revision that was read, and the lease where there is
one; the history row follows in the same transaction, and only if that UPDATE changed a row. PostgreSQL does both in one
statement, which saves it a round trip.
"""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Insert, Table, Update, and_, bindparam, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from dispatch_core.record import Record
from dispatch_core.stores.contract import Lease
from dispatch_core.stores.schema import DatabaseTime, history, job

SET = ("revision", "commit_id", "document", "settled", "result")
"""The columns of a job that every commit sets, beside the time."""

ADDED = ("uid", "revision", "commit_id", "actor", "lines")
"""The columns of a history row, beside the time."""


def _given(table: Table, names: tuple[str, ...]) -> dict[str, ColumnElement[Any]]:
    """A parameter for each column: `new_revision` and so on."""
    return {name: bindparam(f"new_{name}", type_=table.c[name].type) for name in names}


def _replace(leased: bool) -> Update:
    mine = [job.c.uid == bindparam("new_uid"), job.c.revision == bindparam("against")]
    if leased:
        mine += [
            job.c.uid == bindparam("leased"),
            job.c.lease_owner == bindparam("owner"),
            job.c.lease_epoch == bindparam("epoch"),
        ]
    return update(job).where(and_(*mine)).values({**_given(job, SET), "updated": DatabaseTime()})


def _both(leased: bool) -> Insert:
    """The two as PostgreSQL's one."""
    done = _replace(leased).returning(job.c.uid).cte("done")
    given = _given(history, ADDED[1:])
    row = select(done.c.uid, *given.values(), DatabaseTime())
    return insert(history).from_select(["uid", *given, "at"], row)


ADD = insert(history).values({**_given(history, ADDED), "at": DatabaseTime()})
REPLACE = {leased: _replace(leased) for leased in (False, True)}
BOTH = {leased: _both(leased) for leased in (False, True)}


def given(
    written: Record, document: bytes, actor: str, lines: tuple[str, ...], against: int, lease: Lease | None
) -> dict[str, Any]:
    """The parameters of every one of them."""
    values = {
        "new_uid": written.uid,
        "new_revision": written.revision,
        "new_commit_id": written.commit,
        "new_document": document.decode(),
        "new_settled": written.settled,
        "new_result": written.outcome.result.value if written.outcome else None,
        "new_actor": actor,
        "new_lines": msgspec.json.encode(lines).decode(),
        "against": against,
    }
    if lease is not None:
        values |= {"leased": lease.uid, "owner": lease.owner, "epoch": lease.epoch}
    return values


async def change(connection: AsyncConnection, values: dict[str, Any]) -> bool:
    """Write the revision and its history row; False where nothing was written: it is not the revision, or the lease."""
    leased = "leased" in values
    if connection.dialect.name == "postgresql":
        return (await connection.execute(BOTH[leased], values)).rowcount == 1
    if (await connection.execute(REPLACE[leased], values)).rowcount != 1:
        return False
    await connection.execute(ADD, values)
    return True
