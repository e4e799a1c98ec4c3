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
    serve(training.to_deployment("tests"), submitting.to_deployment("tests"), pause_on_shutdown=False)
