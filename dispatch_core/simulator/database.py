"""An actor's connection to the simulated store: the real memory store behind a line that is slow, breaks and lags.

One rule: every statement happens whole or not at all, as a database's transaction does; what its sender learns of it is
another matter. A commit whose answer was lost is repeated under its own id, as the SQL store repeats it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from dispatch_core.errors import DispatchError, Displaced, StoreUnavailable
from dispatch_core.record import Record
from dispatch_core.simulator.faults import STEPS, Fault, Meets, step_of
from dispatch_core.simulator.trace import Acknowledged, Committed, Hindered, Read, Refused
from dispatch_core.simulator.world import Being, Voice, World
from dispatch_core.stores import rules
from dispatch_core.stores.contract import Change, Lease, Listed, Pruned

T = TypeVar("T")


class Database(Meets):
    """The store of one actor."""

    def __init__(self, world: World, being: Being, voice: Voice | None = None) -> None:
        super().__init__(world.faults, being.tape)
        self.world = world
        self.being = being
        self.voice = voice or being.voice
        self._store = world.store
        self._ends = being.ends
        self._holder = False
        """It was given the lease."""

    # --- reading

    async def read(self, key: str, uid: str | None = None) -> Record:
        def read() -> Record:
            record = whole(self._store.read(key, uid))
            if record.revision > 1 and self._struck(Fault.STALE_READ):
                self.world.count(Fault.STALE_READ)
                record = self.world.revision(record.revision - 1 - self.being.tape.below(min(3, record.revision - 1)))
            return record

        record: Record = await self._ask(read)
        self.voice.read = record.revision
        former = self._ends != self.being.ends
        self.world.tell(Read(self.world.clock.now, self.voice.name, record.revision, former))
        return record

    async def revision(self, key: str, uid: str) -> int:
        return (await self.read(key, uid)).revision

    async def jobs(
        self, *, settled: bool | None = None, key_prefix: str = "", uids: frozenset[str] | None = None
    ) -> list[Listed]:
        rows: list[Listed] = await self._ask(
            lambda: whole(self._store.jobs(settled=settled, key_prefix=key_prefix, uids=uids))
        )
        return rows

    async def history(self, key: str, uid: str | None = None) -> list[Change]:
        changes: list[Change] = await self._ask(lambda: whole(self._store.history(key, uid)))
        return changes

    # --- writing

    async def create(self, record: Record, *, commit: str, actor: str, new: bool = False) -> Record:
        def create() -> Record:
            before = self.world.record
            after = whole(self._store.create(record, commit=commit, actor=actor, new=new))
            if before is None:
                self.world.tell(Committed(self.world.now, self.voice.name, None, after, False, False, actor))
            return after

        created: Record = await self._ask(create)
        return created

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
        world, tape, holder = self.world, self.being.tape, self._holder

        def attempt(late: bool = False) -> Record:
            before, lost = world.record, lease is not None and not world.holds(lease)
            after = whole(
                self._store.commit(record, against=against, commit=commit, actor=actor, lines=lines, lease=lease)
            )
            if after.revision > (before.revision if before is not None else 0):
                told = Committed(
                    world.now, self.voice.name, before, after, lease is not None, lost, actor, late, holder
                )
                world.tell(told)
                if self.being.mistold is not None and self.being.mistold in _shown(after):
                    world.count(Fault.CLOCK_OFF)
                    self.being.mistold = None
                world.changed()
            return after

        try:
            written = await self._committed(attempt, record.key, commit, tape)
        except DispatchError as error:
            world.tell(Refused(world.now, self.voice.name, against, commit, type(error).__name__))
            raise
        world.tell(Acknowledged(world.now, self.voice.name, written.revision, commit))
        return written

    async def _committed(self, attempt: Callable[..., Record], key: str, commit: str, tape: Any) -> Record:
        """One commit, and what becomes of it: it lands, it does not, or nobody can tell."""
        unknown = rules.unknown(key, commit)
        if self._struck(Fault.COMMIT_REFUSED):
            await self._broken(Fault.COMMIT_REFUSED, lambda: None)
            raise StoreUnavailable("the store ended the transaction")
        if self._struck(Fault.COMMIT_REPEATED):
            await self._broken(Fault.COMMIT_REPEATED, attempt if tape.chance(0.5) else lambda: None)
            return await self._repeated(attempt, unknown)
        if self._struck(Fault.COMMIT_UNKNOWN):
            await self._broken(Fault.COMMIT_UNKNOWN, attempt if tape.chance(0.5) else lambda: None)
            raise unknown
        if self._struck(Fault.COMMIT_LATE):
            later = tape.among((0.5, 3.0, 12.0))
            await self._broken(Fault.COMMIT_LATE, partial(self._lands_later, later, partial(attempt, late=True)))
            raise unknown
        written: Record = await self._ask(attempt)
        return written

    async def _repeated(self, attempt: Callable[[], Record], unknown: DispatchError) -> Record:
        """The same commit once more; where that fails as well, nobody can tell."""
        try:
            written: Record = await self._ask(attempt)
        except StoreUnavailable as error:
            raise unknown from error
        return written

    def _lands_later(self, seconds: float, attempt: Callable[[], Any]) -> None:
        self.world.clock.at(self.world.now + seconds, _quietly, attempt)

    async def _broken(self, fault: Fault, attempt: Callable[[], Any]) -> None:
        """The transaction happens, or not, and its connection breaks. A store that is down carries nothing out."""

        def act(back: Callable[..., None]) -> None:
            if self.world.now < self.world.down_until:
                self.world.count(Fault.STORE_DOWN)
            else:
                newest = len(self.world.revisions)
                _quietly(attempt)
                self.world.count(fault, step_of(len(self.world.revisions) > newest) if fault in STEPS else "")
            back(None, 0.05)

        await self.world.exchange(self.being, self.being.tape.seconds(0.002, 0.05), act)

    # --- ownership

    async def acquire(self, record: Record, owner: str, seconds: float) -> Lease:
        lease: Lease = await self._ask(lambda: whole(self._store.acquire(record, owner, seconds)))
        self._holder = True
        return lease

    async def renew(self, lease: Lease, seconds: float) -> None:
        try:
            await self._ask(lambda: whole(self._store.renew(lease, seconds)))
        except Displaced as error:
            self.world.tell(Hindered(self.world.now, self.voice.name, str(error)))
            raise

    async def release(self, lease: Lease) -> None:
        self._holder = False
        await self._ask(lambda: whole(self._store.release(lease)))

    async def prune(self, before: datetime, *, trial: bool = False) -> Pruned:
        pruned: Pruned = await self._ask(lambda: whole(self._store.prune(before, trial=trial)))
        return pruned

    async def close(self) -> None:
        """Nothing to end."""

    # --- the line

    async def _ask(self, work: Callable[[], Any]) -> Any:
        """One statement, there and back."""
        world, tape = self.world, self.being.tape
        fails = self._struck(Fault.STORE_FAILS)

        def act(back: Callable[..., None]) -> None:
            if world.clock.now < world.down_until:
                world.count(Fault.STORE_DOWN)
                back(StoreUnavailable("the store is down"), 0.1)
                return
            if fails:
                world.count(Fault.STORE_FAILS)
                back(StoreUnavailable("the connection was reset"), 0.1)
                return
            try:
                answer = work()
            except DispatchError as error:
                answer = error
            back(answer)

        try:
            return await world.exchange(self.being, tape.seconds(0.002, 0.05), act)
        except StoreUnavailable as error:
            world.tell(Hindered(world.now, self.voice.name, str(error)))
            raise


def _shown(record: Record) -> tuple[datetime | None, ...]:
    """The times in a record that are by its writer's own clock."""
    since = record.wait.since if record.wait is not None else None
    return since, record.outcome.at if record.outcome is not None else None


def _quietly(attempt: Callable[[], Any]) -> None:
    """What a transaction that nobody hears of does: it lands, or it is refused."""
    try:
        attempt()
    except DispatchError:
        return


def whole(work: Coroutine[Any, Any, T]) -> T:
    """What a method of the memory store returns: none of them waits."""
    try:
        work.send(None)
    except StopIteration as done:
        returned: T = done.value
        return returned
    raise RuntimeError("a method of the memory store waited")
