"""What people and engines call: submit, cancel, hold, release, resolve, dispose, status, wait, explain.

One rule: a client commits what was asked, against the revision it read, and makes no call on a scheduler: whoever
supervises the job carries it out. There is one way to cancel and one way to hold, and this is the door to both.
"""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Callable

from dispatch_core import ask, gate
from dispatch_core.adapters.contract import Adapter, Job, Target
from dispatch_core.ask import Receipt, receipt
from dispatch_core.errors import BadInput, Conflict, SchedulerUnavailable
from dispatch_core.find import observe
from dispatch_core.gate import Condition
from dispatch_core.guards import guard
from dispatch_core.next import decide
from dispatch_core.plan import Plan, Spec, Value, problems
from dispatch_core.record import KEY_LENGTH, Object, Record, Result, State
from dispatch_core.stores.contract import Store
from dispatch_core.story import story
from dispatch_core.surroundings import FreshId, Now, fresh_id, utc_now
from dispatch_core.turn import Decision

FOLLOW_SECONDS = 2.0
"""How often a wait reads the record that it follows."""


class Explanation(Value, frozen=True):
    """What the next pass would do, and why."""

    record: Record
    decision: Decision
    gate: tuple[Condition, ...]
    """The conditions of the newest canonical object's gate, where it is listed shut."""
    why: str = ""
    """Why that object waits, though its gate is open, in the scheduler's words; "" where it does not, or is silent."""


class Client:
    """One asker's way to the records of one store. `who` is written into every commit."""

    def __init__(self, store: Store, who: str = "", *, now: Now = utc_now, fresh_id: FreshId = fresh_id) -> None:
        self.store = store
        self.now = now
        self.fresh_id = fresh_id
        self.who = who or f"person {getpass.getuser()}"

    async def submit(
        self, key: str, spec: Spec, plan: Plan, *, scheduler: str, adapter: Adapter | None = None, new: bool = False
    ) -> Record:
        """Write a job's record, or return the one that its key has; nothing is launched.

        Raises BadInput for a job that could not run, KeyTaken where the key belongs to another job; nothing is written
        then. `new` makes the next record under a key whose job is settled.
        """
        if not 1 <= len(key) <= KEY_LENGTH or "\0" in key:
            raise BadInput(f"job {key[:40]!r}: it has {len(key)} characters; a key has 1 to {KEY_LENGTH}")
        wrong = [*problems(spec, plan), *(adapter.problems(spec) if adapter is not None else ())]
        if wrong:
            path, text = wrong[0]
            raise BadInput(f"job {key!r}: {'.'.join(map(str, path))}: {text}")
        record = Record(key=key, uid=self.fresh_id()[:16], scheduler=scheduler, spec=spec, plan=plan)
        return await self.store.create(record, commit=self.fresh_id(), actor=self.who, new=new)

    async def cancel(self, key: str, *, reason: str = "", uid: str | None = None) -> Receipt:
        """Commit the cancel, and say what clean-up waits for; a second cancel returns the same receipt."""
        record = await self._change(key, uid, lambda r: ask.cancel(r, self.who, self.now(), reason))
        got = receipt(record)
        assert got is not None  # noqa: S101 - a cancelled record has an outcome
        return got

    async def hold(self, key: str, *, reason: str, uid: str | None = None) -> Record:
        """Ask that the job does not start; during a run it counts for the next start."""
        return await self._change(key, uid, lambda r: ask.hold(r, self.who, reason))

    async def release(self, key: str, *, uid: str | None = None, revision: int | None = None) -> Record:
        """Lift every hold, or launch again what waits for a person. `revision`: refuse if the record has moved on."""
        return await self._change(key, uid, lambda r: ask.release(r, self.who), revision)

    async def resolve(
        self, key: str, result: Result, *, reason: str = "", uid: str | None = None, revision: int | None = None
    ) -> Record:
        """Say how a job came out that waits for a person."""
        return await self._change(key, uid, lambda r: ask.resolve(r, result, self.who, self.now(), reason), revision)

    async def dispose(self, key: str, what: str, *, uid: str | None = None, revision: int | None = None) -> Record:
        """Say that a foreign object does not matter, or that an attempt made no object."""
        return await self._change(key, uid, lambda r: ask.dispose(r, what), revision)

    async def wait(self, key: str, *, uid: str | None = None, until_outcome: bool = False) -> Record:
        """Follow a record until it is settled, or has an outcome; somebody else supervises the job."""
        while True:
            record = await self.store.read(key, uid)
            if record.settled or (until_outcome and record.outcome is not None):
                return record
            await asyncio.sleep(FOLLOW_SECONDS)

    async def _change(
        self, key: str, uid: str | None, change: Callable[[Record], Record], revision: int | None = None
    ) -> Record:
        """Read, change, commit; again from the reading where somebody else committed in between."""
        while True:
            read = await self.store.read(key, uid)
            if revision is not None and not is_as_shown(read, revision):
                raise Conflict(
                    f"job {key!r} is at revision {read.revision}, and you were shown {revision}: nothing was changed; "
                    "look again, then ask again"
                )
            changed = change(read)
            if changed == read:
                return read
            try:
                return await self.store.commit(
                    changed, against=read.revision, commit=self.fresh_id(), actor=self.who, lines=story(read, changed)
                )
            except Conflict:
                continue


@guard("persons_word_against_revision_shown", promise="C2", line=2, without=True)
def is_as_shown(read: Record, revision: int) -> bool:
    """Whether the record is still what the person was shown: a word about one vanished run must not answer for the
    next."""
    return read.revision == revision


async def explain(store: Store, adapter: Adapter, key: str, uid: str | None = None) -> Explanation:
    """The very decision that the next pass would carry out; nothing is committed and no call is made.

    Raises SchedulerUnavailable if the scheduler does not answer.
    """
    read = await store.read(key, uid)
    observed = observe(read, await adapter.find(Job.of(read)), adapter.bounds, adapter.capabilities)
    decision = decide(read, observed)
    last = observed.record.last
    canonical = observed.record.object(last.canonical) if last is not None and last.canonical else None
    shut = canonical is not None and gate.is_shut(observed, canonical)
    return Explanation(
        record=read,
        decision=decision,
        gate=gate.conditions(observed.record, observed, canonical) if canonical is not None and shut else (),
        why=await _why(adapter, canonical) if canonical is not None and canonical.state is State.PENDING else "",
    )


async def _why(adapter: Adapter, object: Object) -> str:
    """Why an opened object has not begun, as far as the scheduler tells it now."""
    try:
        piece = await adapter.read_log(Target(id=object.id, name=object.name, run=object.run), 1, 0, 0)
    except SchedulerUnavailable:
        return ""
    return piece.why
