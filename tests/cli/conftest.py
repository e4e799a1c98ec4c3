"""A command line of its own for each test: its own data directory, and a local scheduler that is quick to settle."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dispatch_core import places
from dispatch_core.adapters.local.scheduler import LocalScheduler
from dispatch_core.cli import main
from dispatch_core.clusters import Cluster, LocalCluster
from dispatch_core.evidence import Bounds
from dispatch_core.record import Record
from dispatch_core.stores.migrations import upgrade
from dispatch_core.stores.sql import SqlStore, open_store
from dispatch_core.supervisor import Supervisor

QUICK = Bounds(call_seconds=0.5, window_seconds=1.5, absence_seconds=0.5, repeat_seconds=0.2, resync_seconds=1.0)


class Ran(NamedTuple):
    """What one command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be one JSON value and nothing else."""
        return json.loads(self.out)


class Cli:
    """Runs commands in this interpreter, in a data directory of their own."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.capsys = capsys

    def __call__(self, *arguments: str) -> Ran:
        self.capsys.readouterr()
        code = main(list(arguments))
        out, err = self.capsys.readouterr()
        assert "Traceback" not in err
        return Ran(code, out, err)

    def job(self, key: str, script: str, plan: str = "", extra: str = "") -> str:
        """A job file that runs a shell script; returns its path."""
        file = self.folder / "job.yaml"
        command = json.dumps(["sh", "-c", script])
        text = f"key: {json.dumps(key)}\nscheduler: local\nspec:\n  command: {command}\n{extra}{plan}"
        file.write_text(text)
        return str(file)

    @property
    def url(self) -> str:
        return f"sqlite:///{self.home / 'dispatch.db'}"

    def with_store(self, work: Callable[[SqlStore], Any]) -> Any:
        """The result of some work on the store."""

        async def opened() -> Any:
            store = open_store(self.url)
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(opened())

    def read(self, key: str) -> Record:
        record: Record = self.with_store(lambda store: store.read(key))
        return record

    def supervise_until(self, key: str, when: Callable[[Record], bool]) -> Record:
        """Supervise a job until its record is so, then leave it."""

        async def work(store: SqlStore) -> Record:
            adapter = quick(places.default_spool())
            supervisor = Supervisor(store, adapter)
            running = asyncio.ensure_future(supervisor.run(key))
            try:
                async with asyncio.timeout(30):
                    while not when(record := await store.read(key)):
                        assert not running.done()
                        await asyncio.sleep(0.02)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                await adapter.close()
            return record

        found: Record = self.with_store(work)
        return found


def quick(spool: Path | None = None) -> LocalScheduler:
    return LocalScheduler(spool or places.default_spool(), bounds=QUICK, listing_seconds=0.02, grace_seconds=0.5)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with our tables, made once."""
    file = tmp_path_factory.mktemp("store") / "dispatch.db"
    asyncio.run(upgrade(f"sqlite:///{file}"))
    return file


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], empty_store: Path) -> Cli:
    made = Cli(tmp_path, capsys)
    made.home.mkdir()
    shutil.copy(empty_store, made.home / "dispatch.db")
    monkeypatch.setenv("DISPATCH_HOME", str(made.home))
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("DISPATCH_STORE", "DISPATCH_SPOOL", "DISPATCH_CLUSTERS", "DISPATCH_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)
    real = places.open_cluster

    def open_quickly(cluster: Cluster) -> Any:
        return quick(Path(cluster.spool)) if isinstance(cluster, LocalCluster) else real(cluster)

    monkeypatch.setattr(places, "open_cluster", open_quickly)
    return made
