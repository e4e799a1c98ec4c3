"""One job's life in a child of its own, which ends itself with SIGKILL at one named point of it.

A point lies before or after one store write or one scheduler call, and is named by what it is and how often that has
happened: `before open 1`. The child runs the real supervisor on the real store and the real local scheduler; nothing is
replaced, the two are only watched.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dispatch_core.adapters.contract import Bounds
from dispatch_core.adapters.local.scheduler import LocalScheduler
from dispatch_core.client import Client
from dispatch_core.plan import Action, Cause, Plan, Rule, Spec, When
from dispatch_core.record import Record
from dispatch_core.stores.sql import open_store
from dispatch_core.supervisor import Supervisor

WRITES = ("create", "commit", "acquire", "renew", "release")
CALLS = ("start", "open", "shut", "stop", "stop_job", "hold", "requeue")
QUICK = Bounds(call_seconds=1, window_seconds=4, absence_seconds=2, repeat_seconds=0.5, resync_seconds=2)
"""Times short enough for a test and still longer than a busy machine's pauses in between."""


@dataclass(frozen=True)
class Life:
    """What one child does, and where it ends."""

    url: str
    spool: Path
    key: str
    kind: str
    lines: Path
    journal: Path
    point: str = ""
    leases: bool = True


class Watched:
    """A store or a scheduler of which every write and call is written down before and after, and may be the last."""

    def __init__(self, real: Any, names: tuple[str, ...], life: Life, counts: Counter[str]) -> None:
        self._real, self._names, self._life, self._counts = real, names, life, counts

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._real, name)
        if name not in self._names:
            return value

        async def watched(*args: Any, **kwargs: Any) -> Any:
            self._counts[name] += 1
            which = f"{name} {self._counts[name]}"
            self._pass(f"before {which}")
            result = await value(*args, **kwargs)
            self._pass(f"after {which}")
            return result

        return watched

    def _pass(self, point: str) -> None:
        if self._life.journal != Path():
            with self._life.journal.open("a") as journal:
                journal.write(f"{point}\n")
        if point == self._life.point:
            os.kill(os.getpid(), signal.SIGKILL)


def spec(life: Life) -> Spec:
    """A payload that tells its starts and ends itself, one line each."""
    tell = f'echo "$DISPATCH_SUBMISSION.$DISPATCH_RUN {{}}" >>{life.lines}'
    first = {
        "resubmit": 'test "$DISPATCH_SUBMISSION" = 2',
        "requeue": 'test "$DISPATCH_RUN" = 2',
        "cancel": "sleep 600",
    }[life.kind]
    script = "; ".join([tell.format("start"), "sleep 0.3", first, "code=$?", tell.format("end"), "exit $code"])
    return Spec(command=("sh", "-c", script))


def plan(life: Life) -> Plan:
    if life.kind == "cancel":
        return Plan()
    again = Rule(name="again", when=When(cause=(Cause.EXIT,)), do=Action(life.kind), budget=1)
    return Plan(rules=(again,))


async def live(life: Life) -> Record:
    """Submit the job or attach to it, and supervise it until it is settled; a `cancel` life cancels it once it runs."""
    counts: Counter[str] = Counter()
    store: Any = Watched(open_store(life.url), WRITES, life, counts)
    scheduler: Any = Watched(
        LocalScheduler(life.spool, slots=64, bounds=QUICK, listing_seconds=0.3), CALLS, life, counts
    )
    try:
        client = Client(store, f"person {os.getpid()}")
        record = await client.submit(life.key, spec(life), plan(life), scheduler="local", adapter=scheduler)
        supervisor = Supervisor(store, scheduler, lease_seconds=10 if life.leases else None)
        work = asyncio.ensure_future(supervisor.attend(life.key, record.uid))
        if life.kind == "cancel":
            await started(life)
            await client.cancel(life.key)
        return await work
    finally:
        await scheduler.close()
        await store.close()


async def started(life: Life) -> None:
    """Until the payload says that it runs."""
    while "start" not in read(life.lines):
        await asyncio.sleep(0.1)


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def child(life: Life) -> None:
    """What the child runs."""
    asyncio.run(live(life))
