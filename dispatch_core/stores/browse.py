"""Where the jobs of one page of a long list are.

One rule: a page costs about the same, whether ten jobs or ten thousand come before it: it begins at a place, not after
so many rows, and no document is read for a job that is not on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, or_, select

from dispatch_core.stores.contract import Place
from dispatch_core.stores.schema import DatabaseTime, job


def places(limit: int, wanted: Iterable[ColumnElement[bool]], after: Place | None, unattended: bool) -> Select[Any]:
    """The uids of the next `limit` jobs behind a place, newest change first; of a reused key only the newest record."""
    later = job.alias()
    newest = ~select(later.c.uid).where(later.c.key == job.c.key, later.c.number > job.c.number).exists()
    conditions = [*wanted, newest]
    if after is not None:
        same = and_(job.c.updated == after.updated, job.c.uid < after.uid)
        conditions += [job.c.updated <= after.updated, or_(job.c.updated < after.updated, same)]
    if unattended:
        conditions.append(or_(job.c.lease_until.is_(None), job.c.lease_until <= DatabaseTime()))
    return (
        select(job.c.uid, job.c.updated)
        .where(*conditions)
        .order_by(job.c.updated.desc(), job.c.uid.desc())
        .limit(limit)
    )
