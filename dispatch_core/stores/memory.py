"""Records kept in memory, for the simulator and for tests: the contract, and nothing that outlives it.

One rule: no method waits between reading and writing, so each happens whole, as a transaction would. Documents are kept
as bytes, as a database keeps them: what comes out is never what went in by reference. The clock is an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from dispatch_core.errors import UnreadableRecord
from dispatch_core.record import Record
from dispatch_core.stores import rules
from dispatch_core.stores.contract import Change, Lease, Listed, Pruned
from dispatch_core.surroundings import utc_now


@dataclass
class Row:
    """What a database would keep of one record."""

    key: str
    uid: str
    number: int
    """Which record under its key: 1, 2, ..."""
    settled: bool
    document: bytes
    changes: list[Change] = field(default_factory=list)
    owner: str | None = None
    epoch: int = 0
    until: datetime | None = None
    _read: tuple[bytes, Record] | None = None

    def record(self) -> Record:
        """As a reader gets it; read once for each revision, since nobody can change it."""
        if self._read is None or self._read[0] is not self.document:
            self._read = (self.document, rules.read_document(self.document, self.key, self.uid, len(self.changes)))
        return self._read[1]

    def write(self, document: bytes, written: Record) -> None:
        """Keep one more revision; `written` was read from the document, and is what a reader gets."""
        self.document, self.settled, self._read = document, written.settled, (document, written)

    def holder(self, now: datetime) -> str | None:
        return self.owner if self.until is not None and self.until > now else None

    def holds(self, lease: Lease) -> bool:
        return (self.uid, self.owner, self.epoch) == (lease.uid, lease.owner, lease.epoch)


class MemoryStore:
    """The contract in memory. It lives as long as the object; `close` ends nothing."""

    def __init__(self, clock: Callable[[], datetime] = utc_now) -> None:
        self._clock = clock
        self.rows: dict[str, Row] = {}
        """By uid, in the order of their creation."""
        self._newest: dict[str, Row] = {}
        self._commits: set[str] = set()

    async def create(self, record: Record, *, commit: str, actor: str, new: bool = False) -> Record:
        written, document = rules.prepare(record, 1, commit)
        newest = self._newest.get(record.key)
        answer = rules.existing(newest.record() if newest else None, written, new)
        if answer is not None:
            return answer
        if record.uid in self.rows or commit in self._commits:
            raise rules.used_twice(record.key, commit, record.uid)
        row = Row(
            key=record.key,
            uid=record.uid,
            number=newest.number + 1 if newest else 1,
            settled=written.settled,
            document=document,
        )
        self._add(row, commit, actor, rules.CREATED)
        self.rows[record.uid] = self._newest[record.key] = row
        return written

    async def read(self, key: str, uid: str | None = None) -> Record:
        return self._row(key, uid).record()

    async def revision(self, key: str, uid: str) -> int:
        return (await self.read(key, uid)).revision

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
        row = self._row(record.key, record.uid)
        newest = len(row.changes)
        if rules.has_landed(row.changes, against, commit):
            return rules.prepare(record, against + 1, commit)[0]
        if lease is not None and not rules.is_held(lease, row.uid, row.owner, row.epoch):
            raise rules.displaced(record.key, lease)
        if not rules.is_newest(against, newest):
            raise rules.conflict(record.key, against, newest)
        if commit in self._commits:
            raise rules.used_twice(record.key, commit, record.uid)
        written, document = rules.prepare(record, newest + 1, commit)
        self._add(row, commit, actor, lines)
        row.write(document, written)
        return written

    async def jobs(
        self, *, settled: bool | None = None, key_prefix: str = "", uids: frozenset[str] | None = None
    ) -> list[Listed]:
        now = self._clock()
        rows = [
            row
            for row in self.rows.values()
            if (row is self._newest[row.key] if uids is None else row.uid in uids)
            and row.key.startswith(key_prefix)
            and settled in (None, row.settled)
        ]
        rows.sort(key=lambda row: (row.key, row.number))
        rows.sort(key=lambda row: row.changes[-1].at, reverse=True)
        return [_listed(row, now) for row in rows]

    async def history(self, key: str, uid: str | None = None) -> list[Change]:
        return list(self._row(key, uid).changes)

    async def acquire(self, record: Record, owner: str, seconds: float) -> Lease:
        row, now = self._row(record.key, record.uid), self._clock()
        holder = row.holder(now)
        if holder not in (None, owner):
            raise rules.owned(record.key, str(holder))
        row.owner, row.epoch, row.until = owner, row.epoch + 1, now + timedelta(seconds=seconds)
        return Lease(uid=row.uid, owner=owner, epoch=row.epoch)

    async def renew(self, lease: Lease, seconds: float) -> None:
        row = self.rows.get(lease.uid)
        if row is None:
            raise rules.no_record(lease.uid)
        if not row.holds(lease):
            raise rules.displaced(row.key, lease)
        row.until = self._clock() + timedelta(seconds=seconds)

    async def release(self, lease: Lease) -> None:
        row = self.rows.get(lease.uid)
        if row is not None and row.holds(lease):
            row.owner = row.until = None

    async def prune(self, before: datetime, *, trial: bool = False) -> Pruned:
        deleted = unreadable = 0
        kept: set[str] = set()
        for row in sorted(self.rows.values(), key=lambda row: (row.key, row.number)):
            old = row.settled and row.changes[-1].at < before and row.key not in kept
            if old and _listed(row, before).record is not None:
                deleted += 1
                if not trial:
                    self._drop(row)
                continue
            unreadable += old
            kept.add(row.key)
        return Pruned(deleted=deleted, unreadable=unreadable)

    async def close(self) -> None:
        """Nothing to end."""

    def _row(self, key: str, uid: str | None) -> Row:
        row = self._newest.get(key) if uid is None else self.rows.get(uid)
        if row is None or row.key != key:
            raise rules.not_found(key, uid)
        return row

    def _drop(self, row: Row) -> None:
        del self.rows[row.uid]
        if self._newest[row.key] is row:
            del self._newest[row.key]
        self._commits.difference_update(change.commit for change in row.changes)

    def _add(self, row: Row, commit: str, actor: str, lines: tuple[str, ...]) -> None:
        revision = len(row.changes) + 1
        row.changes.append(Change(revision=revision, commit=commit, at=self._clock(), actor=actor, lines=lines))
        self._commits.add(commit)


def _listed(row: Row, now: datetime) -> Listed:
    record, problem = None, ""
    try:
        record = row.record()
    except UnreadableRecord as error:
        problem = str(error)
    return Listed(
        key=row.key,
        uid=row.uid,
        revision=len(row.changes),
        record=record,
        problem=problem,
        created=row.changes[0].at,
        updated=row.changes[-1].at,
        owner=row.holder(now),
    )
