"""What `dispatch supervise --prefect` does beside supervising: it cancels the jobs of cancelled flow runs, and resumes
the flow runs that were suspended until their jobs are over.

One rule: an event is only a hint to look. All that is done is decided by looking, at Prefect and at the records, on
every connect, after every event and every LOOK_SECONDS, so that an event that is lost, doubled, late or never sent
changes nothing but how soon. Any number of these services may run beside each other.
"""

from __future__ import annotations

import asyncio
import logging

import httpx
from prefect.client.orchestration import PrefectClient, get_client
from prefect.events.clients import get_events_subscriber
from prefect.events.filters import EventFilter, EventNameFilter
from prefect.exceptions import PrefectException
from prefect.settings import PREFECT_API_URL

from dispatch_core.errors import BadInput, DispatchError, StoreUnavailable
from dispatch_core.record import Record
from dispatch_core.status import state_of
from dispatch_core.stores.contract import Store
from dispatch_core.stores.sql import open_store
from prefect_collection import unwanted
from prefect_collection.secret_sources import read_secret
from prefect_collection.server_database import prove, server_schema, server_url
from prefect_collection.showing import emit
from prefect_collection.suspending import resume_ready

log = logging.getLogger("dispatch_core.prefect")  # told to whoever runs the command, as the supervisor's warnings are

LOOK_SECONDS = 10.0
"""How often it looks without a hint."""

CALM_SECONDS = 0.5
"""Hints that come within it are one."""

CONNECT_SECONDS = 5.0
"""Between two tries to listen for events."""

REMEMBERED = 10_000
"""Jobs whose last event is known, so that none is sent twice in a row."""

EVENTS = ("prefect.flow-run.Cancelling", "prefect.flow-run.Cancelled", "prefect.flow-run.Suspended")

WHO = "prefect service"

UNREACHABLE = (httpx.HTTPError, OSError, PrefectException, TimeoutError)


class PrefectService:
    """The half of the service that knows Prefect; the command gives it a store, and supervises."""

    period_seconds = 5.0
    """How soon a job that was only submitted is begun: a suspended flow run waits for it."""

    def __init__(self) -> None:
        if not PREFECT_API_URL.value():
            raise BadInput("PREFECT_API_URL is not set: tell which Prefect server's flow runs are to be watched")
        self.secrets = read_secret
        self._hint = asyncio.Event()
        self._hindrance = ""
        self._shown: dict[str, tuple[str, bool]] = {}

    async def open_store(self) -> Store:
        """The store in the Prefect server's own database, proven to be that. Raises StoreUnavailable."""
        url = server_url()
        schema = server_schema(url, None)
        try:
            await prove(url, schema, ())
        except UNREACHABLE as error:
            raise StoreUnavailable(
                f"the Prefect server at {PREFECT_API_URL.value()} does not answer: {_said(error)}; nothing was done"
            ) from error
        return open_store(url, schema=schema)

    def heard(self, record: Record) -> None:
        """Something was committed here: an outcome may be what a suspended flow run waits for."""
        if record.outcome is not None:
            self._hint.set()
        state = state_of(record)
        if self._shown.get(record.uid) != (state, record.settled):
            if len(self._shown) > REMEMBERED:
                self._shown.clear()
            self._shown[record.uid] = (state, record.settled)
            emit(record, unwanted.root_of(record.key))

    async def look(self, store: Store) -> None:
        """Cancel what is to be cancelled, and resume what is to be resumed. What hinders it is said once, and what
        hinders the one does not hinder the other."""
        hindrances = dict[str, None]()
        for part in (_cancel_unwanted, resume_ready):
            try:
                async with get_client() as client:
                    await part(client, store)
            except UNREACHABLE as error:
                hindrances[f"Prefect does not answer, and its cancels are not heard: {_said(error)}"] = None
            except DispatchError as error:
                hindrances[f"{error}; looking again in {LOOK_SECONDS:g} s"] = None
        self._hindered("; ".join(hindrances))

    async def run(self, store: Store) -> None:
        """Look, again and again, until it is cancelled."""
        listening = asyncio.ensure_future(self._listen())
        try:
            while True:
                self._hint.clear()
                await self.look(store)
                try:
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._hint.wait()
                    await asyncio.sleep(CALM_SECONDS)
                except TimeoutError:
                    continue
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self) -> None:
        """Give a hint for every event and every new connection: nobody tells what was missed before it."""
        while True:
            try:
                wanted = EventFilter(event=EventNameFilter(name=list(EVENTS)))
                async with get_events_subscriber(wanted, reconnection_attempts=0) as events:
                    self._hint.set()
                    async for _ in events:
                        self._hint.set()
            except Exception as error:  # noqa: BLE001 - whatever a websocket raises: without events it looks all the same
                log.info("no events from Prefect: %s", _said(error))
            await asyncio.sleep(CONNECT_SECONDS)

    def _hindered(self, text: str) -> None:
        if text and text != self._hindrance:
            log.warning("%s", text)
        self._hindrance = text


async def _cancel_unwanted(client: PrefectClient, store: Store) -> int:
    jobs = await unwanted.open_jobs(store)
    return await unwanted.cancel(store, jobs, await unwanted.reasons(client, jobs), WHO) if jobs else 0


def _said(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
