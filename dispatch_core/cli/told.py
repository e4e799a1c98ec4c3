"""A store that tells what is committed to it, as it happens.

One rule: a line is told after its commit has landed, once, and in the order of the revisions, whoever committed: what
others wrote is told when the record is next read. It changes nothing of what it passes on.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from dispatch_core.errors import StoreUnavailable
from dispatch_core.record import Record
from dispatch_core.stores.contract import Change, Lease, Listed, Pruned, Store

Tell = Callable[[Record, datetime, str], None]
"""Called with the newest record, the commit's time and one line."""


class Told:
    """The store's contract, with every new line of every job that is read or changed through it told."""

    def __init__(self, store: Store, tell: Tell, *, from_start: bool = False) -> None:
        """`from_start`: also what a job's history holds when it is first met."""
        self._store = store
        self._tell = tell
        self._from_start = from_start
        self._known: dict[str, int] = {}

    async def create(self, record: Record, *, commit: str, actor: str, new: bool = False) -> Record:
        made = await self._store.create(record, commit=commit, actor=actor, new=new)
        if made.uid == record.uid:
            self._known.setdefault(made.uid, 0)
        return await self._met(made)

    async def read(self, key: str, uid: str | None = None) -> Record:
        return await self._met(await self._store.read(key, uid))

    async def revision(self, key: str, uid: str) -> int:
        return await self._store.revision(key, uid)

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
        done = await self._store.commit(record, against=against, commit=commit, actor=actor, lines=lines, lease=lease)
        return await self._met(done)

    async def jobs(
        self, *, settled: bool | None = None, key_prefix: str = "", uids: frozenset[str] | None = None
    ) -> list[Listed]:
        return await self._store.jobs(settled=settled, key_prefix=key_prefix, uids=uids)

    async def history(self, key: str, uid: str | None = None) -> list[Change]:
        return await self._store.history(key, uid)

    async def acquire(self, record: Record, owner: str, seconds: float) -> Lease:
        return await self._store.acquire(record, owner, seconds)

    async def renew(self, lease: Lease, seconds: float) -> None:
        await self._store.renew(lease, seconds)

    async def release(self, lease: Lease) -> None:
        await self._store.release(lease)

    async def prune(self, before: datetime, *, trial: bool = False) -> Pruned:
        return await self._store.prune(before, trial=trial)

    async def close(self) -> None:
        await self._store.close()

    async def _met(self, record: Record) -> Record:
        """Tell what was committed since this record was last met."""
        known = self._known.setdefault(record.uid, 0 if self._from_start else record.revision)
        if record.revision <= known:
            return record
        try:
            changes = await self._store.history(record.key, record.uid)
        except StoreUnavailable:
            return record  # what was committed stands; its lines are told when the store answers again
        self._known[record.uid] = record.revision
        for change in changes:
            if known < change.revision <= record.revision:
                for line in change.lines:
                    self._tell(record, change.at, line)
        return record
