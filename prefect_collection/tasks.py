"""The task that runs a job: it makes the record or finds the one that is there, and supervises it until it is over.

One rule: the record decides. Whether the job is launched, launched again or given up is never decided here, nor by
Prefect: a task that is run again, in whatever process, attaches to the same job and spends nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Literal

import anyio
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.context import TaskRunContext
from prefect.exceptions import MissingContextError
from prefect.logging import get_logger, get_run_logger

from dispatch_core.client import Client
from dispatch_core.errors import BadInput, KeyTaken
from dispatch_core.jobfile import read_plan, read_spec
from dispatch_core.plan import Plan, Spec
from dispatch_core.record import Record
from prefect_collection.attendance import Attendance
from prefect_collection.blocks import DispatchStore, SlurmCluster
from prefect_collection.cancels import cancelled_flow_run, heard_of_cancel
from prefect_collection.connections import SERVER, Connection, connected, load
from prefect_collection.keys import here, in_use
from prefect_collection.results import JobResult, result_of
from prefect_collection.retries import is_of_retries, may_be_repeated, plan_of
from prefect_collection.secret_sources import read_secret
from prefect_collection.showing import Showing

SETTLE_SECONDS = 30.0


@task(
    name="dispatch_job",
    task_run_name="{key}",
    tags=["dispatch"],
    cache_policy=NO_CACHE,  # the record answers at once; a cache would also answer for another job
    retry_condition_fn=may_be_repeated,
)
async def dispatch_job(
    key: str,
    command: Sequence[str],
    *,
    time_limit: str | float | None = None,
    environment: Mapping[str, str] | None = None,
    secret_environment: Mapping[str, Mapping[str, str]] | None = None,
    working_directory: str | None = None,
    spec: Mapping[str, Any] | None = None,
    plan: Mapping[str, Any] | None = None,
    scheduler: SlurmCluster | str = "local",
    store: DispatchStore | str = SERVER,
    across_runs: bool = False,
    on_timeout: Literal["leave", "cancel"] = "leave",
    settle_seconds: float = SETTLE_SECONDS,
) -> JobResult:
    """Run one long job, and wait until it is over. Await it in an async flow; several with `asyncio.gather`.

    `key` names this step within its flow run: when the flow run is retried, or run again after a crash, the step finds
    its job by it. With `across_runs` it is the job's whole key, shared by every flow run that gives it: a job that is
    settled answers at once, and each of these flow runs cancels it for all.

    `command`, `time_limit` ("2h", or seconds), `environment`, `secret_environment` and `working_directory` are fields
    of a job file's `spec`, and `spec` takes the others. `plan` is a job file's `plan`; without one, the `retries` and
    `retry_delay_seconds` of the task become rules that resubmit the job when it fails.

    `scheduler`: "local", the machine that the flow runs on; a name in its clusters file; a `SlurmCluster` block, or the
    name of a saved one. The record calls the cluster by its name, so the clusters file of a `dispatch supervise` has to
    as well.

    `store`: a block, the name of a saved one, or "server", the Prefect server's own database.

    `on_timeout`: what happens to the job at the `timeout_seconds` of the task or its flow. It is left running, for a
    retry to attach to, or cancelled.

    `settle_seconds`: how long after the outcome it waits for the clean-up; `dispatch supervise` does what is left. No
    job on Slurm settles before its last submit can no longer land, which is some 6 minutes where slurm.conf sets no
    `ttl`.

    A cancelled flow run cancels its jobs; a process that only has to end leaves them running. An awaited task is told
    at once. One that was submitted (`.submit()`, `.map()`) asks every 10 to 15 s, and has until the runner kills its
    process, 30 s after the cancel: the hook `prefect_collection.cancels.cancel_jobs` on its flow is for where that is
    too short, or the process was gone before.

    A flow run that is retried finds its jobs as they are: one that failed stays failed. Start a new flow run for
    another launch.

    Raises JobFailed and JobCancelled, with the result; BadInput and KeyTaken for a job that cannot be accepted, before
    anything is written; StoreUnavailable. Prefect retries none of the first four.
    """
    limit = anyio.current_effective_deadline()
    context = TaskRunContext.get()
    given = {
        "command": list(command) if not isinstance(command, str) else command,
        "time_limit": time_limit,
        "environment": environment,
        "secret_environment": secret_environment,
        "working_directory": working_directory,
    }
    wanted = read_spec({**(spec or {}), **{name: value for name, value in given.items() if value is not None}})
    rules = plan_of(context.task if context is not None else None) if plan is None else read_plan(plan)
    place = await here()
    if place is None and not across_runs:
        raise BadInput(f"job {key!r}: there is no flow run to make its key from; call the task in a flow")
    flow_runs = place.flow_runs if place is not None else ()
    whole_key = key if across_runs or place is None else place.key(key)
    # Of two flow runs that share a job, one supervises it and the other waits; one flow run takes over from itself.
    name = f"prefect flow run {place.root}" if place is not None else "prefect"
    if across_runs and context is not None:
        name = f"prefect task run {context.task_run.id}"
    logger = _logger()

    async def must_cancel() -> str:
        if on_timeout == "cancel" and anyio.current_time() >= limit:
            return "it ran into its time limit in Prefect"
        return await cancelled_flow_run(flow_runs)

    async with connected(await load(store), scheduler, flow_runs) as connection:
        with nullcontext() if across_runs else in_use(whole_key):
            attendance = Attendance(
                connection,
                name=name,
                secrets=read_secret,
                tell=logger.info,
                warn=logger.warning,
                show=Showing.here().show,
            )
            record = await attendance.until_settled(
                _submitted(connection, name, whole_key, wanted, rules),
                settle_seconds=settle_seconds,
                heard_of_cancel=lambda: heard_of_cancel(flow_runs),
                must_cancel=must_cancel,
            )
    return result_of(record)


async def _submitted(connection: Connection, who: str, key: str, wanted: Spec, plan: Plan) -> Record:
    """The job's record, made or found. A job keeps the retries that it was submitted with."""
    try:
        return await Client(connection.store, who=who).submit(
            key, wanted, plan, scheduler=connection.scheduler, adapter=connection.adapter
        )
    except KeyTaken:
        found = await connection.store.read(key)
        same = (found.spec, found.scheduler) == (wanted, connection.scheduler)
        if same and is_of_retries(plan) and is_of_retries(found.plan):
            return found
        raise


def _logger() -> logging.Logger | logging.LoggerAdapter[Any]:
    """The run's own logger, whose lines the Prefect server keeps; outside a run, the collection's."""
    try:
        return get_run_logger()
    except MissingContextError:
        return get_logger("prefect_collection")
