"""Records for the stores' tests, as small as they can be, and the ways they change."""

import asyncio
import uuid
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from dispatch_core.errors import Conflict
from dispatch_core.plan import Plan, Spec
from dispatch_core.record import Hold, Outcome, Record, Result
from dispatch_core.stores.contract import Lease, Store


def fresh(
    key: str = "nightly/train", *, command: str = "train", scheduler: str = "local", plan: Plan | None = None
) -> Record:
    """A job that nothing has happened to; each one has a uid of its own."""
    spec = Spec(command=(command,), options={"nice": 5, "features": ("gpu", "nvme")})
    return Record(key=key, uid=uuid.uuid4().hex, scheduler=scheduler, spec=spec, plan=plan or Plan())


def commit_id() -> str:
    return uuid.uuid4().hex


def held(record: Record, by: str) -> Record:
    """With one more hold: what a lost update would lose."""
    hold = Hold(number=len(record.holds) + 1, asked_by=by, reason="test")
    return msgspec.structs.replace(record, holds=(*record.holds, hold))


def settled(record: Record) -> Record:
    outcome = Outcome(result=Result.CANCELLED, cause=None, at=datetime(2026, 1, 2, tzinfo=UTC), by="person ada")
    lifted = tuple(msgspec.structs.replace(hold, lifted=True) for hold in record.holds)
    return msgspec.structs.replace(record, outcome=outcome, holds=lifted, settled=True)


async def created(store: Store, record: Record | None = None) -> Record:
    return await store.create(record or fresh(), commit=commit_id(), actor="person ada")


async def committed(store: Store, record: Record, lease: Lease | None = None, commit: str | None = None) -> Record:
    """What a store makes of a record that was read and changed: the next revision."""
    return await store.commit(
        record,
        against=record.revision,
        commit=commit or commit_id(),
        actor="supervisor one",
        lines=(f"{len(record.holds)} holds",),
        lease=lease,
    )


async def keep_trying(store: Store, key: str, change: Callable[[Record], Record]) -> int:
    """Read, change and commit until it is accepted; the number of conflicts on the way."""
    conflicts = 0
    while True:
        record = await store.read(key)
        # Something always comes between what a writer reads and what it writes.
        await asyncio.sleep(0)
        try:
            await committed(store, change(record))
        except Conflict:
            conflicts += 1
        else:
            return conflicts
