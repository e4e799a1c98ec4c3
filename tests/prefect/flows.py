"""What the tests let a real Prefect runner serve; run with the engine's Python. It ends with its standard input."""

import asyncio
import os
import sys
import threading
from pathlib import Path

from prefect import flow, serve

from prefect_collection import suspending as suspending_room
from prefect_collection.cancels import cancel_jobs
from prefect_collection.results import JobResult
from prefect_collection.suspending import wait_suspended
from prefect_collection.tasks import dispatch_job, submit_job

WAITS = 'echo "began $$" >> "$0/lines"; while [ ! -e "$0/go" ]; do sleep 0.2; done; echo ended >> "$0/lines"'


def tell_who_runs(folder: str) -> str:
    with (Path(folder) / "flow_pids").open("a") as file:
        file.write(f"{os.getpid()}\n")
    return folder


@flow
async def training(folder: str) -> JobResult:
    """One job that ends once `go` is there."""
    return await dispatch_job(key="train", command=["sh", "-c", WAITS, tell_who_runs(folder)])


@flow
async def nesting(folder: str) -> JobResult:
    """The same job, in a subflow."""
    return await training(folder)


@flow
async def failing(folder: str) -> None:
    """A job that fails, in a task with retries and without a plan."""
    command = ["sh", "-c", 'echo "$DISPATCH_SUBMISSION" >> "$0/lines"; exit 3', tell_who_runs(folder)]
    await dispatch_job.with_options(retries=2, retry_delay_seconds=1)(key="train", command=command)


@flow(on_cancellation=[cancel_jobs])
async def submitting(folder: str) -> None:
    """The same job in a task that no cancel reaches."""
    future = dispatch_job.submit(key="train", command=["sh", "-c", WAITS, tell_who_runs(folder)])
    await asyncio.to_thread(future.result)


@flow
def calling(folder: str) -> JobResult:
    """The same job, in a flow that is not async."""
    return dispatch_job(key="train", command=["sh", "-c", WAITS, tell_who_runs(folder)])


@flow
async def unheard(folder: str) -> None:
    """The same job in a task that no cancel reaches, and no hook."""
    future = dispatch_job.submit(key="train", command=["sh", "-c", WAITS, tell_who_runs(folder)])
    await asyncio.to_thread(future.result)


@flow(retries=1)
async def retrying(folder: str) -> JobResult:
    """A flow that fails once, after its job."""
    result = await dispatch_job(key="train", command=["sh", "-c", WAITS, tell_who_runs(folder)])
    failed = Path(folder) / "failed"
    if not failed.exists():
        failed.touch()
        raise RuntimeError("once")
    return result


@flow
async def trying(folder: str) -> JobResult:
    """A task whose first try runs into its time limit, and leaves the job to the next."""
    limited = dispatch_job.with_options(retries=30, timeout_seconds=6)
    return await limited(key="train", command=["sh", "-c", WAITS, tell_who_runs(folder)])


@flow
async def limited(folder: str) -> JobResult:
    """A task that cancels its job when it runs into its time limit."""
    task = dispatch_job.with_options(timeout_seconds=15)
    return await task(key="train", command=["sh", "-c", WAITS, tell_who_runs(folder)], on_timeout="cancel")


@flow
async def suspending(folder: str) -> JobResult:
    """The same job, waited for without a process."""
    await submit_job(key="train", command=["sh", "-c", WAITS, tell_who_runs(folder)])
    (result,) = await wait_suspended("train")
    return result


@flow
async def delaying(folder: str) -> JobResult:
    """The same, and slow to suspend: it has seen that there is no outcome, and suspends once `outcome` is there."""
    suspend = suspending_room.asuspend_flow_run

    async def slowly(**how: str) -> None:
        while not (Path(folder) / "outcome").exists():
            await asyncio.sleep(0.2)
        await suspend(**how)

    suspending_room.asuspend_flow_run = slowly
    return await suspending.fn(folder)


def end_with_standard_input() -> None:
    """Whoever started this has gone."""
    sys.stdin.read()
    os.kill(os.getpid(), 2)


if __name__ == "__main__":
    threading.Thread(target=end_with_standard_input, daemon=True).start()
    flows = (training, nesting, failing, submitting, calling, unheard, retrying, trying, limited)
    served = [one.to_deployment("tests") for one in (*flows, suspending, delaying)]
    serve(*served, pause_on_shutdown=False)
