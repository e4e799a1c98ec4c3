"""The maintenance task: finds kills that were lost, and takes on the jobs that nobody supervises.

One rule: it may run anywhere, beside anything and any number of times; it cancels nothing but what `lost` gives a
reason for, and it supervises as everybody else does. It holds a worker for as long as it takes jobs on, which is
bounded: what is left then runs on, and the next round takes it on again. `dispatch supervise` beside Airflow does the
second half for good.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk import BaseOperator

from airflow_provider import lost
from airflow_provider.clusters import acluster
from airflow_provider.hook import DEFAULT, settings
from airflow_provider.secrets import secrets
from dispatch_core.adapters.contract import Adapter
from dispatch_core.clusters import LocalCluster
from dispatch_core.errors import DispatchError
from dispatch_core.janitor import Janitor
from dispatch_core.places import clusters, open_cluster
from dispatch_core.reasons import FOR_A_PERSON
from dispatch_core.record import Record
from dispatch_core.status import is_unattended
from dispatch_core.stores.contract import Listed, Store

if TYPE_CHECKING:
    from airflow.sdk import Context

ADOPT_SECONDS = 240.0
LOOKING_SECONDS = 5.0
"""How often it looks whether a job that it takes on waits for a person."""

T = TypeVar("T")


class DispatchJanitorOperator(BaseOperator):
    """Cancels the jobs of tasks that have ended without a word to dispatch, then takes on what nobody supervises.

    :param adopt_seconds: for how long, at most, it supervises such jobs; 0: it only finds lost kills. It ends earlier
        when every one is settled, has somebody else, or waits for a person.
    :param local: whether to take on jobs of local schedulers too. Only where this worker and the triggerer share the
        host: on another one the spool is another one, and nothing of the jobs would be found in it.
    :param scheduler_conn_ids: the connections of type `slurm_ssh` or `kubernetes` whose clusters are served, beside the
        clusters file.
    :param dispatch_conn_id: the connection that says where the records are.

    The task returns {"cancelled", "unattended", "unsettled"}: keys of the jobs that it cancelled, and of those that
    nobody supervises, or that are not settled, when it ends.
    """

    template_fields: Sequence[str] = ("dispatch_conn_id",)
    ui_color = "#d6e4f0"

    def __init__(
        self,
        *,
        adopt_seconds: float = ADOPT_SECONDS,
        local: bool = False,
        scheduler_conn_ids: Sequence[str] = (),
        dispatch_conn_id: str = DEFAULT,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.adopt_seconds = adopt_seconds
        self.local = local
        self.scheduler_conn_ids = tuple(scheduler_conn_ids)
        self.dispatch_conn_id = dispatch_conn_id

    def execute(self, context: Context) -> dict[str, list[str]]:
        """Look once, cancel what is to be cancelled, then supervise for a while."""
        who = f"airflow janitor {context['ti'].id}"
        cancelled = self._cancel_lost(who)
        if self.adopt_seconds > 0:
            asyncio.run(self._adopt(cancelled))
        return {
            "cancelled": [record.key for record in cancelled],
            **asyncio.run(self._in_store(_what_is_left)),
        }

    def _cancel_lost(self, who: str) -> list[Record]:
        jobs = asyncio.run(self._in_store(lost.open_jobs))
        wanted = lost.reasons(jobs, lost.ask_airflow(jobs))
        self.log.info("%d jobs of tasks have no outcome; nobody wants %d of them", len(jobs), len(wanted))

        async def cancel(store: Store) -> list[Record]:
            return [job.record for job, reason in wanted if await lost.cancel(store, job.record, who, reason)]

        return asyncio.run(self._in_store(cancel))

    async def _adopt(self, cancelled: list[Record]) -> None:
        """Supervise what nobody does, until nothing is left or the time is over. What was cancelled here is waited for:
        a triggerer that was lost with it still has its lease."""
        try:
            async with asyncio.timeout(self.adopt_seconds) as bound, self._janitor(cancelled) as janitor:
                mine = frozenset(record.uid for record in cancelled if record.scheduler in janitor.adapters)
                await janitor.run(once=True)
                while any(map(_is_under_way, await janitor.store.jobs(settled=False, uids=mine))):
                    await asyncio.sleep(LOOKING_SECONDS)
                    await janitor.run(once=True)
        except TimeoutError:
            if not bound.expired():
                raise
            self.log.info("the time is over; what is left runs on, and the next round takes it on")

    @asynccontextmanager
    async def _janitor(self, cancelled: list[Record]) -> AsyncIterator[Janitor]:
        found = settings(self.dispatch_conn_id)
        store = found.open_store()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(store.close)
            adapters: dict[str, Adapter] = {}
            for name in await self._schedulers(store, cancelled):
                try:
                    conn_id = name if name in self.scheduler_conn_ids else None
                    cluster = await acluster(name, conn_id, found.spool)
                    if isinstance(cluster, LocalCluster) and not self.local:
                        self.log.warning("jobs on %s are left to their triggerers: local=True takes them on", name)
                        continue
                    adapter = await asyncio.to_thread(open_cluster, cluster)
                except DispatchError as error:
                    self.log.warning("cluster %s cannot be opened, and its jobs are left alone: %s", name, error)
                    continue
                stack.push_async_callback(adapter.close)
                adapters[name] = adapter
            yield Janitor(store, adapters, secrets=secrets, period_seconds=LOOKING_SECONDS)

    async def _schedulers(self, store: Store, cancelled: list[Record]) -> list[str]:
        """The clusters to serve: those that are defined here, and those of what is to be supervised."""
        unattended = [job.record for job in await store.jobs(settled=False) if is_unattended(job)]
        named = {record.scheduler for record in (*cancelled, *unattended) if record is not None}
        return sorted({*clusters().named, *self.scheduler_conn_ids, *named})

    async def _in_store(self, work: Callable[[Store], Awaitable[T]]) -> T:
        store = settings(self.dispatch_conn_id).open_store()
        try:
            return await work(store)
        finally:
            await store.close()


def _is_under_way(job: Listed) -> bool:
    """Whether it will be settled without a person."""
    wait = None if job.record is None else job.record.wait
    return job.record is not None and (wait is None or wait.reason not in FOR_A_PERSON)


async def _what_is_left(store: Store) -> dict[str, list[str]]:
    jobs = await store.jobs(settled=False)
    return {
        "unattended": sorted(job.key for job in jobs if is_unattended(job)),
        "unsettled": sorted(job.key for job in jobs),
    }
