"""What a step of a flow run asks of its job, and how that is done: submit it, wait for it, cancel it.

One rule: the record decides. Whether the job is launched, launched again or given up is never decided here, nor by
Prefect: whoever asks again, in whatever process, comes to the same job and spends nothing. Tasks and blocks ask alike.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from prefect.context import TaskRunContext
from prefect.exceptions import MissingContextError
from prefect.logging import get_logger, get_run_logger

from dispatch_core.client import Client
from dispatch_core.errors import BadInput
from dispatch_core.plan import Plan, Spec
from dispatch_core.record import Record
from dispatch_core.surroundings import fresh_id
from prefect_collection.attendance import Attendance
from prefect_collection.blocks import ClusterBlock, DispatchStore
from prefect_collection.cancels import cancelled_flow_run, heard_of_cancel
from prefect_collection.connections import Connection, connected, load, stored
from prefect_collection.holding import Holder
from prefect_collection.keys import Place, here, in_use
from prefect_collection.pairs import TimeLimit
from prefect_collection.reruns import OnFlowRetry, made_or_found, which_run
from prefect_collection.results import CancelReceipt, JobResult, Submitted, receipt_of, result_of
from prefect_collection.secret_sources import read_secret
from prefect_collection.showing import Showing

OnTimeout = Literal["detach", "cancel"]

SETTLE_SECONDS = 30.0
"""How long after its outcome a job's clean-up is waited for."""

LAUNCH_SECONDS = 60.0
"""How long whoever submits a job supervises it, until its first run is let go."""


@dataclass(frozen=True)
class Wanted:
    """The job that a step asks for."""

    spec: Spec
    plan: Plan
    scheduler: ClusterBlock | str
    on_flow_retry: OnFlowRetry = "reattach"


@dataclass(frozen=True)
class Asker:
    """Who asks for which job, and from where."""

    key: str
    """The job's whole key."""
    uid: str | None
    """None: whichever record is the newest under that key."""
    name: str
    """Who asks, as the job's history says; of those that share a job, one supervises it under this name."""
    holder: Holder | None
    """Who supervises the job of a step; None: one that others share, or outside any flow run."""
    place: Place | None
    store: DispatchStore
    shared: bool
    """Several flow runs may ask for this job at once."""

    @classmethod
    async def of(cls, job: Submitted | str, store: DispatchStore | str, *, across_runs: bool) -> Asker:
        """Who asks, from where this is called. Raises BadInput for a step outside any flow run."""
        place, context = await here(), TaskRunContext.get()
        if isinstance(job, Submitted):
            key, uid = job.key, job.uid
            shared = place is None or not key.startswith(place.prefix)
        elif place is None and not across_runs:
            raise BadInput(
                f"job {job!r}: there is no flow run to make its key from; ask for it in a flow, or give it a key of "
                "its own with across_runs=True"
            )
        else:
            key, uid, shared = job if across_runs or place is None else place.key(job), None, across_runs
        holder = None
        if place is not None and not shared:
            name = f"prefect flow run {place.root}"
            task_run = context.task_run.id if context is not None else None
            holder = Holder(place.root, place.runs, task_run) if place.runs else None
        elif context is not None:
            name = f"prefect task run {context.task_run.id}"
        else:
            name = f"prefect {fresh_id()[:8]}"
        return cls(key=key, uid=uid, name=name, holder=holder, place=place, store=await load(store), shared=shared)

    @property
    def flow_runs(self) -> tuple[Any, ...]:
        return self.place.flow_runs if self.place is not None else ()

    def alone(self) -> AbstractContextManager[None]:
        """Holds the key against another step of this program. Raises KeyTaken."""
        return nullcontext() if self.shared else in_use(self.key)

    def attendance(self, connection: Connection) -> Attendance:
        logger = run_logger()
        show = Showing.here().show
        return Attendance(
            connection,
            name=self.name if self.holder is None else self.holder.name,
            secrets=read_secret,
            tell=logger.info,
            warn=logger.warning,
            show=show,
            claim=None if self.holder is None else self.holder.claim,
        )

    def must_cancel(self, on_timeout: OnTimeout) -> Callable[[], Awaitable[str]]:
        """What is asked when the wait is ended early; made where the wait begins."""
        limit = TimeLimit()

        async def must_cancel() -> str:
            if on_timeout == "cancel" and limit.is_over():
                return "it ran into its time limit in Prefect"
            return await cancelled_flow_run(self.flow_runs)

        return must_cancel


