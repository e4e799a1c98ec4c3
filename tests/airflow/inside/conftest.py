"""A place for Airflow that is no one's, and what stands in for the rest of it: a task instance, its context."""

import asyncio
import json
import os
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

# Before anything of Airflow is imported: it makes its home, and logs, at import.
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="dispatch-airflow-home-")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from airflow_provider import hook, sites
    from airflow_provider.operator import DispatchOperator
    from airflow_provider.trigger import DispatchTrigger

from airflow.sdk.exceptions import TaskDeferred

from dispatch_core.adapters.local.scheduler import LocalScheduler
from dispatch_core.clusters import Cluster, LocalCluster
from dispatch_core.evidence import Bounds
from dispatch_core.record import Record
from dispatch_core.stores import migrations
from dispatch_core.stores.sql import SqlStore, open_store

KEY = "airflow/etl/manual__2026-11-29T00:00:00+00:00/train/-1/0"
"""The first job of the task that is made here."""

QUICK = Bounds(call_seconds=0.5, window_seconds=1.5, absence_seconds=1.0, repeat_seconds=0.5, resync_seconds=1.0)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "ignore:::(airflow|alembic|pydantic|structlog|opentelemetry)")


@dataclass
class StateStore:
    """A task's state store, kept in memory; it outlives tries and clears, as Airflow's does."""

    values: dict[str, Any] = field(default_factory=dict)

    def get(self, name: str, default: Any = None) -> Any:
        return self.values.get(name, default)

    def set(self, name: str, value: Any) -> None:
        self.values[name] = value


@dataclass
class DagRun:
    clear_number: int = 0


@dataclass
class Try:
    """One try of a task, as the operator sees it."""

    task_id: str = "train"
    dag_id: str = "etl"
    run_id: str = "manual__2026-11-29T00:00:00+00:00"
    map_index: int | None = -1
    try_number: int = 1
    max_tries: int = 0
    id: uuid.UUID = field(default_factory=uuid.uuid4)
    pushed: dict[str, Any] = field(default_factory=dict)

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value


def context(ti: Try | None = None, states: StateStore | None = None, cleared: int = 0) -> Any:
    values: dict[str, Any] = {"ti": ti or Try(), "dag_run": DagRun(cleared)}
    return values if states is None else {**values, "task_state_store": states}


@dataclass
class Deployment:
    """A store and a spool, and the connection that names them."""

    folder: Path
    url: str
    spool: Path
    adapters: list[LocalScheduler] = field(default_factory=list)
    opened: list[Cluster] = field(default_factory=list)
    """The cluster of each adapter. A local scheduler of its own stands in for one that Slurm would run."""

    @property
    def lines(self) -> Path:
        return self.folder / "lines"

    def read_lines(self) -> list[str]:
        return self.lines.read_text().splitlines() if self.lines.exists() else []

    def operator(self, script: str = "", **options: Any) -> DispatchOperator:
        """An operator whose job writes a line when a run of it starts, and one at its end."""
        told = f'echo "$DISPATCH_SUBMISSION $DISPATCH_RUN start" >> {self.lines}; {script}'
        return DispatchOperator(**{"task_id": "train", "command": ["bash", "-c", told], **options})

    def records(self) -> list[Record]:
        async def read(store: SqlStore) -> list[Record]:
            return [job.record for job in await store.jobs() if job.record is not None]

        return self.asked(read)

    def asked(self, work: Any) -> Any:
        async def run() -> Any:
            store = open_store(self.url)
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(run())


def deferred(operator: DispatchOperator, ctx: Any) -> TaskDeferred:
    """Run `execute`, which is to defer."""
    with pytest.raises(TaskDeferred) as raised:
        operator.execute(ctx)
    return raised.value


def made_again(trigger: DispatchTrigger) -> DispatchTrigger:
    """The trigger as a triggerer makes it: from what was serialized."""
    path, arguments = trigger.serialize()
    assert path == "airflow_provider.trigger.DispatchTrigger"
    return DispatchTrigger(**json.loads(json.dumps(arguments)))


async def fired(trigger: DispatchTrigger) -> Any:
    """Run a trigger to its end; its one event."""
    events = [event.payload async for event in trigger.run()]
    assert len(events) == 1
    return events[0]


def resumed(made: DispatchOperator, raised: TaskDeferred, ctx: Any, event: Any = None) -> Any:
    return made.resume_execution(raised.method_name, {"event": event, **(raised.kwargs or {})}, ctx)


def carried_out(made: DispatchOperator, ctx: Any) -> Any:
    """A task as Airflow runs it: execute, the trigger, the method that it deferred to."""
    raised = deferred(made, ctx)
    while True:
        event = asyncio.run(fired(made_again(raised.trigger)))
        try:
            return resumed(made, raised, ctx, event)
        except TaskDeferred as again:
            raised = again


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    made = Deployment(tmp_path, f"sqlite:///{tmp_path}/jobs.db", tmp_path / "spool")
    asyncio.run(migrations.upgrade(made.url))
    connection = {"conn_type": "dispatch", "extra": {"url": made.url, "spool": str(made.spool)}}
    monkeypatch.setenv("AIRFLOW_CONN_DISPATCH_DEFAULT", json.dumps(connection))

    def opened(cluster: Cluster) -> LocalScheduler:
        made.opened.append(cluster)
        spool = Path(cluster.spool) if isinstance(cluster, LocalCluster) else tmp_path / cluster.name
        assert cluster.name != "local" or spool == made.spool
        made.adapters.append(LocalScheduler(spool, bounds=QUICK, slots=50, grace_seconds=1.0, listing_seconds=0.2))
        return made.adapters[-1]

    monkeypatch.setattr(sites, "open_cluster", opened)
    hook.forget("dispatch_default")
    yield made
    (tmp_path / "go").touch()  # what a job that was left waits for
    hook.forget("dispatch_default")
