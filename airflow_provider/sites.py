"""What all triggers of one triggerer share: one store for each connection, and one connection to each cluster.

One rule: whoever enters first opens, whoever leaves last closes, and in between fifty triggers list a cluster as often
as one. What is shared belongs to one event loop; a site to one Airflow connection as well, a cluster to all that is
said of it, so that two sites on one cluster share it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol, TypeVar

from airflow_provider.clusters import acluster
from airflow_provider.hook import Settings, asettings
from dispatch_core.adapters.contract import Adapter
from dispatch_core.clusters import Cluster
from dispatch_core.places import open_cluster
from dispatch_core.stores.contract import Store


class Closing(Protocol):
    """What is closed when nobody uses it."""

    async def close(self) -> None: ...


Shared = TypeVar("Shared", bound=Closing)


class Site:
    """An open store and the clusters that were asked for."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self.store = store
        self._settings = settings
        self._adapters: dict[tuple[str, bool], Adapter] = {}
        self._stack = AsyncExitStack()
        self._turn = asyncio.Semaphore(1)

    async def adapter(self, scheduler: str, conn_id: str | None = None) -> Adapter:
        """The connection to the cluster that a record names; `conn_id`: the Airflow connection that its task was given.
        Raises BadInput for one that cannot be opened here."""
        async with self._turn:
            key = (scheduler, scheduler == conn_id)
            if key not in self._adapters:
                found = await acluster(scheduler, conn_id, self._settings.spool)
                self._adapters[key] = await self._stack.enter_async_context(
                    _shared_by_all(found, lambda: _opened(found))
                )
            return self._adapters[key]

    async def close(self) -> None:
        try:
            await self._stack.aclose()
        finally:
            await self.store.close()


class _Place:
    """What is open for a key, or on its way, and how many use it."""

    def __init__(self) -> None:
        self.turn = asyncio.Semaphore(1)
        self.open: Any = None
        self.users = 0


_shared: dict[tuple[asyncio.AbstractEventLoop, str | Cluster], _Place] = {}


@asynccontextmanager
async def site(conn_id: str) -> AsyncIterator[Site]:
    """The site of an Airflow connection, in this event loop. Raises BadInput where the connection leads nowhere."""
    async with _shared_by_all(conn_id, lambda: _open(conn_id)) as found:
        yield found


@asynccontextmanager
async def _shared_by_all(what: str | Cluster, opens: Callable[[], Awaitable[Shared]]) -> AsyncIterator[Shared]:
    key = (asyncio.get_running_loop(), what)
    place = _shared.setdefault(key, _Place())
    place.users += 1
    try:
        async with place.turn:
            if place.open is None:
                place.open = await opens()
        yield place.open
    finally:
        place.users -= 1
        if place.users == 0:
            del _shared[key]
            if place.open is not None:
                await asyncio.shield(place.open.close())


async def _open(conn_id: str) -> Site:
    settings = await asettings(conn_id)
    # In a thread: the first use of a database imports its driver, and a triggerer's loop must not wait for that.
    return Site(settings, await asyncio.to_thread(settings.open_store))


async def _opened(cluster: Cluster) -> Adapter:
    return await asyncio.to_thread(open_cluster, cluster)
