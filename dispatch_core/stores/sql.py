"""Records kept in a SQL database: SQLite, PostgreSQL, MySQL, MariaDB.

One rule: a record changes in one UPDATE that names the revision that was read, with its history row in the same
transaction. Whatever broke on the way, the transaction is repeated, and that is how it is read back: it waits for the
row, so whatever was in flight has ended, and the commit's own id in `history` tells whether it landed.

A store belongs to the event loop that first used it; open one for each loop, and close it in that loop. It knows
records and leases; it decides nothing.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import msgspec
from sqlalchemy import ColumnElement, Row, Select, and_, case, insert, null, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from dispatch_core.errors import CommitUnknown, UnreadableRecord
from dispatch_core.record import Record
from dispatch_core.stores import browse, prune, rules
from dispatch_core.stores.change import ADD, GIVE_UP, SET, change, given, renewals, whose
from dispatch_core.stores.contract import Change, Lease, Listed, Place, Pruned
from dispatch_core.stores.engine import BROKEN, TRANSACTION_SECONDS, WRITES, is_repeatable, make_engine, refusal
from dispatch_core.stores.gathering import Gathered
from dispatch_core.stores.schema import DatabaseTime, history, job

PAUSES = (0.05, 0.2, 0.8)
"""Seconds between the four tries of a transaction."""

UIDS_A_QUERY = 1000
"""Databases limit the parameters of one statement."""

CHANGES_MANY_AT_ONCE = ("postgresql", "sqlite")
"""MariaDB locks every row that it looks at, in the order of the index that it happens to choose: two statements that
change several rows of a small table may wait for each other."""

DECODED_AT_ONCE = 200
"""Records read between two looks at the event loop: a long list must not keep every other job waiting."""

T = TypeVar("T")
Work = Callable[[AsyncConnection], Awaitable[T]]


def open_store(url: str, *, schema: str | None = None) -> SqlStore:
    """The store at a SQLAlchemy URL (`sqlite:///jobs.db`, `postgresql://user@host/name`); nothing is connected yet.

    `schema`: the PostgreSQL schema that holds the tables. Raises BadInput for a URL that cannot be served, and where
    the driver is not installed. Whoever opened it closes it.
    """
    return SqlStore(make_engine(url, schema))


class SqlStore:
    """The contract on one database, in one event loop."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        # A transaction around one statement would cost PostgreSQL two more round trips.
        bare = engine.dialect.name == "postgresql"
        self._writer = engine.execution_options(**{WRITES: True})
        self._reader = engine.execution_options(isolation_level="AUTOCOMMIT") if bare else engine
        self._single = self._reader if bare else self._writer
        # SQLite has one writer at a time. In this loop they queue here, in order; its own wait is a lottery.
        self._turn: AbstractAsyncContextManager[None] = (
            asyncio.Semaphore(1) if engine.dialect.name == "sqlite" else nullcontext()
        )

        self._revisions = Gathered(self._revisions_of)
        self._renewals = Gathered(self._renewed)

    async def create(self, record: Record, *, commit: str, actor: str, new: bool = False) -> Record:
        written, document = rules.prepare(record, 1, commit)
        values = given(written, document, actor, rules.CREATED, 0, None)

        async def work(connection: AsyncConnection) -> Record:
            newest = (await connection.execute(_newest(record.key))).first()
            answer = rules.existing(_record(newest) if newest else None, written, new)
            if answer is not None:
                return answer
            row = {
                **{name: values[f"new_{name}"] for name in SET},
                "uid": record.uid,
                "key": record.key,
                "number": newest.number + 1 if newest else 1,
                "scheduler": record.scheduler,
                "created": DatabaseTime(),
                "updated": DatabaseTime(),
                "lease_epoch": 0,
            }
            await connection.execute(insert(job).values(row))
            await connection.execute(ADD, values)
            return written

        return await self._write(work, rules.unknown(record.key, commit))

    async def read(self, key: str, uid: str | None = None) -> Record:
        rows = await self._read(_all(_newest(key, uid)))
        if not rows or rows[0].key != key:  # MySQL takes no notice of spaces at the end
            raise rules.not_found(key, uid)
        return _record(rows[0])

    async def revision(self, key: str, uid: str) -> int:
        revision = await self._revisions.of((key, uid))
        if revision is None:
            raise rules.not_found(key, uid)
        return revision

    async def _revisions_of(self, asked: list[tuple[str, str]]) -> dict[tuple[str, str], int]:
        rows: list[Row[Any]] = []
        for start in range(0, len(asked), UIDS_A_QUERY):
            some = job.c.uid.in_([uid for _, uid in asked[start : start + UIDS_A_QUERY]])
            rows += await self._read(_all(select(job.c.key, job.c.uid, job.c.revision).where(some)))
        return {(row.key, row.uid): row.revision for row in rows}

    async def commit(
        self,
        record: Record,
        *,
        against: int,
        commit: str,
        actor: str,
        lines: tuple[str, ...],
        lease: Lease | None = None,
    ) -> Record:
        written, document = rules.prepare(record, against + 1, commit)
        values = given(written, document, actor, lines, against, lease)

        async def work(connection: AsyncConnection) -> None:
            if not await change(connection, values):
                await _not_changed(connection, written, lease)

        await self._write(work, rules.unknown(record.key, commit))
        return written

    async def jobs(
        self, *, settled: bool | None = None, key_prefix: str = "", uids: frozenset[str] | None = None
    ) -> list[Listed]:
        wanted = [] if settled is None else [job.c.settled == settled]
        if key_prefix:
            wanted += _begins_with(key_prefix, self._engine.dialect.name)
        if uids is None:
            later = job.alias()
            wanted.append(~select(later.c.uid).where(later.c.key == job.c.key, later.c.number > job.c.number).exists())
            rows = await self._read(_all(_listing(wanted)))
        else:
            rows = []
            ordered = sorted(uids)
            for start in range(0, len(ordered), UIDS_A_QUERY):
                some = job.c.uid.in_(ordered[start : start + UIDS_A_QUERY])
                rows += await self._read(_all(_listing([*wanted, some])))
            rows.sort(key=lambda row: row.updated, reverse=True)
        rows = [row for row in rows if row.key.startswith(key_prefix)]
        listed = []
        for start in range(0, len(rows), DECODED_AT_ONCE):
            listed += [_listed(row) for row in rows[start : start + DECODED_AT_ONCE]]
            await asyncio.sleep(0)
        return listed

    async def page(
        self,
        limit: int,
        *,
        after: Place | None = None,
        settled: bool | None = None,
        unattended: bool = False,
        key_prefix: str = "",
    ) -> list[Listed]:
        wanted = _begins_with(key_prefix, self._engine.dialect.name) if key_prefix else []
        halves = (False,) if unattended else (False, True) if settled is None else (settled,)
        found: list[Row[Any]] = []
        for half in halves:  # one at a time, as the index on (settled, updated) has them in order
            found += await self._read(_all(browse.places(limit, [job.c.settled == half, *wanted], after, unattended)))
        found.sort(key=lambda row: (row.updated, row.uid), reverse=True)
        listed = {row.uid: row for row in await self.jobs(uids=frozenset(row.uid for row in found[:limit]))}
        # Read a moment later: what was pruned meanwhile is left out, what was changed keeps the place that it had.
        return [
            msgspec.structs.replace(one, updated=row.updated)
            for row in found[:limit]
            if (one := listed.get(row.uid)) is not None and one.key.startswith(key_prefix)
        ]

    async def history(self, key: str, uid: str | None = None) -> list[Change]:
        async def work(connection: AsyncConnection) -> list[Row[Any]] | None:
            row = (await connection.execute(_newest(key, uid))).first()
            if row is None or row.key != key:
                return None
            rows = select(history).where(history.c.uid == row.uid).order_by(history.c.revision)
            return list(await connection.execute(rows))

        rows = await self._read(work)
        if rows is None:
            raise rules.not_found(key, uid)
        return [
            Change(revision=row.revision, commit=row.commit_id, at=row.at, actor=row.actor, lines=_lines(key, row))
            for row in rows
        ]

    async def acquire(self, record: Record, owner: str, seconds: float) -> Lease:
        mine = job.c.uid == record.uid
        free = or_(job.c.lease_owner.is_(None), job.c.lease_owner == owner, job.c.lease_until <= DatabaseTime())
        taken = {"lease_owner": owner, "lease_epoch": job.c.lease_epoch + 1, "lease_until": DatabaseTime(seconds)}

        async def work(connection: AsyncConnection) -> Lease:
            done = await connection.execute(update(job).where(mine, free).values(taken))
            row = (await connection.execute(select(job.c.lease_owner, job.c.lease_epoch).where(mine))).first()
            if row is None:
                raise rules.not_found(record.key, record.uid)
            if done.rowcount == 0:
                raise rules.owned(record.key, row.lease_owner or "another")
            return Lease(uid=record.uid, owner=owner, epoch=row.lease_epoch)

        return await self._write(work)

    async def renew(self, lease: Lease, seconds: float) -> None:
        holder = await self._renewals.of((lease, seconds))
        if holder is None:
            raise rules.no_record(lease.uid)
        if (holder.lease_owner, holder.lease_epoch) != (lease.owner, lease.epoch):
            raise rules.displaced(holder.key, lease)

    async def _renewed(self, asked: list[tuple[Lease, float]]) -> dict[tuple[Lease, float], Row[Any]]:
        """Who holds each of these jobs, now that the leases that are held are for so much longer."""
        told: dict[tuple[Lease, float], Row[Any]] = {}
        at_once = UIDS_A_QUERY if self._engine.dialect.name in CHANGES_MANY_AT_ONCE else 1
        for seconds in {seconds for _, seconds in asked}:
            leases = sorted((lease for lease, wanted in asked if wanted == seconds), key=lambda lease: lease.uid)
            for start in range(0, len(leases), at_once):
                rows = await self._write(partial(_renew, leases[start : start + at_once], seconds), single=True)
                told |= {(lease, seconds): rows[lease.uid] for lease in leases if lease.uid in rows}
        return told

    async def release(self, lease: Lease) -> None:
        async def work(connection: AsyncConnection) -> None:
            await connection.execute(GIVE_UP, whose(lease))

        await self._write(work)

    async def prune(self, before: datetime, *, trial: bool = False) -> Pruned:
        deleted, kept = 0, set[str]()
        after: prune.Place | None = None
        while rows := await self._read(_all(prune.old_ones(before, after))):
            after = (rows[-1].key, rows[-1].number)
            old = prune.readable(rows, kept)
            deleted += len(old) if trial else await self._drop(old, before)
        return Pruned(deleted=deleted, unreadable=len(kept))

    async def _drop(self, rows: list[Row[Any]], before: datetime) -> int:
        gone = set[str]()  # told over all tries: repeated after it landed, it finds nothing left to delete

        async def work(connection: AsyncConnection) -> None:
            await prune.drop(connection, rows, before, gone)

        await self._write(work)
        return len(gone)

    async def close(self) -> None:
        await self._revisions.close()
        await self._renewals.close()
        await self._engine.dispose()

    async def _read(self, work: Work[T]) -> T:
        return await self._repeat(work, self._reader, writes=False)

    async def _write(self, work: Work[T], unknown: CommitUnknown | None = None, *, single: bool = False) -> T:
        """`single`: one statement is all that it changes anything with."""
        async with self._turn:
            return await self._repeat(work, self._single if single else self._writer, writes=True, unknown=unknown)

    async def _repeat(
        self, work: Work[T], engine: AsyncEngine, *, writes: bool, unknown: CommitUnknown | None = None
    ) -> T:
        """Run one transaction, and run it again where another was in the way or the database broke off.

        Once `work` has landed, running it again must change nothing. `unknown` is raised where it may have landed and
        no repetition could tell.
        """
        pauses = iter(PAUSES)
        in_doubt = False
        while True:
            sent = False
            try:
                async with asyncio.timeout(TRANSACTION_SECONDS), engine.connect() as connection:
                    try:
                        result = await work(connection)
                        sent = writes
                        if sent:
                            await connection.commit()
                        return result
                    except BROKEN:
                        # What is still under way on it must never be mistaken for the next transaction's.
                        await connection.invalidate()
                        raise
            except BROKEN as error:
                in_doubt = in_doubt or sent
                pause = next(pauses, None)
                if pause is None or not (sent or is_repeatable(error)):
                    raise (unknown if unknown and in_doubt else refusal(error, self._engine)) from error
                await asyncio.sleep(pause)


