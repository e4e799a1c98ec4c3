"""One supervising process of a twin: `python -m tests.twin.supervising <url> <spool> <kind> [<host clock>]`.

`leased` is the janitor as it is. `free` attends to every job without a lease, whoever holds it, so that several of them
decide about the same job at the same time. Nothing is replaced; only the times are short. `careless` is what the twin
must notice: as `free`, but it makes its calls whether its commit landed or not. Where this process was given a clock
that is wrong, the file `<host clock>` is what its scheduler reads the host's time from.
"""

from __future__ import annotations

import asyncio
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from dispatch_core import supervisor as loop
from dispatch_core.adapters.contract import Adapter, Launch
from dispatch_core.adapters.local.scheduler import LocalScheduler, now
from dispatch_core.errors import StoreUnavailable
from dispatch_core.evidence import Bounds
from dispatch_core.janitor import Janitor
from dispatch_core.record import Record, Reply
from dispatch_core.stores.contract import Store
from dispatch_core.stores.sql import open_store

QUICK = Bounds(call_seconds=0.5, window_seconds=2, absence_seconds=1, repeat_seconds=0.2, resync_seconds=2)
LEASE_SECONDS = 2 * (QUICK.window_seconds + QUICK.call_seconds)
"""The shortest that a supervisor takes with these bounds."""
PERIOD_SECONDS = 0.5
SLOTS = 64
UP = "up, and by its own clock it is"


class Told(LocalScheduler):
    """The local scheduler, with a line in a file for each Start that it is asked for: a second one makes no object."""

    starts: Path

    async def start(self, launch: Launch, secrets: Mapping[str, str], deadline: datetime) -> Reply:
        with self.starts.open("a") as file:
            file.write(f"{launch.name}\n")
        return await super().start(launch, secrets, deadline)


def starts_of(spool: Path) -> Path:
    """Where those lines are."""
    return spool.with_name("starts")


def connect(spool: Path, clock: Callable[[], datetime] = now) -> LocalScheduler:
    scheduler = Told(spool, slots=SLOTS, bounds=QUICK, listing_seconds=0.2, grace_seconds=1.0, clock=clock)
    scheduler.starts = starts_of(spool)
    return scheduler


def clock_of_host(file: Path) -> Callable[[], datetime]:
    """The kernel's time, as it marks a file that is touched: what no wrong clock of this process has a part in."""

    def read() -> datetime:
        file.touch()
        return datetime.fromtimestamp(file.stat().st_mtime, UTC)

    return read


async def attend_to_everything(store: Store, scheduler: Adapter) -> None:
    """Every job of the store, whoever has it, without a lease."""
    supervisor = loop.Supervisor(store, scheduler, lease_seconds=None)
    attended: dict[str, asyncio.Future[Record]] = {}
    try:
        while True:
            with suppress(StoreUnavailable):
                for listed in await store.jobs(settled=False):
                    if listed.uid not in attended or attended[listed.uid].done():
                        attended[listed.uid] = asyncio.ensure_future(supervisor.attend(listed.key, listed.uid))
            await asyncio.sleep(PERIOD_SECONDS)
    finally:
        for work in attended.values():
            work.cancel()
        await asyncio.gather(*attended.values(), return_exceptions=True)


async def supervise(url: str, spool: Path, kind: str, host: str = "") -> None:
    """Until SIGTERM."""
    loop.Supervisor.record_seconds = 1.0
    store, scheduler = open_store(url), connect(spool, clock_of_host(Path(host)) if host else now)
    print(UP, time.time(), flush=True)
    if kind == "leased":
        janitor = Janitor(store, {"local": scheduler}, period_seconds=PERIOD_SECONDS, lease_seconds=LEASE_SECONDS)
        work = asyncio.ensure_future(janitor.run())
    else:
        work = asyncio.ensure_future(attend_to_everything(store, scheduler))
    if kind == "careless":
        loop.is_allowed = lambda call, landed: True
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
    try:
        with suppress(asyncio.CancelledError):
            await work
    finally:
        await scheduler.close()
        await store.close()


def sleep(seconds: float) -> None:
    """As `time.sleep`, whose call libfaketime refuses where it is to leave the monotonic clock alone."""
    select.select([], [], [], seconds)


if __name__ == "__main__":
    if len(sys.argv) > 4:
        time.sleep = sleep
    asyncio.run(supervise(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
