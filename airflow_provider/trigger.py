"""The trigger: a supervisor of one job, in Airflow's triggerer.

One rule: it may run twice, stop at any line and be told to end by mistake; the record is what counts, so its first act
is to read it, and losing the triggerer loses nothing. What does not answer, store or scheduler or Airflow, is waited
for: only the job's own outcome ends the wait. It knows nothing of how the task concludes; the operator reads the record
again.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider import clusters, hook
from airflow_provider.ending import cancel_if_ended
from airflow_provider.hook import DEFAULT
from airflow_provider.secrets import secrets
from airflow_provider.sites import Site, site
from dispatch_core.client import Client
from dispatch_core.errors import DispatchError, Displaced, NotFound, Owned
from dispatch_core.reasons import LOUD
from dispatch_core.record import Record
from dispatch_core.supervisor import Supervisor

SETTLE_SECONDS = 120.0

DRAIN_SECONDS = 3.0
"""A triggerer that ends kills its triggers after 10 s; a step in flight, and giving the lease up, have 3 s each."""

AGAIN_SECONDS = (5.0, 10.0, 20.0, 40.0, 60.0)
"""How long to wait for what did not answer, once, twice, ..."""

KILL_SECONDS = 20.0
"""How long `on_kill` is waited for; Airflow would end it at 30. What it began goes on."""

STOPPING_SECONDS = 600.0
"""How long a killed task's job is seen to its end here; then it is the janitor's."""

_ending: set[asyncio.Task[None]] = set()
"""What kill hooks began and did not see the end of, kept from being forgotten; the triggerer's end ends it."""


class DispatchTrigger(BaseTrigger):
    """Supervises the job with this key and uid until it has an outcome, and is settled or `settle_seconds` have passed.

    `scheduler_conn_id` is the connection that its cluster is reached by; None: the clusters file has it. `instance` is
    the task instance that deferred: dag_id, run_id, task_id, map_index, and its uuid as ti_id. `until`,
    in seconds since 1970: when the job is cancelled if it has no outcome; None: never. `settle_seconds` None waits for
    as long as it takes. The event is {"key", "uid"}, with "problem" where the record is gone.
    """

    def __init__(
        self,
        *,
        key: str,
        uid: str,
        dispatch_conn_id: str = DEFAULT,
        scheduler_conn_id: str | None = None,
        instance: dict[str, Any] | None = None,
        settle_seconds: float | None = SETTLE_SECONDS,
        until: float | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.key = key
        self.uid = uid
        self.dispatch_conn_id = dispatch_conn_id
        self.scheduler_conn_id = scheduler_conn_id
        self.instance = dict(instance or {})
        self.settle_seconds = settle_seconds
        self.until = until
        # New for every run of the trigger: the same one in two triggerers is two supervisors.
        self.name = f"airflow {self.instance.get('ti_id', '')} {uuid.uuid4().hex[:8]}"
        self._fired = False
        self._told = ""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and the arguments that make it again; no secret is among them."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "key": self.key,
                "uid": self.uid,
                "dispatch_conn_id": self.dispatch_conn_id,
                "scheduler_conn_id": self.scheduler_conn_id,
                "instance": self.instance,
                "settle_seconds": self.settle_seconds,
                "until": self.until,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Attend to the job, fire once and return at once: Airflow kills what lingers after its event."""
        payload = {"key": self.key, "uid": self.uid}
        hindered = 0
        while True:
            try:
                async with site(self.dispatch_conn_id) as place:
                    record = await place.store.read(self.key, self.uid)
                    hindered = 0
                    await self._attend(place, record)
                break
            except NotFound as gone:
                payload["problem"] = str(gone)
                break
            except (DispatchError, OSError) as hindrance:
                self._tell(f"job {self.key} is left as it is meanwhile: {hindrance}", logging.WARNING)
            hook.forget(self.dispatch_conn_id)
            clusters.forget(self.scheduler_conn_id)
            await asyncio.sleep(AGAIN_SECONDS[min(hindered, len(AGAIN_SECONDS) - 1)])
            hindered += 1
        self._fired = True
        yield TriggerEvent(payload)  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """A hint that somebody acted on the task: the job is cancelled, and stopped, only where the task has ended."""
        if self._fired:
            return
        work = asyncio.create_task(self._end())
        _ending.add(work)
        work.add_done_callback(_ending.discard)
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(work), KILL_SECONDS)

    async def _attend(self, place: Site, record: Record) -> None:
        """See the job to its outcome, then to its end, as far as the bounds allow."""
        self._tell(f"attends to job {self.key}, record {self.uid}, at revision {record.revision}")
        self._tell_wait(record)
        supervisor = await self._supervisor(place, record)
        try:
            async with asyncio.timeout(self._left()) as bound:
                await self._supervise(supervisor, until_outcome=True)
        except TimeoutError:
            if not bound.expired():
                raise
            await Client(place.store, self.name).cancel(
                self.key, uid=self.uid, reason="the task's execution_timeout is over"
            )
        try:
            async with asyncio.timeout(self.settle_seconds) as bound:
                await self._supervise(supervisor)
        except TimeoutError:
            if not bound.expired():
                raise
            self._tell(
                f"job {self.key} has its outcome; what is left of it is cleared away by `dispatch supervise` or the"
                " janitor's task, and until then it is unattended",
                logging.WARNING,
            )

    async def _supervise(self, supervisor: Supervisor, *, until_outcome: bool = False) -> Record:
        """Run the supervisor; where another has the job, follow, and take over when it leaves."""
        while True:
            try:
                return await supervisor.run(self.key, self.uid, until_outcome=until_outcome)
            except (Owned, Displaced) as hindrance:
                self._tell(str(hindrance))
            await asyncio.sleep(supervisor.record_seconds)
            self._tell_wait(await supervisor.store.read(self.key, self.uid))

    async def _supervisor(self, place: Site, record: Record) -> Supervisor:
        adapter = await place.adapter(record.scheduler, self.scheduler_conn_id)
        return Supervisor(place.store, adapter, secrets=secrets, drain_seconds=DRAIN_SECONDS, name=self.name)

    async def _end(self) -> None:
        """What a kill hook begins, through an outage of the store as well: nobody would call it again."""
        for pause in AGAIN_SECONDS:
            try:
                return await self._cancel_and_stop()
            except (DispatchError, OSError) as hindrance:
                self._tell(f"job {self.key} is asked about again: {hindrance}")
            await asyncio.sleep(pause)

    async def _cancel_and_stop(self) -> None:
        """Cancel the job if its task has ended, and stop it here rather than leave it to somebody else."""
        async with site(self.dispatch_conn_id) as place:
            if not await cancel_if_ended(place.store, self.key, self.uid, self.name, self.instance):
                return
            record = await place.store.read(self.key, self.uid)
            with suppress(TimeoutError):
                async with asyncio.timeout(STOPPING_SECONDS):
                    await self._supervise(await self._supervisor(place, record))

    def _left(self) -> float | None:
        return None if self.until is None else max(self.until - time.time(), 0.0)

    def _tell_wait(self, record: Record) -> None:
        """What the record says it waits for; what changes later is told by the supervisor that changes it."""
        if record.wait is not None:
            level = logging.WARNING if record.wait.reason in LOUD else logging.INFO
            self._tell(f"job {self.key} waits: {record.wait.text}", level)

    def _tell(self, text: str, level: int = logging.INFO) -> None:
        if text != self._told:
            self.log.log(level, text)
        self._told = text