async def run(asker: Asker, wanted: Wanted, *, on_timeout: OnTimeout, settle_seconds: float) -> JobResult:
    """Submit the job, or find it, and wait until it is over. Raises JobFailed, JobCancelled, BadInput, KeyTaken,
    StoreUnavailable."""
    must_cancel = asker.must_cancel(on_timeout)
    async with connected(asker.store, wanted.scheduler, asker.flow_runs) as connection:
        with asker.alone():
            record = await asker.attendance(connection).until_settled(
                _submitted(asker, wanted, connection),
                settle_seconds=settle_seconds,
                heard_of_cancel=lambda: heard_of_cancel(asker.flow_runs),
                must_cancel=must_cancel,
            )
    return result_of(record)


async def submit(asker: Asker, wanted: Wanted, *, launch_seconds: float) -> Submitted:
    """Submit the job, or find it, and supervise it until its first run is let go, for `launch_seconds` at most.

    Raises BadInput, KeyTaken, StoreUnavailable.
    """
    async with connected(asker.store, wanted.scheduler, asker.flow_runs) as connection:
        with asker.alone():
            record = await _submitted(asker, wanted, connection)
            if launch_seconds > 0:
                await asker.attendance(connection).until_launched(record, launch_seconds)
    return Submitted(key=record.key, uid=record.uid, scheduler=record.scheduler)


async def wait(
    asker: Asker, scheduler: ClusterBlock | str | None, *, on_timeout: OnTimeout, settle_seconds: float
) -> JobResult:
    """Wait until a job that was submitted is over, and supervise it meanwhile. Raises NotFound, and as `run`."""
    must_cancel = asker.must_cancel(on_timeout)
    record = await find(asker)
    async with connected(asker.store, scheduler or record.scheduler, asker.flow_runs) as connection:
        _must_be_its_cluster(record, connection)
        with asker.alone():
            record = await asker.attendance(connection).until_settled(
                _at_once(record),
                settle_seconds=settle_seconds,
                heard_of_cancel=lambda: heard_of_cancel(asker.flow_runs),
                must_cancel=must_cancel,
            )
    return result_of(record)


async def cancel(asker: Asker, scheduler: ClusterBlock | str | None, *, reason: str) -> CancelReceipt:
    """Commit a job's cancel, then see to its clean-up for a while. Raises NotFound, StoreUnavailable; BadInput, once
    the cancel is committed, for a cluster that is not known here."""
    async with stored(asker.store, asker.flow_runs) as store:
        client = Client(store, who=asker.name)
        record = await store.read(asker.key, asker.uid)
        receipt = await client.cancel(record.key, uid=record.uid, reason=reason)
        if not receipt.clean:
            async with connected(asker.store, scheduler or record.scheduler, asker.flow_runs) as connection:
                _must_be_its_cluster(record, connection)
                await asker.attendance(connection).cancel(record, reason)
            receipt = await client.cancel(record.key, uid=record.uid, reason=reason)
    return receipt_of(receipt)


async def find(asker: Asker) -> Record:
    """The job's record as it is now. Raises NotFound."""
    async with stored(asker.store, asker.flow_runs) as store:
        return await store.read(asker.key, asker.uid)


async def _submitted(asker: Asker, wanted: Wanted, connection: Connection) -> Record:
    root = asker.place.root if asker.place is not None else None
    run = await which_run(root, asker.name) if wanted.on_flow_retry == "new_attempt" else None
    return await made_or_found(
        connection,
        asker.attendance(connection).attend,
        asker.key,
        wanted.spec,
        wanted.plan,
        name=asker.name,
        run=run,
    )


async def _at_once(record: Record) -> Record:
    return record


def _must_be_its_cluster(record: Record, connection: Connection) -> None:
    if connection.scheduler != record.scheduler:
        raise BadInput(
            f"job {record.key!r} is on {record.scheduler!r}, and {connection.scheduler!r} was given; nothing was done "
            "there"
        )


def run_logger() -> logging.Logger | logging.LoggerAdapter[Any]:
    """The run's own logger, whose lines the Prefect server keeps; outside a run, the collection's."""
    try:
        return get_run_logger()
    except MissingContextError:
        return get_logger("prefect_collection")
