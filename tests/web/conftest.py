"""A store of its own for each test, the pages that serve it, and a browser."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from dispatch_core.stores.migrations import upgrade
from dispatch_core.stores.sql import SqlStore, open_store
from tests.web.jobs import Floor
from tests.web.serving import ACTOR, served


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with our tables, made once."""
    file = tmp_path_factory.mktemp("store") / "jobs.db"
    asyncio.run(upgrade(f"sqlite:///{file}"))
    return file


@pytest.fixture
def url(tmp_path: Path, empty_store: Path) -> str:
    shutil.copy(empty_store, tmp_path / "jobs.db")
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
async def store(url: str) -> AsyncIterator[SqlStore]:
    opened = open_store(url)
    yield opened
    await opened.close()


@pytest.fixture
async def floor(store: SqlStore, tmp_path: Path) -> AsyncIterator[Floor]:
    made = Floor.at(store, tmp_path / "spool")
    yield made
    await made.close()


@pytest.fixture
def site(url: str, tmp_path: Path) -> Iterator[str]:
    """Where the pages are."""
    with served(url, tmp_path / "spool") as address:
        yield address


@pytest.fixture
async def ada(site: str) -> AsyncIterator[httpx.AsyncClient]:
    """Somebody who may act, with a browser's memory for cookies."""
    async with httpx.AsyncClient(base_url=site, auth=ACTOR) as client:
        yield client
