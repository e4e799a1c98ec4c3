"""What all triggers of one triggerer share: one store and one connection to each scheduler.

One rule: whoever enters first opens, whoever leaves last closes, and in between fifty triggers list the spool as often
as one. A site belongs to one event loop and one Airflow connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from airflow_provider.hook import Settings, asettings
from dispatch_core.adapters.contract import Adapter
from dispatch_core.places import open_scheduler
from dispatch_core.stores.sql import SqlStore


class Site:
    """An open store and the schedulers that were asked for."""

    def __init__(self, settings: Settings, store: SqlStore) -> None:
        self.store = store
        self._settings = settings
        self._adapters: dict[str, Adapter] = {}
        self._turn = asyncio.Semaphore(1)

    async def adapter(self, scheduler: str) -> Adapter:
        """The connection to a scheduler. Raises BadInput for one that cannot be opened here."""
        async with self._turn:
            if scheduler not in self._adapters:
                opened = await asyncio.to_thread(open_scheduler, scheduler, self._settings.spool)
                self._adapters[scheduler] = opened
            return self._adapters[scheduler]

    async def close(self) -> None:
        try:
            await asyncio.gather(*(adapter.close() for adapter in self._adapters.values()))
        finally:
            await self.store.close()


class _Shared:
    """A site, or one on its way, and how many use it."""

    def __init__(self) -> None:
        self.turn = asyncio.Semaphore(1)
        self.site: Site | None = None
        self.users = 0


_shared: dict[tuple[asyncio.AbstractEventLoop, str], _Shared] = {}


@asynccontextmanager
async def site(conn_id: str) -> AsyncIterator[Site]:
    """The site of an Airflow connection, in this event loop. Raises BadInput where the connection leads nowhere."""
    place = (asyncio.get_running_loop(), conn_id)
    shared = _shared.setdefault(place, _Shared())
    shared.users += 1
    try:
        async with shared.turn:
            if shared.site is None:
                shared.site = await _open(conn_id)
        yield shared.site
    finally:
        shared.users -= 1
        if shared.users == 0:
            del _shared[place]
            if shared.site is not None:
                await asyncio.shield(shared.site.close())


async def _open(conn_id: str) -> Site:
    settings = await asettings(conn_id)
    # In a thread: the first use of a database imports its driver, and a triggerer's loop must not wait for that.
    return Site(settings, await asyncio.to_thread(settings.open_store))
