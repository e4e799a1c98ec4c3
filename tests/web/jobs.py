"""Jobs as they really come about: submitted by a client, supervised on the local scheduler, and left as they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from dispatch_core.adapters.local.scheduler import LocalScheduler
from dispatch_core.client import Client
from dispatch_core.evidence import Seen, Sighting, merge
from dispatch_core.plan import Action, Cause, Delay, Plan, Rule, Secret, Spec, When
from dispatch_core.record import Record, State
from dispatch_core.stores.sql import SqlStore
from dispatch_core.story import story
from dispatch_core.supervisor import Supervisor
from tests.adapters.local import end_everything
from tests.cli.conftest import quick
from tests.stores.records import commit_id

HOSTILE = "x</a><script>alert('key')</script>&amp;\"'{{ 7*7 }}\u202e/../?a=b#c"

PLAN = Plan(
    rules=(
        Rule(
            name="again",
            when=When(cause=(Cause.EXIT,), exit_code=(75,)),
            do=Action.RESUBMIT,
            budget=2,
            delay=Delay(seconds=0.05),
        ),
        Rule(name="ask me", when=When(cause=(Cause.EXIT,), exit_code=(3,)), do=Action.HOLD),
    )
)


@dataclass
class Floor:
    """A store and a local scheduler, and jobs on them."""

    store: SqlStore
    adapter: LocalScheduler
    client: Client

    @classmethod
    def at(cls, store: SqlStore, spool: Path) -> Floor:
        return cls(store, quick(spool), Client(store, "person ada"))

    async def submitted(self, key: str, script: str = "sleep 600", **more: object) -> Record:
        spec = Spec(
            command=("sh", "-c", script),
            time_limit_seconds=7200,
            environment={"SEED": "1"},
            secret_environment={"TOKEN": Secret(source="variable", name="TRAIN_TOKEN")},
        )
        return await self.client.submit(key, replace(spec, **more), PLAN, scheduler="local")

    async def until(self, key: str, when: Callable[[Record], bool], *, stays: bool = False) -> Record:
        """Supervise a job until its record is so, then leave it; `stays`: its lease is kept."""

        async def secrets(source: Secret) -> str:
            return "never shown"

        supervisor = Supervisor(self.store, self.adapter, secrets=secrets, name="vm-7 4242", lease_seconds=30)
        running = asyncio.ensure_future(supervisor.run(key))
        try:
            async with asyncio.timeout(30):
                while not when(record := await self.store.read(key)):
                    assert not running.done(), await running
                    await asyncio.sleep(0.02)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        if stays:
            await self.store.acquire(record, "vm-7 4242", 600)
        return record

    async def stray(self, key: str) -> Record:
        """Somebody else's object that carries the job's name is seen."""
        record = await self.store.read(key)
        sighting = Sighting(id="stray-1", name="dispatch-mangled", key=key, state=State.RUNNING)
        changed = merge(record, [Seen(sighting=sighting, at=datetime.now(UTC))])
        return await self.store.commit(
            changed, against=record.revision, commit=commit_id(), actor="evidence vm-7", lines=story(record, changed)
        )

    async def close(self) -> None:
        """End what still runs."""
        await end_everything(self.adapter)
        await self.adapter.close()


def is_running(record: Record) -> bool:
    return any(object.state is State.RUNNING for object in record.objects)


def has_outcome(record: Record) -> bool:
    return record.outcome is not None


def waits(record: Record) -> bool:
    return record.wait is not None
