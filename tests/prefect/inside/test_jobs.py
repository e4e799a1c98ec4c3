"""The task on a store and a spool of its own, outside any flow run: its outcomes, and every way to end it early."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from prefect.exceptions import TerminationSignal

from dispatch_core.errors import KeyTaken
from dispatch_core.record import Record, Result
from dispatch_core.stores.sql import open_store
from prefect_collection import connections, errands
from prefect_collection.blocks import DispatchStore
from prefect_collection.connections import connected
from prefect_collection.results import JobCancelled, JobFailed, JobResult
from prefect_collection.tasks import dispatch_job

WAITS = 'echo $$ >> "$0/lines"; while [ ! -e "$0/go" ]; do sleep 0.1; done'


def run(folder: Path, script: str = WAITS, **options: object) -> asyncio.Task[JobResult]:
    store = DispatchStore(url=f"sqlite:///{folder / 'jobs.db'}", spool=folder / "spool")
    command = ["sh", "-c", script, str(folder)]
    given = {"store": store, "across_runs": True, "settle_seconds": 0.1, **options}
    return asyncio.ensure_future(dispatch_job.fn("train", command, **given))


async def read(folder: Path) -> Record:
    store = open_store(f"sqlite:///{folder / 'jobs.db'}")
    try:
        return await store.read("train")
    finally:
        await store.close()


def lines(folder: Path) -> list[str]:
    return (folder / "lines").read_text().split() if (folder / "lines").exists() else []


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.05)


def is_alive(pid: str) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


async def test_a_job_that_succeeds(folder: Path) -> None:
    result = await run(folder, "exit 0")
    assert (result.outcome, result.exit_code, result.submissions, result.runs) == ("succeeded", 0, 1, 1)
    again = await run(folder, "exit 0")
    assert again.uid == result.uid
    with pytest.raises(KeyTaken):
        await run(folder, "exit 1")


async def test_a_job_that_settles_later_is_told_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(errands, "run_logger", lambda: logging.getLogger("the run"))
    result = await run(folder, "exit 0", settle_seconds=0.0)
    assert (result.outcome, result.settled) == ("succeeded", False)
    left = "job 'train' is not settled 0 s after its outcome; `dispatch supervise` clears away what is left of it"
    assert [entry.getMessage() for entry in caplog.records if entry.levelname == "WARNING"] == [left]


async def test_a_job_that_fails_after_its_plan(folder: Path) -> None:
    plan = {"rules": [{"name": "again", "when": {"exit_code": 3}, "do": "resubmit", "budget": 1}]}
    with pytest.raises(JobFailed) as failed:
        await run(folder, 'echo "$DISPATCH_SUBMISSION" >> "$0/lines"; exit 3', plan=plan)
    result = failed.value.result
    assert (result.cause, result.exit_code, result.submissions, result.runs) == ("exit", 3, 2, 2)
    assert lines(folder) == ["1", "2"]


@pytest.mark.promise("F1")
async def test_a_task_that_has_to_end_leaves_the_job_to_the_next_one(folder: Path) -> None:
    first = run(folder)
    await until(lambda: len(lines(folder)) == 1)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert is_alive(lines(folder)[0])
    assert (await read(folder)).outcome is None
    second = run(folder)
    (folder / "go").touch()
    assert (await second).runs == 1
    assert len(lines(folder)) == 1


@pytest.mark.promise("F1")
@pytest.mark.parametrize("told", ["cancelled_flow_run", "heard_of_cancel"], ids=["awaited", "submitted"])
async def test_a_task_of_a_cancelled_flow_run_cancels_the_job(
    folder: Path, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    async def cancelled(flow_runs: object) -> str:
        return "the flow run 'calm-otter' was cancelled"

    monkeypatch.setattr(errands, told, cancelled)
    task = run(folder)
    await until(lambda: len(lines(folder)) == 1)
    if told == "cancelled_flow_run":
        task.cancel()
    with pytest.raises(JobCancelled if told == "heard_of_cancel" else asyncio.CancelledError):
        await task
    record = await read(folder)
    assert record.outcome is not None
    assert (record.outcome.result, record.outcome.message) == (
        Result.CANCELLED,
        "the flow run 'calm-otter' was cancelled",
    )
    assert not is_alive(lines(folder)[0])
    with pytest.raises(JobCancelled):
        await run(folder)


@pytest.mark.promise("F1")
@pytest.mark.parametrize("on_timeout", ["detach", "cancel"])
async def test_a_time_limit_of_prefects_is_not_the_jobs(folder: Path, on_timeout: str) -> None:
    """Prefect's limit is a scope of anyio's, in which every await is cancelled again."""
    with anyio.CancelScope(deadline=anyio.current_time() + 4) as limit:
        await run_inline(folder, on_timeout)
    assert limit.cancelled_caught
    record = await read(folder)
    if on_timeout == "detach":
        assert record.outcome is None
        assert is_alive(lines(folder)[0])
    else:
        assert record.outcome is not None
        assert not is_alive(lines(folder)[0])


async def run_inline(folder: Path, on_timeout: str) -> JobResult:
    store = DispatchStore(url=f"sqlite:///{folder / 'jobs.db'}", spool=folder / "spool")
    return await dispatch_job.fn(
        "train", ["sh", "-c", WAITS, str(folder)], store=store, across_runs=True, on_timeout=on_timeout
    )


async def test_prefects_signal_is_a_cancellation_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is raised wherever the program happens to be, and may come out of the supervisor's own step."""

    async def struck(*given: object, **more: object) -> Record:
        await until(lambda: len(lines(folder)) == 1)
        raise TerminationSignal(15)

    asked: list[object] = []

    async def ask(flow_runs: object) -> str:
        asked.append(flow_runs)
        return ""

    first = run(folder)
    await until(lambda: len(lines(folder)) == 1)
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first
    monkeypatch.setattr("prefect_collection.attendance.Supervisor.attend", struck)
    monkeypatch.setattr(errands, "cancelled_flow_run", ask)
    second = run(folder)
    with pytest.raises(TerminationSignal):
        await second
    assert asked


@pytest.mark.promise("P4")
async def test_two_that_share_a_job_run_it_once(folder: Path) -> None:
    both = [run(folder), run(folder)]
    await until(lambda: len(lines(folder)) == 1)
    (folder / "go").touch()
    first, second = await asyncio.gather(*both)
    assert first.uid == second.uid
    assert len(lines(folder)) == 1


async def test_one_connection_serves_all_and_is_closed_by_the_last(folder: Path) -> None:
    block = DispatchStore(url=f"sqlite:///{folder / 'jobs.db'}", spool=folder / "spool")
    async with connected(block, "local") as first:
        async with connected(block.model_copy(), "local") as second:
            assert (first.store, first.adapter) == (second.store, second.adapter)
        assert await first.store.jobs() == []
    async with connected(block, "local") as third:
        assert third.store is not first.store
        assert third.adapter is not first.adapter
    assert not connections._open[asyncio.get_running_loop()]
