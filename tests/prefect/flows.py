"""What the tests let a real Prefect runner serve; run with the engine's Python. It ends with its standard input."""

import asyncio
import os
import sys
import threading
from pathlib import Path

from prefect import flow, serve

from prefect_collection.cancels import cancel_jobs
from prefect_collection.results import JobResult
from prefect_collection.tasks import dispatch_job

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


def end_with_standard_input() -> None:
    """Whoever started this has gone."""
    sys.stdin.read()
    os.kill(os.getpid(), 2)


if __name__ == "__main__":
    threading.Thread(target=end_with_standard_input, daemon=True).start()
    served = [one.to_deployment("tests") for one in (training, nesting, failing, submitting)]
    serve(*served, pause_on_shutdown=False)
