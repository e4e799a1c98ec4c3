"""The stores and clusters that are open: one of each for all jobs of an event loop that use it, opened by the first and
closed by the last.

One rule: what is shared belongs to nobody's job, so that the end of one never closes it for the others. Nothing is open
while no job is attended to. Prefect runs tasks in loops of many threads, and a store serves one loop: one for each. A
database is used only where its tables are known to be those of this version.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar, cast
from uuid import UUID
from weakref import WeakKeyDictionary

import anyio
from pydantic import SecretStr

from dispatch_core import places
from dispatch_core.adapters.contract import Adapter
from dispatch_core.clusters import Cluster, UnknownCluster
from dispatch_core.errors import BadInput
from dispatch_core.stores.contract import Store
from dispatch_core.stores.migrations import must_fit
from prefect_collection.blocks import ClusterBlock, DispatchStore, KubernetesCluster, SlurmCluster
from prefect_collection.server_database import prove, server_schema, server_url

SERVER = "server"
"""What a task is given instead of a block for the Prefect server's own database."""


class Connection(NamedTuple):
    """An open store and an open cluster."""

    store: Store
    adapter: Adapter
    scheduler: str


class _Kept(NamedTuple):
    """What makes two stores the same."""

    url: str
    schema: str | None
    token: SecretStr | None
    server: bool


class _Closable(Protocol):
    async def close(self) -> None: ...


Opened = TypeVar("Opened", bound=_Closable)


@dataclass
class _Shared(Generic[Opened]):
    """Something open, with those who use it, or wait for it to be opened."""

    users: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    opened: Opened | None = None


_open: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, _Shared[_Closable]]] = WeakKeyDictionary()
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


async def cluster_of(scheduler: ClusterBlock | str, spool: Path | None = None) -> Cluster:
    """The cluster that a task was given: a block, "local", a name in the clusters file, or that of a saved block."""
    if not isinstance(scheduler, str):
        return scheduler.described()
    try:
        return places.find_cluster(scheduler, spool=spool)
    except UnknownCluster as unknown:
        found = [block for kind in (SlurmCluster, KubernetesCluster) if (block := await _saved(kind, scheduler))]
        if len(found) != 1:
            said = "is a Dispatch Slurm Cluster or Dispatch Kubernetes Cluster block saved as"
            raise BadInput(f"{unknown}; {'nor' if not found else 'and twice'} {said} {scheduler!r}") from None
    return found[0].described()


async def _saved(kind: type[ClusterBlock], name: str) -> ClusterBlock | None:
    try:
        return await kind.aload(name)
    except ValueError:
        return None


@asynccontextmanager
async def stored(block: DispatchStore, flow_runs: Sequence[UUID] = ()) -> AsyncIterator[Store]:
    """The store that a task was given, for as long as the context lasts.

    `flow_runs` are what the server's database is proved by, where the block means that. Raises StoreUnavailable,
    BadInput.
    """
    kept = _kept(block)

    async def opened() -> Store:
        if kept.server:
            await prove(kept.url, kept.schema, flow_runs)
        elif not places.is_served(kept.url):
            await must_fit(kept.url, schema=kept.schema)
        return _store(kept)

    async with _shared(kept, opened) as store:
        yield store


@asynccontextmanager
async def connected(
    block: DispatchStore, scheduler: ClusterBlock | str, flow_runs: Sequence[UUID] = ()
) -> AsyncIterator[Connection]:
    """The store and the cluster that a task was given, for as long as the context lasts; as `stored`."""
    cluster = await cluster_of(scheduler, block.spool)

    async def opened() -> Adapter:
        return places.open_cluster(cluster)

    async with stored(block, flow_runs) as store, _shared(cluster, opened) as adapter:
        yield Connection(store=store, adapter=adapter, scheduler=cluster.name)


@asynccontextmanager
async def _shared(what: Hashable, opened: Callable[[], Awaitable[Opened]]) -> AsyncIterator[Opened]:
    with _loops:
        here = _open.setdefault(asyncio.get_running_loop(), {})
    shared = here.setdefault(what, _Shared())
    shared.users += 1
    try:
        async with shared.turn:
            if shared.opened is None:
                shared.opened = await opened()
        yield cast(Opened, shared.opened)
    finally:
        shared.users -= 1
        if not shared.users:
            del here[what]
            if shared.opened is not None:
                with anyio.CancelScope(shield=True):
                    await shared.opened.close()


def _kept(block: DispatchStore) -> _Kept:
    if block.server:
        url = server_url()
        return _Kept(url, server_schema(url, block.database_schema), None, True)
    url = places.default_store() if block.url is None else block.url.get_secret_value()
    return _Kept(url, block.database_schema, block.token, False)


def _store(kept: _Kept) -> Store:
    if kept.token is None:
        return places.open_store(kept.url, schema=kept.schema)
    return places.open_served(kept.url, kept.token.get_secret_value())
