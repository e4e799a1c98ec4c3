"""Attends to one job on behalf of a run: supervises it, tells its story, and leaves it when the run ends early.

One rule: the job outlives whoever attends to it. A run that ends early cancels the job only where that was asked for,
by the one way to cancel; else it lets go, and the next one that asks for the job, or a janitor, carries on. This room
knows no Prefect: what a run was asked is told to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import anyio

from dispatch_core.client import Client
from dispatch_core.errors import DispatchError, KeyTaken, Owned
from dispatch_core.record import Answer, Record, State
from dispatch_core.status import runs_of
from dispatch_core.stores.contract import Change, Store
from dispatch_core.supervisor import Secrets, Supervisor
from prefect_collection.connections import Connection

STORY_SECONDS = 5.0
"""How often the record's new lines are told, and a cancel is listened for."""

LEAVE_SECONDS = 25.0
"""All that is done once the run is to end: a Prefect runner kills its process after 30."""

DRAIN_SECONDS = 8.0
"""For the supervisor's step in flight, out of those."""

STOP_SECONDS = 10.0
"""For the clean-up after a cancel, out of those; what is left is the janitor's."""

LOOK_SECONDS = 0.5
"""How often that clean-up is looked at."""

Asked = Callable[[], Awaitable[str]]
"""Tells why the job must be cancelled; "" where nobody asked for that."""

Claim = Callable[[Store, Record, float], Awaitable[bool]]
"""Is told how long a lease lasts; tells whether the job is to be taken if it is free, or is another's to be waited for.
Raises KeyTaken where it may not be asked for."""

Show = Callable[[Record, Sequence[Change]], Awaitable[None]]


