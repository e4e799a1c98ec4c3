"""Flows that take their steps apart, in a program of its own: `python tests/prefect/steps.py NAME FOLDER`.

Each prints one line of JSON last: what it saw.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.blocks.abstract import JobRun
from pydantic import SecretStr

from dispatch_core.errors import DispatchError, KeyTaken
from prefect_collection.blocks import DispatchStore
from prefect_collection.job_block import DispatchJob
from prefect_collection.results import JobCancelled, JobFailed, JobResult
from prefect_collection.tasks import adispatch_job, cancel_job, dispatch_job, submit_job, wait_for_job

COUNTS = 'echo ran >> "$0/lines"'
AWKWARD = ("*.csv", "a|b", "<b>bold</b>", "[link](http://127.0.0.1:9)", "_under_", "`tick`", "&lt;", "back\\slash")
FAILS_ONCE = 'echo "$DISPATCH_SUBMISSION" >> "$0/lines"; [ "$(wc -l < "$0/lines")" -gt 1 ]'


def sh(script: str, folder: str) -> list[str]:
    return ["sh", "-c", script, folder]


@flow
def apart(folder: str) -> dict[str, Any]:
    """Not async: each step is simply called."""
    job = submit_job(key="train", command=sh(f"{COUNTS}; sleep 1", folder))
    by_name = wait_for_job("train")
    again = wait_for_job(job)
    left = submit_job(key="left", command=sh("sleep 600", folder))
    receipt = cancel_job(left, reason="enough")
    try:
        wait_for_job("left")
    except JobCancelled as cancelled:
        why = cancelled.result.message
    mapped = [future.result() for future in dispatch_job.map(key=["a", "b"], command=[sh("exit 0", folder)] * 2)]
    return {
        "outcome": by_name.outcome,
        "same": (job.uid, by_name.uid) == (again.uid, again.uid),
        "cancel": receipt.outcome,
        "why": why,
        "mapped": [result.outcome for result in mapped],
    }


@flow
async def together(folder: str) -> dict[str, Any]:
    """Async: the same names are awaited; two steps with one key are refused."""
    both = await asyncio.gather(
        *(dispatch_job(key="twin", command=sh("sleep 2", folder)) for _ in range(2)), return_exceptions=True
    )
    one = await adispatch_job(key="one", command=sh("exit 0", folder))
    return {
        "refused": sum(isinstance(answer, KeyTaken) for answer in both),
        "outcomes": [answer.outcome for answer in both if isinstance(answer, JobResult)] + [one.outcome],
    }


def retried(on_flow_retry: str) -> Any:
    @flow(name=on_flow_retry, retries=1)
    def retrying(folder: str) -> dict[str, Any]:
        result = dispatch_job.with_options(retries=2, retry_delay_seconds=0)(
            key="train", command=sh(FAILS_ONCE, folder), plan={"rules": []}, on_flow_retry=on_flow_retry
        )
        return {"outcome": result.outcome, "submissions": result.submissions}

    def run(folder: str) -> dict[str, Any]:
        try:
            return dict(retrying(folder))
        except JobFailed as failed:
            return {"outcome": failed.result.outcome, "submissions": failed.result.submissions}

    return run


@flow
def blocks(folder: str) -> dict[str, Any]:
    """A saved block, triggered, lost, and found again."""
    DispatchJob(key="train", command=sh(f"{COUNTS}; sleep 1", folder)).save("train", overwrite=True)
    first: JobRun[JobResult] = DispatchJob.load("train").trigger()
    lost = first.submitted
    del first
    run = DispatchJob.load("train").attach()
    run.wait_for_completion()
    try:
        DispatchJob.load("train").attach("nobody")
    except DispatchError as error:
        missing = type(error).__name__
    return {"outcome": run.fetch_result().outcome, "same": run.submitted == lost, "missing": missing}


@flow
def served(folder: str) -> dict[str, Any]:
    """Over HTTP, from the server that has the store beside it."""
    url, token = os.environ["TEST_STORE"], os.environ["TEST_TOKEN"]
    DispatchStore(url=SecretStr(url), token=SecretStr(token)).save("served", overwrite=True)
    result = dispatch_job(key="train", command=sh(COUNTS, folder), store="served")
    try:
        dispatch_job.with_options(retries=0)(
            key="other", command=["true"], store=DispatchStore(url=SecretStr(url), token=SecretStr("x" * 20))
        )
    except DispatchError as error:
        refused = str(error)
    return {"outcome": result.outcome, "refused": refused}


@flow
def limited(folder: str) -> dict[str, Any]:
    """A time limit of Prefect's in a task that is not async, in the main thread and in another one."""

    @task(timeout_seconds=1)
    def nothing() -> None: ...

    nothing()
    seen = {}
    for on_timeout in ("detach", "cancel"):
        tried = dispatch_job.with_options(timeout_seconds=6)
        try:
            tried(key=on_timeout, command=sh("sleep 600", folder), on_timeout=on_timeout)
        except TimeoutError:
            seen[on_timeout] = "timed out"
    seen["cancelled"] = cancel_job("detach").outcome
    try:
        wait_for_job("cancel")
    except JobCancelled as cancelled:
        seen["cancel"] = cancelled.result.message
    return seen


@flow
def shown(folder: str) -> dict[str, Any]:
    """A job with much in its command that Markdown and HTML would take for their own."""
    result = dispatch_job(key="train", command=["true", *AWKWARD])
    return {"outcome": result.outcome, "flow_run": result.key.split("/")[1]}


FLOWS = {
    "shown": shown,
    "apart": apart,
    "together": lambda folder: asyncio.run(together(folder)),
    "reattach": retried("reattach"),
    "new_attempt": retried("new_attempt"),
    "blocks": blocks,
    "served": served,
    "limited": limited,
}

if __name__ == "__main__":
    name, folder = sys.argv[1:]
    seen = FLOWS[name](folder)
    lines = Path(folder) / "lines"
    sys.stdout.write(json.dumps({**seen, "ran": len(lines.read_text().split()) if lines.exists() else 0}) + "\n")
