"""Attends to one job on behalf of a run: supervises it, tells its story, and leaves it when the run ends early.

One rule: the job outlives whoever attends to it. A run that ends early cancels the job only where that was asked for,
by the one way to cancel; else it lets go, and the next one that asks for the job, or a janitor, carries on. This room
knows no Prefect: what a run was asked is told to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio

from dispatch_core.client import Client
from dispatch_core.errors import DispatchError
from dispatch_core.record import Record
from dispatch_core.supervisor import Secrets, Supervisor
from prefect_collection.connections import Connection

STORY_SECONDS = 5.0
"""How often the record's new lines are told."""

LEAVE_SECONDS = 25.0
"""All that is done once the run is to end: a Prefect runner kills its process after 30."""

DRAIN_SECONDS = 8.0
"""For the supervisor's step in flight, out of those."""

STOP_SECONDS = 10.0
"""For the clean-up after a cancel, out of those; what is left is the janitor's."""


class Attendance:
    """One job, one run. `name` is the supervisor's: the same name takes its job over at once, also after a crash.

    `tell` is given each line of the job's story once it is in the record, and each warning as such.
    """

    def __init__(
        self,
        connection: Connection,
        record: Record,
        *,
        name: str,
        secrets: Secrets,
        tell: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self.key, self.uid = record.key, record.uid
        self.store = connection.store
        self.client = Client(connection.store, who=name)
        self.supervisor = Supervisor(
            connection.store, connection.adapter, secrets=secrets, drain_seconds=DRAIN_SECONDS, name=name
        )
        self.tell, self.warn = tell, warn
        self._told = 0

    async def until_settled(self, *, settle_seconds: float, must_cancel: Callable[[], Awaitable[str]]) -> Record:
        """The record once it is settled, or `settle_seconds` after its outcome.

        Cancelled itself, it asks `must_cancel` for the reason to cancel the job ("" for none: the job runs on), does so
        within LEAVE_SECONDS, and passes the cancellation on.
        """
        work = asyncio.ensure_future(self._supervise(settle_seconds))
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=STORY_SECONDS)
                await self._tell_news()
            return work.result()
        except (Exception, GeneratorExit):
            raise
        except BaseException:  # a cancellation, or the signal that Prefect raises as an exception of its own
            # Prefect's time limit cancels every await from now on, but those under a shield.
            with anyio.move_on_after(LEAVE_SECONDS, shield=True):
                await self._leave(work, must_cancel)
            raise

    async def cancel(self, reason: str) -> None:
        """Commit the cancel, then supervise the clean-up for STOP_SECONDS. Raises DispatchError if nobody knows it."""
        await self.client.cancel(self.key, uid=self.uid, reason=reason)
        with suppress(TimeoutError, DispatchError):
            async with asyncio.timeout(STOP_SECONDS):
                await self.supervisor.attend(self.key, self.uid)

    async def _supervise(self, settle_seconds: float) -> Record:
        record = await self.supervisor.attend(self.key, self.uid, until_outcome=True)
        if not record.settled:
            with suppress(TimeoutError):
                async with asyncio.timeout(settle_seconds):
                    record = await self.supervisor.attend(self.key, self.uid)
        return record

    async def _leave(self, work: asyncio.Future[Record], must_cancel: Callable[[], Awaitable[str]]) -> None:
        reason, doubt = "", ""
        try:
            reason = await must_cancel()
            if reason:
                await self.client.cancel(self.key, uid=self.uid, reason=reason)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not hide why the run ends
            doubt = f" ({reason or 'nobody said whether to cancel it'}, and: {error or type(error).__name__})"
        work.cancel()
        await asyncio.wait({work})
        if reason and not doubt:
            with suppress(DispatchError):
                await self.cancel(reason)
        else:
            self.warn(
                f"job {self.key!r} runs on{doubt}; the next run of this flow run attends to it, or `dispatch supervise`; "
                "`dispatch cancel` ends it"
            )
        await self._tell_news()

    async def _tell_news(self) -> None:
        """Tell what was committed since; what cannot be read now is told later."""
        with suppress(DispatchError):
            if (await self.store.read(self.key, self.uid)).revision == self._told:
                return
            for change in await self.store.history(self.key, self.uid):
                if change.revision > self._told:
                    for line in change.lines:
                        self.tell(line)
                    self._told = change.revision