async def _renew(leases: list[Lease], seconds: float, connection: AsyncConnection) -> dict[str, Row[Any]]:
    """Renew what is held, and read who holds each job; by uid."""
    uids = [lease.uid for lease in leases]
    held = [(lease.uid, lease.owner, lease.epoch) for lease in leases]
    await connection.execute(renewals(seconds), {"uids": uids, "leases": held})
    holder: Select[Any] = select(job.c.uid, job.c.key, job.c.lease_owner, job.c.lease_epoch)
    rows = await connection.execute(holder.where(job.c.uid.in_(uids)))
    return {row.uid: row for row in rows}


def _newest(key: str, uid: str | None = None) -> Select[Any]:
    """The row of a record with this uid, or of the newest under this key."""
    columns = select(job.c.key, job.c.uid, job.c.number, job.c.revision, job.c.document).where(job.c.key == key)
    return columns.order_by(job.c.number.desc()).limit(1) if uid is None else columns.where(job.c.uid == uid)


async def _not_changed(connection: AsyncConnection, written: Record, lease: Lease | None) -> None:
    """Find out why a commit changed no row; returns where that is because it landed before."""
    mine = job.c.uid == written.uid
    row = (await connection.execute(select(job.c.revision, job.c.lease_owner, job.c.lease_epoch).where(mine))).first()
    if row is None:
        raise rules.not_found(written.key, written.uid)
    ours = and_(
        history.c.commit_id == written.commit, history.c.uid == written.uid, history.c.revision == written.revision
    )
    if (await connection.execute(select(history.c.revision).where(ours))).first() is not None:
        return
    if lease is not None and (written.uid, row.lease_owner, row.lease_epoch) != (lease.uid, lease.owner, lease.epoch):
        raise rules.displaced(written.key, lease)
    raise rules.conflict(written.key, written.revision - 1, row.revision)


