"""Flow runs of the tests, each with one job: what it has left behind, and what must hold of it in the end.

One rule: runs are counted by what the payloads wrote of themselves, and the record is read with plain SQL.
"""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from dispatch_core.adapters.contract import Adapter
from dispatch_core.janitor import Janitor
from dispatch_core.places import open_scheduler
from dispatch_core.record import Record, Result, State
from dispatch_core.stores.rules import read_document
from dispatch_core.stores.sql import open_store
from tests import tables
from tests.prefect.server import Prefect, until

TABLE = "what befalls a flow run in Prefect"

JOB = "SELECT * FROM dispatch_job WHERE key LIKE ?"

BESIDE = """
    SELECT dispatch_job.key, dispatch_job.settled, dispatch_job.result, flow_run.state_type, flow_run.run_count
    FROM flow_run JOIN dispatch_job ON dispatch_job.key = 'prefect/' || flow_run.id || '/train'
    WHERE flow_run.id = ?
"""


class Run:
    """One flow run with one job, which waits for `go`."""

    def __init__(self, prefect: Prefect, flow: str, folder: Path) -> None:
        self.prefect, self.folder = prefect, folder
        folder.mkdir()
        self.id = prefect.start_flow(flow, folder)

    def words(self, name: str) -> list[str]:
        file = self.folder / name
        return file.read_text().split() if file.exists() else []

    @property
    def payloads(self) -> list[int]:
        return [int(word) for word in self.words("lines") if word.isdecimal()]

    @property
    def processes(self) -> list[int]:
        return [int(word) for word in self.words("flow_pids")]

    @property
    def record(self) -> Record:
        (row,) = self.prefect.rows(JOB, f"prefect/{self.id}/%")
        return read_document(row["document"], row["key"], row["uid"], row["revision"])

    def until_it_runs(self) -> None:
        until(lambda: self.payloads, f"the job of flow run {self.id} runs")

    def until_state(self, *wanted: str) -> None:
        until(lambda: self.prefect.state(self.id) in wanted, f"flow run {self.id} is {wanted}")

    def leftovers(self) -> list[int]:
        return [pid for pid in (*self.payloads, *self.processes) if is_alive(pid)]

    def tell(self, request: pytest.FixtureRequest, event: str) -> None:
        """The row of the table."""
        record = self.record
        cancelled = record.outcome is not None and record.outcome.result is Result.CANCELLED
        tables.tell(
            request,
            f"{TABLE} {self.prefect.version}",
            event=event,
            flow_run=self.prefect.state(self.id).lower() if self.prefect.knows(self.id) else "unknown",
            job="none" if record.outcome is None else record.outcome.result,
            who_cancelled=who(record) if cancelled else "nobody",
            flow_processes=len(self.processes),
            launches=len(record.submissions),
            runs=len(self.payloads),
            leftovers=len(self.leftovers()),
            settled="yes" if record.settled else "NO",
        )

    def end(self) -> None:
        for pid in self.payloads:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def settle(prefect: Prefect) -> None:
    """What `dispatch supervise` does, until nothing is left to do."""

    async def once() -> None:
        store = open_store(f"sqlite:///{prefect.database}")
        adapter: Adapter = open_scheduler("local", prefect.dispatch / "spool")
        try:
            async with asyncio.timeout(90):
                await Janitor(store, {"local": adapter}, period_seconds=1.0).run(once=True)
        finally:
            await adapter.close()
            await store.close()

    asyncio.run(once())


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def who(record: Record) -> str:
    """Whose cancel it was; the hook signs as its flow run's tasks do."""
    by = record.outcome.by if record.outcome is not None else ""
    return "the service" if by == "prefect service" else "its task or hook" if "flow run" in by else by


def check_cancelled(prefect: Prefect, run: Run) -> None:
    record = run.record
    assert record.outcome is not None
    assert record.outcome.result is Result.CANCELLED
    assert "was cancelled" in record.outcome.message
    settle(prefect)
    record = run.record
    assert record.settled
    assert all(object.state is State.ENDED for object in record.objects)
    assert [pid for pid in (*run.payloads, *run.processes) if is_alive(pid)] == []
    assert len(run.payloads) == 1
