"""One supervising program of a soak: `python -m tests.slurm.supervising <url> <settings> <environment> leased|free`.

`leased` is the janitor as it is. `free` attends to every job without a lease, whoever holds it. Nothing is replaced;
only the times are short.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import suppress

import msgspec

from dispatch_core import supervisor as loop
from dispatch_core.adapters.slurm.cluster import SlurmCluster
from dispatch_core.adapters.slurm.transport import LocalTransport
from dispatch_core.janitor import Janitor
from dispatch_core.stores.sql import open_store
from tests.slurm.stage import Short
from tests.twin.supervising import attend_to_everything

PERIOD_SECONDS = 1.0
UP = "up"


async def supervise(url: str, settings: str, variables: str, kind: str) -> None:
    """Until SIGTERM."""
    loop.Supervisor.record_seconds = 2.0
    cluster = msgspec.json.decode(settings, type=SlurmCluster)
    store, adapter = open_store(url), Short(cluster, LocalTransport(json.loads(variables)))
    adapter.window_seconds = 8.0
    print(UP, flush=True)
    if kind == "leased":
        work = asyncio.ensure_future(Janitor(store, {"test": adapter}, period_seconds=PERIOD_SECONDS).run())
    else:
        work = asyncio.ensure_future(attend_to_everything(store, adapter))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
    try:
        with suppress(asyncio.CancelledError):
            await work
    finally:
        await adapter.close()
        await store.close()


if __name__ == "__main__":
    asyncio.run(supervise(*sys.argv[1:]))
