"""A job submitted, waited for and cancelled apart, from async code and from code that is not; no server is needed."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.blocks.abstract import JobBlock, JobRun
from prefect.exceptions import TerminationSignal

from dispatch_core.errors import BadInput, DispatchError, KeyTaken, NotFound, StoreUnavailable
from dispatch_core.record import Record
from dispatch_core.stores import migrations
from dispatch_core.stores.sql import open_store
from dispatch_core.supervisor import Supervisor
from prefect_collection import reruns, tasks
from prefect_collection.blocks import DispatchStore
from prefect_collection.connections import connected, stored
from prefect_collection.job_block import DispatchJob
from prefect_collection.pairs import PairedTask, carry_out, is_async_here, paired
from prefect_collection.reruns import Run, made_or_found
from prefect_collection.results import JobCancelled, Submitted

WAITS = 'echo $$ >> "$0/lines"; while [ ! -e "$0/go" ]; do sleep 0.1; done'
ROOT = UUID("0198aaaa-0000-7000-8000-000000000001")


def at(folder: Path) -> DispatchStore:
    return DispatchStore(url=f"sqlite:///{folder / 'jobs.db'}", spool=folder / "spool")


def sh(folder: Path, script: str = WAITS) -> list[str]:
    return ["sh", "-c", script, str(folder)]


def lines(folder: Path) -> list[str]:
    return (folder / "lines").read_text().split() if (folder / "lines").exists() else []


def is_there(pid: str) -> bool:
    return Path(f"/proc/{pid}").exists()


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.promise("F1")
async def test_a_job_is_submitted_then_waited_for(folder: Path) -> None:
    given: dict[str, Any] = {"store": at(folder), "across_runs": True}
    job = await tasks.submit_job.fn("train", sh(folder), **given)
    await asyncio.to_thread(until, lambda: len(lines(folder)) == 1)  # it runs, and nobody supervises it
    assert job == await tasks.submit_job.fn("train", sh(folder), **given)
    (folder / "go").touch()
    result = await tasks.wait_for_job.fn(job, store=at(folder), settle_seconds=0.1)
    assert (result.uid, result.outcome, result.runs) == (job.uid, "succeeded", 1)
    assert (await tasks.wait_for_job.fn("train", **given)).uid == job.uid
    assert len(lines(folder)) == 1
    with pytest.raises(NotFound):
        await tasks.wait_for_job.fn("nobody", **given)


@pytest.mark.promise("F1")
async def test_a_job_that_is_only_written_is_launched_by_who_waits(folder: Path) -> None:
    given: dict[str, Any] = {"store": at(folder), "across_runs": True}
    job = await tasks.submit_job.fn("train", sh(folder, 'echo ran >> "$0/lines"'), launch_seconds=0, **given)
    async with stored(at(folder)) as store:
        assert (await store.read(job.key, job.uid)).revision == 1
    assert (await tasks.wait_for_job.fn(job, store=at(folder))).outcome == "succeeded"
    assert lines(folder) == ["ran"]


@pytest.mark.promise("A5")
async def test_a_job_is_cancelled_and_its_receipt_stays_the_same(folder: Path) -> None:
    given: dict[str, Any] = {"store": at(folder), "across_runs": True}
    job = await tasks.submit_job.fn("train", sh(folder), **given)
    await asyncio.to_thread(until, lambda: len(lines(folder)) == 1)
    receipt = await tasks.cancel_job.fn(job, reason="enough", store=at(folder))
    assert (receipt.key, receipt.uid, receipt.outcome) == ("train", job.uid, "cancelled")
    assert not is_there(lines(folder)[0])
    again = await tasks.cancel_job.fn("train", **given)
    assert (again.revision, again.outcome) == (receipt.revision, "cancelled")
    with pytest.raises(JobCancelled, match="enough"):
        await tasks.wait_for_job.fn(job, store=at(folder))


async def test_another_cluster_than_the_jobs_is_refused(folder: Path) -> None:
    given: dict[str, Any] = {"store": at(folder), "across_runs": True}
    async with connected(at(folder), "local") as connection:
        await made_or_found(
            connection._replace(scheduler="alps"),
            None,  # type: ignore[arg-type]  # nothing has to be waited for
            "train",
            tasks.spec_of(["true"], None, None, None, None, None),
            tasks.Plan(),
            name="test",
            run=None,
        )
    with pytest.raises(BadInput, match="is on 'alps', and 'local' was given"):
        await tasks.wait_for_job.fn("train", scheduler="local", **given)


async def test_a_step_outside_any_flow_run_has_no_key(folder: Path) -> None:
    with pytest.raises(BadInput, match="across_runs=True"):
        await tasks.submit_job.fn("train", ["true"], store=at(folder))
    with pytest.raises(BadInput, match="new_attempt"):
        await tasks.submit_job.fn("train", ["true"], store=at(folder), across_runs=True, on_flow_retry="new_attempt")


@pytest.mark.promise("F1")
def test_a_block_triggers_a_job_and_finds_it_again(folder: Path) -> None:
    """Not async, as most flows are: each call waits."""
    block = DispatchJob(key="train", command=sh(folder), store=at(folder), across_runs=True)
    assert isinstance(block, JobBlock)
    with pytest.raises(NotFound):
        block.attach()
    run = block.trigger()
    assert isinstance(run, JobRun)
    with pytest.raises(DispatchError, match="has no outcome yet"):
        run.fetch_result()
    found = DispatchJob(key="other", command=["true"], store=at(folder), across_runs=True).attach("train")
    assert found.submitted == run.submitted
    (folder / "go").touch()
    found.wait_for_completion(settle_seconds=0.1)
    assert run.fetch_result().outcome == "succeeded"
    assert run.cancel().outcome == "succeeded"
    assert len(lines(folder)) == 1


@pytest.mark.promise("F1")
async def test_the_same_names_are_awaited_in_async_code(folder: Path) -> None:
    block = DispatchJob(key="train", command=["true"], store=at(folder), across_runs=True)
    run = await block.trigger()
    await run.wait_for_completion(settle_seconds=0.1)
    assert (await run.afetch_result()).outcome == "succeeded"


def test_each_task_has_two_names() -> None:
    pairs = ("dispatch_job", "adispatch_job"), ("submit_job", "asubmit_job"), ("cancel_job", "acancel_job")
    for plain, awaited in (*pairs, ("wait_for_job", "await_for_job")):
        both, one = getattr(tasks, plain), getattr(tasks, awaited)
        assert isinstance(both, PairedTask)
        assert both.isasync
        assert one.isasync
        assert both.fn is one.fn
        assert both.name == one.name == plain
        assert isinstance(both.with_options(retries=2), PairedTask)
        assert both.with_options(retries=2).retries == 2


def test_code_that_is_not_async_waits_in_one_loop() -> None:
    async def where() -> int:
        return id(asyncio.get_running_loop())

    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(carry_out(where()))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert paired(where)() == found[0]
    assert not is_async_here()


@pytest.mark.promise("F1")
def test_a_wait_that_is_ended_early_leaves_its_job_in_order(folder: Path) -> None:
    """What ends it is raised in this thread, as Prefect's signal is, while the job is supervised in another."""

    def raised(number: int, frame: object) -> None:
        raise TerminationSignal(number)

    before = signal.signal(signal.SIGUSR1, raised)
    block = DispatchJob(key="train", command=sh(folder), store=at(folder), across_runs=True)
    run = block.trigger()
    threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    try:
        with pytest.raises(TerminationSignal):
            run.wait_for_completion()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert Path(f"/proc/{lines(folder)[0]}").exists()
    again = block.attach()  # at once: the lease was given back
    (folder / "go").touch()
    again.wait_for_completion(settle_seconds=0.1)
    assert again.fetch_result().runs == 1


