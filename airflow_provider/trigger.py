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

from airflow_provider import clusters, detaching, hook
from airflow_provider.ending import cancel_if_ended
from airflow_provider.hook import DEFAULT
from airflow_provider.secrets import secrets
from airflow_provider.sites import Site, site
from airflow_provider.tail import tail
from airflow_provider.tasks import Instance
from airflow_provider.telling import Telling
from dispatch_core.client import Client
from dispatch_core.errors import DispatchError, Displaced, NotFound, Owned
from dispatch_core.record import Record
from dispatch_core.stores.contract import Store
from dispatch_core.supervisor import Supervisor

OUTCOME, SETTLED = "outcome", "settled"
"""What a task may wait for."""
CANCEL, DETACH = "cancel", "detach"
"""What may become of a job whose task waits no longer."""
LOG_LINES = 50

DRAIN_SECONDS = 3.0
"""A triggerer that ends kills its triggers after 10 s; a step in flight, and giving the lease up, have 3 s each."""

AGAIN_SECONDS = (5.0, 10.0, 20.0, 40.0, 60.0)
"""How long to wait for what did not answer, once, twice, ..."""

KILL_SECONDS = 20.0
"""How long `on_kill` is waited for; Airflow would end it at 30. What it began goes on."""

STOPPING_SECONDS = 600.0
"""How long the job of a task that has ended is seen to its end here; then it is the janitor's."""

_ending: set[asyncio.Task[None]] = set()
"""What goes on without a trigger, kept from being forgotten: what kill hooks began, and jobs with an outcome that are
not settled. The triggerer's end ends it."""


class DispatchTrigger(BaseTrigger):
    """Supervises the job with this key and uid until it has an outcome, or is settled, as `wait_for` says.

    `scheduler_conn_id` is the connection that its cluster is reached by; None: the clusters file has it. `instance` is
    the task instance that deferred: dag_id, run_id, task_id, map_index, and its uuid as ti_id. `until`, in seconds
    since 1970: when the task stops waiting; None: never. A job without an outcome is cancelled then, or left to run,
    as `on_timeout` says. `log_lines`: as much of the end of the job's log is told. The event is {"key", "uid"}, with
    "problem" where the record is gone.
    """

    def __init__(
        self,
        *,
        key: str,
        uid: str,
        dispatch_conn_id: str = DEFAULT,
        scheduler_conn_id: str | None = None,
        instance: dict[str, Any] | None = None,
        wait_for: str = SETTLED,
        until: float | None = None,
        on_timeout: str = CANCEL,
        log_lines: int = LOG_LINES,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.key = key
        self.uid = uid
        self.dispatch_conn_id = dispatch_conn_id
        self.scheduler_conn_id = scheduler_conn_id
        self.instance = dict(instance or {})
        self.wait_for = wait_for
        self.until = until
        self.on_timeout = on_timeout
        self.log_lines = log_lines
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
                "wait_for": self.wait_for,
                "until": self.until,
                "on_timeout": self.on_timeout,
                "log_lines": self.log_lines,
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
        work = self._remember(asyncio.create_task(self._end()))
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(work), KILL_SECONDS)

    async def _attend(self, place: Site, record: Record) -> None:
        """See the job to its outcome, then to its end, as far as is asked for."""
        self._tell(f"attends to job {self.key}, record {self.uid}, at revision {record.revision}")
        store = Telling.of(place.store, record, self.name, self.log)
        supervisor = await self._supervisor(place, record, store)
        try:
            async with asyncio.timeout(self._left()) as bound:
                await self._see_through(supervisor)
        except TimeoutError:
            if not bound.expired():
                raise
            await self._stop_waiting(place, supervisor)
        record = await place.store.read(self.key, self.uid)
        if record.outcome is not None and not record.settled:
            self._go_on_without_waiting()

    async def _see_through(self, supervisor: Supervisor) -> None:
        record = await self._supervise(supervisor, until_outcome=True)
        for line in await tail(supervisor.adapter, record, self.log_lines):
            self.log.info("%s", line)
        if self.wait_for == SETTLED:
            await self._supervise(supervisor)

    async def _stop_waiting(self, place: Site, supervisor: Supervisor) -> None:
        """The bound is over: a job that has an outcome keeps it, any other is cancelled, or left to run."""
        record = await place.store.read(self.key, self.uid)
        if record.outcome is not None:
            self._tell(f"job {self.key} has its outcome, and is not waited for until it is settled")
        elif self.on_timeout == DETACH:
            await self._leave(place, record)
        else:
            await Client(place.store, self.name).cancel(
                self.key, uid=self.uid, reason="the timeout of its task is over"
            )
            await self._see_through(supervisor)

    async def _leave(self, place: Site, record: Record) -> None:
        """Say for the task that it has left the job running; a trigger that was made by hand speaks for none."""
        instance, ti_id = Instance.of(self.instance), str(self.instance.get("ti_id", ""))
        if instance is not None and not await detaching.leave(place.store, record, instance, ti_id):
            return self._tell(f"job {self.key} has its outcome, or a later try of its task waits for it")
        self._tell(
            f"job {self.key} goes on and is not waited for any more: it is unattended until `dispatch supervise` or"
            " the janitor's task takes it on",
            logging.WARNING,
        )

    def _go_on_without_waiting(self) -> None:
        """See to a job beside the trigger, which has to end, for a while: nobody else may do it."""

        async def work() -> None:
            with suppress(DispatchError, OSError, TimeoutError):
                async with site(self.dispatch_conn_id) as place, asyncio.timeout(STOPPING_SECONDS):
                    await self._supervise(await self._supervisor(place, await place.store.read(self.key, self.uid)))

        self._remember(asyncio.create_task(work()))

    async def _supervise(self, supervisor: Supervisor, *, until_outcome: bool = False) -> Record:
        """Run the supervisor; where another has the job, follow, and take over when it leaves."""
        while True:
            try:
                return await supervisor.run(self.key, self.uid, until_outcome=until_outcome)
            except (Owned, Displaced) as hindrance:
                self._tell(str(hindrance))
            await asyncio.sleep(supervisor.record_seconds)
            record = await supervisor.store.read(self.key, self.uid)
            if record.settled or (until_outcome and record.outcome is not None):
                return record

    async def _supervisor(self, place: Site, record: Record, store: Store | None = None) -> Supervisor:
        adapter = await place.adapter(record.scheduler, self.scheduler_conn_id)
        return Supervisor(store or place.store, adapter, secrets=secrets, drain_seconds=DRAIN_SECONDS, name=self.name)

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

    def _remember(self, work: asyncio.Task[None]) -> asyncio.Task[None]:
        _ending.add(work)
        work.add_done_callback(_ending.discard)
        return work

    def _tell(self, text: str, level: int = logging.INFO) -> None:
        if text != self._told:
            self.log.log(level, text)
        self._told = text
