"""The statements of a commit, made once: building them anew took longer than the database takes to carry them out.

One rule: the record's row is changed by one UPDATE that names the revision that was read, and the lease where there is
one; the history row follows in the same transaction, and only if that UPDATE changed a row. PostgreSQL does both in one
statement, which saves it a round trip.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Insert, Table, Update, and_, bindparam, insert, select, tuple_, update
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


HELD = and_(
    job.c.uid == bindparam("leased"),
    job.c.lease_owner == bindparam("owner"),
    job.c.lease_epoch == bindparam("epoch"),
)
"""Whether a row's lease is this one; that its time has run out does not matter until another takes it."""


def _replace(leased: bool) -> Update:
    mine: list[ColumnElement[bool]] = [job.c.uid == bindparam("new_uid"), job.c.revision == bindparam("against")]
    if leased:
        mine.append(HELD)
    return update(job).where(and_(*mine)).values({**_given(job, SET), "updated": DatabaseTime()})


def _both(leased: bool) -> Insert:
    """The two as PostgreSQL's one."""
    done = _replace(leased).returning(job.c.uid).cte("done")
    given = _given(history, ADDED[1:])
    row = select(done.c.uid, *given.values(), DatabaseTime())
    return insert(history).from_select(["uid", *given, "at"], row)


GIVE_UP = update(job).where(HELD).values(lease_owner=None, lease_until=None)
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
        values |= whose(lease)
    return values


def whose(lease: Lease) -> dict[str, Any]:
    """The parameters that name a lease."""
    return {"leased": lease.uid, "owner": lease.owner, "epoch": lease.epoch}


@lru_cache(maxsize=16)
def renewals(seconds: float) -> Update:
    """Holds `leases`, each a uid, an owner and an epoch, for so much longer: those of them that are held. `uids` are
    theirs: MariaDB would look through all rows for a tuple, and lock them."""
    one = tuple_(job.c.uid, job.c.lease_owner, job.c.lease_epoch)
    asked, held = job.c.uid.in_(bindparam("uids", expanding=True)), one.in_(bindparam("leases", expanding=True))
    return update(job).where(asked, held).values(lease_until=DatabaseTime(seconds))


async def change(connection: AsyncConnection, values: dict[str, Any]) -> bool:
    """Write the revision and its history row; False where nothing was written: it is not the revision, or the lease."""
    leased = "leased" in values
    if connection.dialect.name == "postgresql":
        return (await connection.execute(BOTH[leased], values)).rowcount == 1
    if (await connection.execute(REPLACE[leased], values)).rowcount != 1:
        return False
    await connection.execute(ADD, values)
    return True