class Counted:
    """Prefect's count of a flow run's runs."""

    def __init__(self, number: int) -> None:
        self.number = number

    async def __aenter__(self) -> "Counted":
        return self

    async def __aexit__(self, *error: object) -> None:
        return None

    async def read_flow_run(self, id: UUID) -> SimpleNamespace:
        return SimpleNamespace(run_count=self.number)


@pytest.mark.promise("F1")
@pytest.mark.parametrize("script", ["exit 3", "exit 0"], ids=["failed", "succeeded"])
async def test_a_flow_run_that_is_retried_may_launch_again_what_failed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    async def run(number: int, *, new: bool = True, command: str = script) -> Record:
        monkeypatch.setattr(reruns, "get_client", lambda: Counted(number))
        name = f"prefect flow run {ROOT}"
        async with connected(at(folder), "local") as connection:
            supervisor = Supervisor(connection.store, connection.adapter, name=name)
            which = await reruns.which_run(ROOT, name) if new else None
            spec = tasks.spec_of(sh(folder, command), None, None, None, None, None)
            attend = lambda record: supervisor.attend(record.key, record.uid)  # noqa: E731
            record = await made_or_found(connection, attend, "train", spec, tasks.Plan(), name=name, run=which)
            return await attend(record)

    first = await run(1)
    assert (await run(1)).uid == first.uid  # the task is tried again: what failed has failed
    assert (await run(2, new=False)).uid == first.uid
    second = await run(2)
    assert (second.uid != first.uid) is (script == "exit 3")
    assert (await run(2)).uid == second.uid  # run again after a crash, without another run of the flow
    if script == "exit 3":
        assert (await run(3, command="exit 4")).uid not in (first.uid, second.uid)
    else:
        with pytest.raises(KeyTaken):
            await run(3, command="exit 4")


