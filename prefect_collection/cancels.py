"""What a flow run's cancel means for its jobs: how a task learns of it, and hooks for where no task is left to learn.

One rule: a process that is told to end is not a flow run that was cancelled. An evicted pod and a cancelled run look
the same from inside, and only the flow run's state tells them apart; without its word a job is never cancelled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.flows import Flow
from prefect.logging.loggers import flow_run_logger

from dispatch_core.errors import DispatchError
from prefect_collection.attendance import Attendance
from prefect_collection.blocks import ClusterBlock, DispatchStore
from prefect_collection.connections import SERVER, connected, load
from prefect_collection.holding import Holder
from prefect_collection.keys import place_of
from prefect_collection.secret_sources import read_secret
from prefect_collection.showing import Showing

ASK_SECONDS = 5.0
"""How long a flow run's state is waited for, when a task has to end."""

HEARD_SECONDS = 10.0
"""How old an answer may be while the task waits."""

HEARD_OF = 1000
"""Flow runs whose answers are kept."""

_heard: dict[tuple[UUID, ...], tuple[float, str]] = {}


class Hook(Protocol):
    """What Prefect calls by keyword, with exactly these names."""

    __name__: str

    def __call__(self, flow: Flow[Any, Any], flow_run: FlowRun, state: State[Any]) -> Awaitable[None]: ...


async def cancelled_flow_run(flow_runs: Sequence[UUID]) -> str:
    """Which of these flow runs is cancelled or being cancelled, as a reason; "" for none. Raises TimeoutError."""
    if not flow_runs:
        return ""
    async with asyncio.timeout(ASK_SECONDS), get_client() as client:
        for id in flow_runs:
            flow_run = await client.read_flow_run(id)
            if flow_run.state is not None and (flow_run.state.is_cancelling() or flow_run.state.is_cancelled()):
                return f"the flow run {flow_run.name!r} was cancelled"
    return ""


async def heard_of_cancel(flow_runs: Sequence[UUID]) -> str:
    """As `cancelled_flow_run`, for those that ask again and again: an answer serves all for HEARD_SECONDS, and where
    Prefect does not answer, it is "", and they ask again."""
    known = tuple(flow_runs)
    at, reason = _heard.get(known, (-HEARD_SECONDS, ""))
    if reason or time.monotonic() - at < HEARD_SECONDS:
        return reason
    if len(_heard) > HEARD_OF:
        _heard.clear()
    _heard[known] = (time.monotonic(), "")  # the others need not ask meanwhile
    try:
        reason = await cancelled_flow_run(known)
    except Exception:  # noqa: BLE001 - whatever keeps Prefect from answering, it is no cancel
        return ""
    _heard[known] = (time.monotonic(), reason)
    return reason


def cancel_jobs_of(store: DispatchStore | str = SERVER, *, scheduler: ClusterBlock | str = "local") -> Hook:
    """A hook for `@flow(on_cancellation=[...])` that cancels every job of the flow run in this store, on this cluster.

    It is for a flow run whose process is gone, or is killed before its tasks have heard of the cancel. It runs in the
    process of the runner, after the flow's own has ended. Jobs with `across_runs=True` are left alone.
    """

    async def cancel_jobs(flow: Flow[Any, Any], flow_run: FlowRun, state: State[Any]) -> None:
        logger = flow_run_logger(flow_run, flow)
        place = await place_of(flow_run)
        async with connected(await load(store), scheduler, place.flow_runs) as connection:
            listed = await connection.store.jobs(settled=False, key_prefix=place.prefix)
            records = [
                job.record for job in listed if job.record is not None and job.record.scheduler == connection.scheduler
            ]
            holder = Holder(place.root, place.runs, None)
            attendance = Attendance(
                connection,
                name=holder.name,
                secrets=read_secret,
                tell=logger.info,
                warn=logger.warning,
                show=Showing(flow_run.id, None).show,
                claim=holder.claim_at_once,
            )
            reason = f"the flow run {flow_run.name!r} was cancelled"
            cancels = (attendance.cancel(record, reason) for record in records)
            for answer in await asyncio.gather(*cancels, return_exceptions=True):
                if isinstance(answer, DispatchError):
                    logger.error("a job may run on: %s", answer)

    return cancel_jobs


cancel_jobs = cancel_jobs_of()
"""The hook for jobs in the Prefect server's own database."""
