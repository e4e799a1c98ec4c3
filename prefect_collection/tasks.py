"""The tasks: run a job and wait for it, or submit it, wait for it and cancel it apart.

One rule: a task is how a flow asks, and holds nothing. Each has two names: `dispatch_job` is awaited in an async flow
and simply called in one that is not; `adispatch_job` is always awaited. What they do is in the room `errands`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prefect.cache_policies import NO_CACHE
from prefect.context import TaskRunContext
from prefect.tasks import Task

from dispatch_core.jobfile import read_plan, read_spec
from dispatch_core.plan import Plan, Spec
from prefect_collection import errands
from prefect_collection.blocks import ClusterBlock, DispatchStore
from prefect_collection.connections import SERVER
from prefect_collection.errands import LAUNCH_SECONDS, SETTLE_SECONDS, Asker, OnTimeout, Wanted
from prefect_collection.pairs import PairedTask
from prefect_collection.reruns import OnFlowRetry
from prefect_collection.results import CancelReceipt, JobResult, Submitted
from prefect_collection.retries import may_be_repeated, plan_of


def _tasks(name: str, run_name: str) -> Callable[[Callable[..., Any]], tuple[PairedTask[..., Any], Task[..., Any]]]:
    """Makes of a coroutine function the task with both uses, and the one that is always awaited."""
    options: dict[str, Any] = {
        "name": name,
        "task_run_name": run_name,
        "tags": ["dispatch"],
        "cache_policy": NO_CACHE,  # the record answers at once; a cache would also answer for another job
        "retry_condition_fn": may_be_repeated,
    }
    return lambda work: (PairedTask(work, **options), Task(work, **options))


async def _dispatch_job(
    key: str,
    command: Sequence[str],
    *,
    time_limit: str | float | None = None,
    environment: Mapping[str, str] | None = None,
    secret_environment: Mapping[str, Mapping[str, str]] | None = None,
    working_directory: str | None = None,
    spec: Mapping[str, Any] | None = None,
    plan: Mapping[str, Any] | None = None,
    scheduler: ClusterBlock | str = "local",
    store: DispatchStore | str = SERVER,
    across_runs: bool = False,
    on_timeout: OnTimeout = "detach",
    on_flow_retry: OnFlowRetry = "reattach",
    settle_seconds: float = SETTLE_SECONDS,
) -> JobResult:
    """Run one long job, and wait until it is over. In an async flow await it, several with `asyncio.gather`.

    `key` names this step within its flow run: when the flow run is retried, or run again after a crash, the step finds
    its job by it. Two steps of one run cannot have the same at once: the second is refused, in another process once it
    is certain that the first is alive, which takes most of a minute. A rerun takes the job over at once. With
    `across_runs` it is the job's whole key, shared by every flow run that gives it: a job that is settled answers at
    once, and each of these flow runs cancels it for all.

    `command`, `time_limit` ("2h", or seconds), `environment`, `secret_environment` and `working_directory` are fields
    of a job file's `spec`, and `spec` takes the others. `plan` is a job file's `plan`; without one, the `retries` and
    `retry_delay_seconds` of the task become rules that resubmit the job when it fails.

    `scheduler`: "local", the machine that the flow runs on; a name in its clusters file; a `SlurmCluster` or
    `KubernetesCluster` block, or the name of a saved one. The record calls the cluster by its name, so the clusters
    file of a `dispatch supervise` has to as well.

    `store`: a block, the name of a saved one, or "server", the Prefect server's own database.

    `on_timeout`: what happens to the job at the `timeout_seconds` of the task or its flow. With "detach" it is left
    running, for a retry to attach to; with "cancel" it is cancelled. A task that is not async, and is not called in
    the main thread, hears of it within a second.

    `on_flow_retry`: what a flow run that is retried does about a job of one of its earlier runs that failed or was
    cancelled. With "reattach" the job is what it is, and the step fails again; with "new_attempt" a new job under the
    same key is launched, once the old one is settled. One that succeeded, or is under way, is found in both cases.

    `settle_seconds`: how long after the outcome it waits for the clean-up; `dispatch supervise` does what is left. No
    job on Slurm settles before its last submit can no longer land, which is some 6 minutes where slurm.conf sets no
    `ttl`.

    A cancelled flow run cancels its jobs; a process that only has to end leaves them running. An awaited task is told
    at once. One that was submitted (`.submit()`, `.map()`) asks every 10 to 15 s, and has until the runner kills its
    process, 30 s after the cancel: the hook `prefect_collection.cancels.cancel_jobs` on its flow is for where that is
    too short, or the process was gone before.

    Raises JobFailed and JobCancelled, with the result; BadInput and KeyTaken for a job that cannot be accepted, before
    anything is written; StoreUnavailable. Prefect retries none of the first four.
    """
    asker = await Asker.of(key, store, across_runs=across_runs)
    wanted = Wanted(
        spec=spec_of(command, time_limit, environment, secret_environment, working_directory, spec),
        plan=_plan(plan),
        scheduler=scheduler,
        on_flow_retry=on_flow_retry,
    )
    return await errands.run(asker, wanted, on_timeout=on_timeout, settle_seconds=settle_seconds)


async def _submit_job(
    key: str,
    command: Sequence[str],
    *,
    time_limit: str | float | None = None,
    environment: Mapping[str, str] | None = None,
    secret_environment: Mapping[str, Mapping[str, str]] | None = None,
    working_directory: str | None = None,
    spec: Mapping[str, Any] | None = None,
    plan: Mapping[str, Any] | None = None,
    scheduler: ClusterBlock | str = "local",
    store: DispatchStore | str = SERVER,
    across_runs: bool = False,
    on_flow_retry: OnFlowRetry = "reattach",
    launch_seconds: float = LAUNCH_SECONDS,
) -> Submitted:
    """Submit one long job, or find the one that is there, and return what `wait_for_job` and `cancel_job` take.

    It returns once the scheduler was told to let the job's first run go, and after `launch_seconds` in any case; with
    0, once the record is written. From then on nobody supervises the job until it is waited for, or a `dispatch
    supervise` does. The rest is as in `dispatch_job`.
    """
    asker = await Asker.of(key, store, across_runs=across_runs)
    wanted = Wanted(
        spec=spec_of(command, time_limit, environment, secret_environment, working_directory, spec),
        plan=_plan(plan),
        scheduler=scheduler,
        on_flow_retry=on_flow_retry,
    )
    return await errands.submit(asker, wanted, launch_seconds=launch_seconds)


async def _wait_for_job(
    job: Submitted | str,
    *,
    scheduler: ClusterBlock | str | None = None,
    store: DispatchStore | str = SERVER,
    across_runs: bool = False,
    on_timeout: OnTimeout = "detach",
    settle_seconds: float = SETTLE_SECONDS,
) -> JobResult:
    """Supervise a job that was submitted until it is over.

    `job`: what `submit_job` returned, or the key that a step of this flow run gave; with `across_runs`, a whole key.
    `scheduler`: as in `dispatch_job`; without it, the name in the record. Raises NotFound where there is no such job;
    the rest is as in `dispatch_job`.
    """
    asker = await Asker.of(job, store, across_runs=across_runs)
    return await errands.wait(asker, scheduler, on_timeout=on_timeout, settle_seconds=settle_seconds)


async def _cancel_job(
    job: Submitted | str,
    *,
    reason: str = "",
    scheduler: ClusterBlock | str | None = None,
    store: DispatchStore | str = SERVER,
    across_runs: bool = False,
) -> CancelReceipt:
    """Cancel a job: first in its record, which is final, then on its scheduler, which is waited for some seconds.

    What the receipt still waits for is done by whoever supervises the job, or by `dispatch supervise`. A job that has
    an outcome keeps it. The rest is as in `wait_for_job`.
    """
    asker = await Asker.of(job, store, across_runs=across_runs)
    return await errands.cancel(asker, scheduler, reason=reason)


dispatch_job, adispatch_job = _tasks("dispatch_job", "{key}")(_dispatch_job)
submit_job, asubmit_job = _tasks("submit_job", "submit {key}")(_submit_job)
wait_for_job, await_for_job = _tasks("wait_for_job", "wait for {job}")(_wait_for_job)
cancel_job, acancel_job = _tasks("cancel_job", "cancel {job}")(_cancel_job)


def spec_of(
    command: Sequence[str],
    time_limit: str | float | None,
    environment: Mapping[str, str] | None,
    secret_environment: Mapping[str, Mapping[str, str]] | None,
    working_directory: str | None,
    more: Mapping[str, Any] | None,
) -> Spec:
    """A job file's `spec` of what a task was given. Raises BadInput."""
    given = {
        "command": list(command) if not isinstance(command, str) else command,
        "time_limit": time_limit,
        "environment": environment,
        "secret_environment": secret_environment,
        "working_directory": working_directory,
    }
    return read_spec({**(more or {}), **{name: value for name, value in given.items() if value is not None}})


def _plan(plan: Mapping[str, Any] | None) -> Plan:
    if plan is not None:
        return read_plan(plan)
    context = TaskRunContext.get()
    return plan_of(context.task if context is not None else None)
