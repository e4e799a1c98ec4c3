"""One store and one cluster for all jobs of an event loop that use the same blocks, opened by the first and closed by
the last.

One rule: what is shared belongs to nobody's job, so that the end of one never closes it for the others. Nothing is open
while no job is attended to. Prefect runs tasks in loops of many threads, and a store serves one loop: one for each.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from uuid import UUID
from weakref import WeakKeyDictionary

import anyio

from dispatch_core import places
from dispatch_core.adapters.contract import Adapter
from dispatch_core.clusters import Cluster, UnknownCluster
from dispatch_core.errors import BadInput
from dispatch_core.stores.contract import Store
from dispatch_core.stores.sql import open_store
from prefect_collection.blocks import DispatchStore, SlurmCluster
from prefect_collection.server_database import prove, server_schema, server_url

SERVER = "server"
"""What a task is given instead of a block for the Prefect server's own database."""


class Connection(NamedTuple):
    """An open store and an open cluster."""

    store: Store
    adapter: Adapter
    scheduler: str


class _What(NamedTuple):
    """What makes two connections the same."""

    url: str
    schema: str | None
    cluster: Cluster


@dataclass
class _Shared:
    """A connection with those who use it, or wait for it to be opened."""

    users: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    connection: Connection | None = None


_open: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[_What, _Shared]] = WeakKeyDictionary()
_loops = threading.Lock()


async def load(store: DispatchStore | str) -> DispatchStore:
    """The block that a task was given: itself, by the name it was saved under, or "server"."""
    if isinstance(store, DispatchStore):
        return store
    if store == SERVER:
        return DispatchStore.of_server()
    try:
        return await DispatchStore.aload(store)
    except ValueError as error:
        raise BadInput(f"no Dispatch Store block is saved as {store!r}; save one, or give {SERVER!r}") from error


async def cluster_of(scheduler: SlurmCluster | str, spool: Path | None = None) -> Cluster:
    """The cluster that a task was given: a block, "local", a name in the clusters file, or that of a saved block."""
    if isinstance(scheduler, SlurmCluster):
        return scheduler.described()
    try:
        return places.find_cluster(scheduler, spool=spool)
    except UnknownCluster as unknown:
        try:
            block: SlurmCluster = await SlurmCluster.aload(scheduler)
        except ValueError:
            raise BadInput(f"{unknown}; nor is a Dispatch Slurm Cluster block saved as {scheduler!r}") from None
    return block.described()


@asynccontextmanager
async def connected(
    block: DispatchStore, scheduler: SlurmCluster | str, flow_runs: Sequence[UUID] = ()
) -> AsyncIterator[Connection]:
    """The store and the cluster that a task was given, for as long as the context lasts.

    `flow_runs` are what the server's database is proved by, where the block means that. Raises StoreUnavailable,
    BadInput.
    """
    what = _what(block, await cluster_of(scheduler, block.spool))
    with _loops:
        here = _open.setdefault(asyncio.get_running_loop(), {})
    shared = here.setdefault(what, _Shared())
    shared.users += 1
    try:
        async with shared.turn:
            if shared.connection is None:
                if block.server:
                    await prove(what.url, what.schema, flow_runs)
                shared.connection = _opened(what)
        yield shared.connection
    finally:
        shared.users -= 1
        if not shared.users:
            del here[what]
            if shared.connection is not None:
                with anyio.CancelScope(shield=True):
                    await shared.connection.adapter.close()
                    await shared.connection.store.close()


def _what(block: DispatchStore, cluster: Cluster) -> _What:
    if block.server:
        url = server_url()
        return _What(url, server_schema(url, block.database_schema), cluster)
    url = places.default_store() if block.url is None else block.url.get_secret_value()
    return _What(url, block.database_schema, cluster)


def _opened(what: _What) -> Connection:
    adapter = places.open_cluster(what.cluster)
    return Connection(store=open_store(what.url, schema=what.schema), adapter=adapter, scheduler=what.cluster.name)
