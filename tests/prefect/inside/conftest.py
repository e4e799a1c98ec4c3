"""Tests that import Prefect: they run in Prefect's environment, and are not looked at where there is no Prefect.

They need no server. A job here has a store and a spool of its own, both in the test's directory.
"""

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from dispatch_core.stores.migrations import upgrade

if find_spec("prefect"):
    # Before anything imports Prefect, which reads its settings once: nobody's settings, and no server.
    os.environ |= {"PREFECT_HOME": "/nonexistent", "PREFECT_API_URL": "http://127.0.0.1:9/api"}
else:
    collect_ignore_glob = ["*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))  # what Prefect warns of is not ours


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "jobs.db"
    asyncio.run(upgrade(f"sqlite:///{path}"))
    return path


@pytest.fixture
def folder(template: Path, tmp_path: Path) -> Iterator[Path]:
    """A directory with the store `jobs.db`; what its payloads left running is ended."""
    shutil.copy(template, tmp_path / "jobs.db")
    yield tmp_path
    for line in (tmp_path / "lines").read_text().split() if (tmp_path / "lines").exists() else ():
        with suppress(ProcessLookupError, ValueError):
            os.kill(int(line), signal.SIGKILL)
