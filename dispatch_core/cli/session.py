"""One command's way to its store and its scheduler, and what a signal does meanwhile.

One rule: only the user's own default SQLite file is made and upgraded unasked; every other database is changed by
`dispatch db upgrade` alone. A signal takes the supervisor away and leaves the job running.
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dispatch_core.cli.screen import Screen

if TYPE_CHECKING:
    from dispatch_core.adapters.contract import Adapter
    from dispatch_core.clusters import Cluster
    from dispatch_core.stores.contract import Store

T = TypeVar("T")


class Detached(Exception):
    """A signal came; what was being awaited was drained and given up."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


@dataclass(frozen=True)
class Session:
    """What every command is told by its options."""

    store: str | None
    """A SQLAlchemy URL, or the address of a server; None: the user's own SQLite file."""
    spool: Path | None
    screen: Screen
    clusters: Path | None = None
    """The clusters file; None: the user's own."""

    @property
    def url(self) -> str:
        from dispatch_core.places import default_store

        return self.store or default_store()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Store]:
        """The store, ready to be used."""
        from dispatch_core.places import open_store

        await prepare(self)
        store = open_store(self.url)
        try:
            yield store
        finally:
            await store.close()

    @asynccontextmanager
    async def scheduler(self, name: str) -> AsyncIterator[Adapter]:
        """The cluster that a job names."""
        adapter = self.open(name)
        try:
            yield adapter
        finally:
            await adapter.close()

    def open(self, name: str) -> Adapter:
        """A connection to the cluster of this name; who opens it closes it. Raises BadInput."""
        from dispatch_core import places

        return places.open_cluster(self.cluster(name))

    def cluster(self, name: str) -> Cluster:
        """The cluster of this name. Raises BadInput."""
        from dispatch_core.places import find_cluster

        return find_cluster(name, spool=self.spool, file=self.clusters)

    def cluster_names(self) -> tuple[str, ...]:
        """The name that is built in, and those of the clusters file. Raises BadInput."""
        from dispatch_core.clusters import LOCAL
        from dispatch_core.places import clusters

        return (LOCAL, *clusters(self.clusters).named)

    def command(self, *words: str) -> str:
        """A command line that a person can paste, with the same store and clusters; a password stays out of it."""
        options: list[str] = []
        if self.store is not None:
            options += ["--store", self.store if "@" not in self.store else "URL"]
        if self.spool is not None:
            options += ["--spool", str(self.spool)]
        if self.clusters is not None:
            options += ["--clusters", str(self.clusters)]
        return shlex.join(["dispatch", *words, *options])


async def prepare(session: Session) -> None:
    """Make or upgrade the user's own SQLite file; where it is up to date already, without the slow import. Any other
    store is left as it is."""
    url = session.url
    file = Path(url.removeprefix("sqlite:///"))
    if session.store is not None or is_current(file):
        return
    from dispatch_core.stores.migrations import upgrade

    make_folder(url)
    await upgrade(url)


def make_folder(url: str) -> None:
    """The folder of the default SQLite file. Raises StoreUnavailable."""
    from dispatch_core.errors import StoreUnavailable

    file = Path(url.removeprefix("sqlite:///"))
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(f"the store {file} cannot be made: {error}; choose another with --store") from error


def is_current(file: Path) -> bool:
    """Whether a SQLite file has the tables of this version; each migration's file name begins with its revision."""
    import sqlite3

    from dispatch_core import stores

    newest = max(path.name[:4] for path in (Path(stores.__path__[0]) / "migrations" / "versions").glob("[0-9]*.py"))
    if not file.exists():
        return False
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as connection:
        rows = connection.execute("SELECT version_num FROM dispatch_alembic_version").fetchall()
        return rows == [(newest,)]
    return False


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run one command's work to its end. Raises Detached where SIGINT or SIGTERM came first, once it has drained."""
    import asyncio  # not at the top: help needs none of it
    import signal

    caught: list[int] = []

    async def attended() -> T:
        loop = asyncio.get_running_loop()
        inner = asyncio.ensure_future(work)
        signals = (signal.SIGINT, signal.SIGTERM)

        def leave(number: int) -> None:
            caught.append(number)
            inner.cancel()
            for each in signals:
                # A second one ends this at once: it has its effect on the supervisor only.
                loop.remove_signal_handler(each)
                signal.signal(each, signal.SIG_DFL)

        before = {each: signal.getsignal(each) for each in signals}
        for each in signals:
            loop.add_signal_handler(each, leave, each)
        try:
            return await inner
        except asyncio.CancelledError:
            if caught:
                raise Detached(caught[0]) from None
            raise
        finally:
            for each, known in before.items():
                loop.remove_signal_handler(each)
                signal.signal(each, known if known is not None else signal.SIG_DFL)

    return asyncio.run(attended())