def test_which_run_made_a_job() -> None:
    third = Run(flow_run=ROOT, number=3, name="prefect task run x")
    assert third.is_later_than(f"prefect flow run {ROOT}, run 2 of {ROOT}")
    assert third.is_later_than(f"prefect flow run {ROOT}")
    assert not third.is_later_than(third.who)
    assert not third.is_later_than(f"prefect flow run {ROOT}, run 2 of {uuid4()}")
    assert not third.is_later_than("person ann")
    assert not Run(flow_run=ROOT, number=1, name="x").is_later_than(f"prefect flow run {ROOT}")


def test_what_was_submitted_shows_as_its_key() -> None:
    assert f"{Submitted(key='prefect/a/fit', uid='u', scheduler='local')}" == "prefect/a/fit"


@pytest.mark.promise("F1")
@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("missing", "cannot be opened"),
        ("empty", "has no tables of dispatch; run `dispatch db upgrade`"),
        ("older", "of revision 0001, and this version of dispatch needs 0002; run `dispatch db upgrade`"),
        ("newer", "of revision 9999, which a newer dispatch has made; this one knows 0001"),
    ],
)
async def test_a_store_that_does_not_fit_is_refused_and_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch, state: str, why: str
) -> None:
    file = folder / "jobs.db"
    if state == "missing":
        file.unlink()
    elif state == "empty":
        file.write_bytes(b"")
    elif state == "older":
        monkeypatch.setattr(migrations, "newest", lambda: "0002")
    else:
        import sqlite3

        with sqlite3.connect(file) as connection:
            connection.execute("UPDATE dispatch_alembic_version SET version_num = '9999'")
        connection.close()
    with pytest.raises(StoreUnavailable) as refused:
        await tasks.submit_job.fn("train", ["true"], store=at(folder), across_runs=True)
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)
    if state == "missing":
        assert not file.exists()
    elif state == "empty":
        async with asyncio.timeout(10):
            assert await migrations.current(f"sqlite:///{file}") is None
    else:
        store = open_store(f"sqlite:///{file}")
        assert await store.jobs() == []
        await store.close()