def _listing(wanted: Iterable[ColumnElement[bool]]) -> Select[Any]:
    owner = case((job.c.lease_until > DatabaseTime(), job.c.lease_owner), else_=null()).label("owner")
    columns = (job.c.key, job.c.uid, job.c.revision, job.c.document, job.c.created, job.c.updated, owner)
    return select(*columns).where(*wanted).order_by(job.c.updated.desc(), job.c.key, job.c.number)


def _begins_with(prefix: str, dialect: str) -> list[ColumnElement[bool]]:
    """Whether a key may begin so, in words that an index can answer; every key that does is among the rows.

    Not LIKE where it can be helped: SQLite's takes `a` for `A`, and MariaDB's passes over what goes on beyond U+FFFF.
    PostgreSQL's is exact, and knows no order of texts that would not depend on the database's locale.
    """
    if dialect == "postgresql":
        return [job.c.key.startswith(prefix, autoescape=True)]
    # MySQL compares as if spaces followed, so that a key may go on with what comes before a space.
    least = prefix if dialect == "sqlite" else prefix + "\0"
    last = ord(prefix[-1]) + 1
    if 0xD800 <= last <= 0xDFFF:
        last = 0xE000  # there are no characters between
    ends = [job.c.key < prefix[:-1] + chr(last)] if last <= sys.maxunicode else []
    return [job.c.key >= least, *ends]


def _all(query: Select[Any]) -> Work[list[Row[Any]]]:
    async def work(connection: AsyncConnection) -> list[Row[Any]]:
        return list(await connection.execute(query))

    return work


def _record(row: Row[Any]) -> Record:
    return rules.read_document(row.document, row.key, row.uid, row.revision)


def _listed(row: Row[Any]) -> Listed:
    record, problem = None, ""
    try:
        record = _record(row)
    except UnreadableRecord as error:
        problem = str(error)
    return Listed(
        key=row.key,
        uid=row.uid,
        revision=row.revision,
        record=record,
        problem=problem,
        created=row.created,
        updated=row.updated,
        owner=row.owner,
    )


def _lines(key: str, row: Row[Any]) -> tuple[str, ...]:
    try:
        return msgspec.json.decode(row.lines, type=tuple[str, ...])
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise UnreadableRecord(
            f"job {key!r}: the history of revision {row.revision} cannot be read: {error}"
        ) from error