class Attendance:
    """One run's way to attend to a job. `name` is its supervisor's: the same name takes a job over at once, also after
    a crash; `claim` says what another's job is to this run, which waits where it is not given. `tell` is given each
    line of the job's story once it is in the record, `warn` what a person should know, `show` the record whenever it
    has changed, with what was committed since."""

    def __init__(
        self,
        connection: Connection,
        *,
        name: str,
        secrets: Secrets,
        tell: Callable[[str], None],
        warn: Callable[[str], None],
        show: Show,
        claim: Claim | None = None,
    ) -> None:
        self.store = connection.store
        self.client = Client(connection.store, who=name)
        self.supervisor = Supervisor(
            connection.store, connection.adapter, secrets=secrets, drain_seconds=DRAIN_SECONDS, name=name
        )
        self.tell, self.warn, self.show, self.claim = tell, warn, show, claim
        self._told = 0

    async def attend(self, record: Record, *, until_outcome: bool = False) -> Record:
        """Supervise the job, once this run may. Raises KeyTaken."""
        while True:
            lease_seconds = self.supervisor.lease_seconds or 0.0
            if_free = self.claim is not None and await self.claim(self.store, record, lease_seconds)
            with suppress(Owned):  # another was faster; it is looked at anew
                return await self.supervisor.attend(
                    record.key, record.uid, until_outcome=until_outcome, if_free=if_free
                )

    async def until_settled(
        self,
        submit: Coroutine[Any, Any, Record],
        *,
        settle_seconds: float,
        heard_of_cancel: Asked,
        must_cancel: Asked,
    ) -> Record:
        """The record of what `submit` makes or finds, once it is settled, or `settle_seconds` after its outcome.

        While it waits it asks `heard_of_cancel`, and cancels the job where there is a reason. Cancelled itself, it asks
        `must_cancel`, cancels the job or lets go of it, all within LEAVE_SECONDS, and passes the cancellation on.
        """
        # On its own: cut off in the middle, nobody would know whether there is a job.
        submitted = asyncio.ensure_future(submit)
        work = asyncio.ensure_future(self._supervise(submitted, settle_seconds))
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=STORY_SECONDS)
                if (record := _result(submitted)) is not None:
                    await self._tell_news(record)
                    await self._cancel_if(heard_of_cancel, record)
            return work.result()
        except (Exception, GeneratorExit):
            submitted.cancel()
            work.cancel()
            raise
        except BaseException:  # a cancellation, or the signal that Prefect raises as an exception of its own
            # On its own as well: Python 3.11's timeouts do not work any more in what was cancelled.
            leaving = asyncio.ensure_future(self._leave(submitted, work, must_cancel))
            # Where a time limit of Prefect's has run out, every await is cancelled again, but those under a shield.
            with anyio.CancelScope(shield=True):
                await asyncio.wait({leaving}, timeout=LEAVE_SECONDS)
            for left in (leaving, submitted, work):
                left.cancel()
            raise

    async def until_launched(self, record: Record, seconds: float) -> None:
        """Supervise until the job's first run is let go, or has an outcome, for so many seconds at most. Raises
        KeyTaken."""
        work = asyncio.ensure_future(self.attend(record))
        try:
            with suppress(TimeoutError, DispatchError):
                async with asyncio.timeout(seconds):
                    while not (work.done() or runs_of(record) or record.outcome is not None):
                        await asyncio.wait({work}, timeout=LOOK_SECONDS)
                        record = await self.store.read(record.key, record.uid)
        finally:
            work.cancel()
            await asyncio.wait({work})
        if not work.cancelled() and isinstance(refused := work.exception(), KeyTaken):
            raise refused
        await self._tell_news(record)

    async def cancel(self, record: Record, reason: str) -> None:
        """Commit the cancel, then supervise until nothing of the job is alive, for STOP_SECONDS at most.

        Raises DispatchError where the cancel is not committed.
        """
        await self.client.cancel(record.key, uid=record.uid, reason=reason)
        stopping = asyncio.ensure_future(self.attend(record))
        try:
            with suppress(TimeoutError, DispatchError):
                async with asyncio.timeout(STOP_SECONDS):
                    while not (stopping.done() or _is_stopped(await self.store.read(record.key, record.uid))):
                        await asyncio.wait({stopping}, timeout=LOOK_SECONDS)
        finally:
            stopping.cancel()
            await asyncio.wait({stopping})

    async def _supervise(self, submitted: asyncio.Future[Record], settle_seconds: float) -> Record:
        record = await asyncio.shield(submitted)
        record = await self.attend(record, until_outcome=True)
        if not record.settled:
            try:
                async with asyncio.timeout(settle_seconds) as bound:
                    return await self.attend(record)
            except TimeoutError:
                if bound.expired():
                    left = "`dispatch supervise` clears away what is left of it"
                    self.warn(f"job {record.key!r} is not settled {settle_seconds:g} s after its outcome; {left}")
        return record

    async def _cancel_if(self, heard_of_cancel: Asked, record: Record) -> None:
        """Commit the cancel that was heard of; a store that does not answer is asked again. The supervisor goes on."""
        reason = await heard_of_cancel()
        if reason:
            with suppress(DispatchError):
                await self.client.cancel(record.key, uid=record.uid, reason=reason)

    async def _leave(self, submitted: asyncio.Future[Record], work: asyncio.Future[Record], must_cancel: Asked) -> None:
        await asyncio.wait({submitted}, timeout=DRAIN_SECONDS)
        record = _result(submitted)
        if record is None:
            self.warn("it is not known whether the job is in the store yet; a rerun of this flow run finds it if it is")
            return
        reason, doubt = "", ""
        try:
            reason = await must_cancel()
            if reason:
                await self.client.cancel(record.key, uid=record.uid, reason=reason)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not hide why the run ends
            doubt = f" ({reason or 'nobody said whether to cancel it'}, and: {error or type(error).__name__})"
        work.cancel()
        await asyncio.wait({work})
        if reason and not doubt:
            with suppress(DispatchError):
                await self.cancel(record, reason)
        else:
            self.warn(
                f"job {record.key!r} runs on{doubt}; a rerun of this flow run attends to it, or `dispatch supervise`, "
                "and `dispatch cancel` ends it"
            )
        await self._tell_news(record)

    async def _tell_news(self, job: Record) -> None:
        """Tell what was committed since; what cannot be read now is told later."""
        with suppress(DispatchError):
            if await self.store.revision(job.key, job.uid) == self._told:
                return
            record = await self.store.read(job.key, job.uid)
            changes = await self.store.history(job.key, job.uid)
            news = [change for change in changes if change.revision > self._told]
            for change in news:
                for line in change.lines:
                    self.tell(line)
                self._told = change.revision
            await self.show(record, news)


def _is_stopped(record: Record) -> bool:
    """Whether every attempt that may have made an object has one, and all have ended; the record may settle later."""
    made = {(object.submission, object.attempt) for object in record.objects if object.state is State.ENDED}
    nothing = (Answer.REFUSED, Answer.LATE)
    return all(object.state is State.ENDED for object in record.objects) and all(
        (submission.number, attempt.number) in made
        for submission in record.submissions
        for attempt in submission.attempts
        if attempt.reply is None or attempt.reply.answer not in nothing
    )


def _result(submitted: asyncio.Future[Record]) -> Record | None:
    """The record, once it is known that there is one."""
    known = submitted.done() and not submitted.cancelled() and submitted.exception() is None
    return submitted.result() if known else None
