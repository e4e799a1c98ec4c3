"""What a task's log tells of its job while a supervisor attends to it: every commit once, and what is in its way.

One rule: only what was committed is told, whoever committed it, in the words of the record's history. What a person
has to do something about is a warning. Telling never keeps the supervisor from its work.
"""

from __future__ import annotations

from typing import Any, cast

from dispatch_core.errors import DispatchError
from dispatch_core.reasons import FOR_A_PERSON, Reason
from dispatch_core.record import Record
from dispatch_core.status import advice
from dispatch_core.stores.contract import Store

LOUD = FOR_A_PERSON | {Reason.HELD, Reason.UNREACHABLE, Reason.MOVED_BACK}
"""What a job may wait for that somebody should know of."""


class Telling:
    """The store, as the supervisor of one job uses it. `name` is the supervisor's, which tells its own commits."""

    def __init__(self, store: Store, record: Record, name: str, log: Any) -> None:
        self._store, self._log, self._name = store, log, name
        self._told = record.revision
        self._own: set[int] = set()
        self._warned = ""
        self._warn(record)

    @classmethod
    def of(cls, store: Store, record: Record, name: str, log: Any) -> Store:
        """As a store: everything but reading and committing is passed on."""
        return cast("Store", cls(store, record, name, log))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read(self, key: str, uid: str | None = None) -> Record:
        record = await self._store.read(key, uid)
        await self._tell_since(record)
        self._warn(record)
        return record

    async def commit(self, record: Record, **how: Any) -> Record:
        made = await self._store.commit(record, **how)
        if how["actor"] == self._name:
            self._own.add(made.revision)  # the supervisor tells these itself
        await self._tell_since(made)
        self._warn(made)
        return made

    async def _tell_since(self, record: Record) -> None:
        """What lies between what was told last and this record, read only if others had a part in it."""
        unknown = {number for number in range(self._told + 1, record.revision + 1) if number not in self._own}
        if unknown:
            try:
                changes = await self._store.history(record.key, record.uid)
            except DispatchError:
                return
            for change in changes:
                if change.revision in unknown:
                    for line in change.lines:
                        self._log.info("%s (by %s)", line, change.actor)
        self._told = max(self._told, record.revision)
        self._own = {number for number in self._own if number > self._told}

    def _warn(self, record: Record) -> None:
        wait = record.wait
        if wait is None or wait.reason not in LOUD:
            self._warned = ""
        elif wait.text != self._warned:
            self._warned = wait.text
            self._log.warning("job %s waits: %s%s", record.key, wait.text, _what_to_do(record))


def _what_to_do(record: Record) -> str:
    told = advice(record)
    return f"; {told}" if told else ""
