"""Which step of which run of a flow run has a job, as its lease says; and what another step does that asks for it.

One rule: a later run of the flow run takes a job from an earlier one at once, as that one has crashed or is to end;
another step of the same run waits until it is certain that the first is alive, and is refused then. Certain it is once
a lease has outlived its time: only who is alive can have renewed it.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import NamedTuple
from uuid import UUID

from dispatch_core.errors import KeyTaken, Owned, StoreUnavailable
from dispatch_core.record import Record
from dispatch_core.stores.contract import Store

LOOK_SECONDS = 2.0
"""How often a step that waits looks who has its job."""

LEEWAY_SECONDS = 10.0
"""How long after the end of a lease nobody need have noticed it."""

_NAME = re.compile(r"prefect flow run ([0-9a-f-]{36}), run ([0-9]+(?:\.[0-9]+)*)(?:, task run ([0-9a-f-]{36}))?")


class Holder(NamedTuple):
    """A step of one run of a flow run, as the owner of a lease."""

    flow_run: UUID
    """Everything was called from it."""
    runs: tuple[int, ...]
    """Which run of it this is, as Prefect counts them from 1, and which of each subflow run on the way to the step."""
    task_run: UUID | None
    """None: the step is no task."""

    @property
    def name(self) -> str:
        """Under which it supervises."""
        name = f"prefect flow run {self.flow_run}, run {'.'.join(map(str, self.runs))}"
        return name if self.task_run is None else f"{name}, task run {self.task_run}"

    @classmethod
    def read(cls, owner: str) -> Holder | None:
        """Who supervises under that name; None: no step of any flow run."""
        found = _NAME.fullmatch(owner)
        if found is None:
            return None
        flow_run, runs, task_run = found.groups()
        return cls(UUID(flow_run), tuple(map(int, runs.split("."))), UUID(task_run) if task_run else None)

    async def claim(self, store: Store, record: Record, lease_seconds: float) -> bool:
        """Whether the job is for this step to take, if it is free; False: whoever has it is to be waited for.

        Raises KeyTaken while another step of this very run has it, once it is certain that it is alive.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + lease_seconds + LEEWAY_SECONDS
        first: Holder | None = None
        while True:
            with suppress(StoreUnavailable):
                owner = await owner_of(store, record)
                other = Holder.read(owner or "")
                if other is None or other == self:
                    return owner is None or other == self
                if other.flow_run != self.flow_run or other.runs > self.runs:
                    return False
                if other.runs < self.runs:
                    await take(store, record, other.name)
                    return True
                if other == first and loop.time() >= until:
                    raise KeyTaken(
                        f"job {record.key!r} is awaited by another step of this run, {other.name}, which is alive;"
                        " nothing was done; give each step a key of its own"
                    )
                if other != first:
                    first, until = other, loop.time() + lease_seconds + LEEWAY_SECONDS
            await asyncio.sleep(LOOK_SECONDS)

    async def claim_at_once(self, store: Store, record: Record, lease_seconds: float) -> bool:
        """As `claim`, for what comes after every run of the flow run: its hook."""
        other = Holder.read(await owner_of(store, record) or "")
        if other is None or other.flow_run != self.flow_run:
            return False
        await take(store, record, other.name)
        return True


async def owner_of(store: Store, record: Record) -> str | None:
    """Who has a job; None: nobody. Raises StoreUnavailable."""
    return next((row.owner for row in await store.jobs(uids=frozenset({record.uid}))), None)


async def take(store: Store, record: Record, owner: str) -> None:
    """Take a job from one that is known not to need it any more, and leave it free. Raises StoreUnavailable."""
    with suppress(Owned):  # by somebody else since: then that one is the next to be looked at
        await store.release(await store.acquire(record, owner, LEEWAY_SECONDS))
