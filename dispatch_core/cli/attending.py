"""`supervise` without a key: the janitor of the command line, and what an engine puts beside it.

One rule: it leaves when it is told to, and what is open then runs on. Where an engine stands beside it, both serve one
store, and neither waits for the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime

from dispatch_core.adapters.contract import Adapter
from dispatch_core.cli import beside, exits, sources
from dispatch_core.cli.screen import Screen, clean, local_time, plural
from dispatch_core.cli.session import Detached, Session
from dispatch_core.cli.session import run as run_to_end
from dispatch_core.cli.told import Told
from dispatch_core.clusters import LOCAL
from dispatch_core.janitor import Janitor
from dispatch_core.record import Record
from dispatch_core.status import attention
from dispatch_core.stores.contract import Store

EVERY_SECONDS, ONCE_SECONDS = 30.0, 5.0
"""How often it looks for jobs that nobody supervises."""


def supervise_all(session: Session, once: bool, engine: str) -> int:
    """Supervise what nobody does. `engine`: whose runs to watch as well; "": none."""
    screen = session.screen

    async def work() -> int:
        adopted: set[str] = set()
        added = beside.load(engine) if engine else None

        def tell(record: Record, at: datetime, line: str) -> None:
            adopted.add(record.key)
            screen.say(f"{local_time(at, date=False)}  {clean(record.key)}: {line}")
            if added is not None:
                added.heard(record)

        async with _opened(session, added) as plain, AsyncExitStack() as stack:

            def opens(name: str) -> Adapter:
                adapter = session.open(name)
                stack.push_async_callback(adapter.close)
                return adapter

            # The machine's own spool may not be one, as on a shared home directory; where it is all there is, it must.
            names = session.cluster_names()
            adapters = {} if len(names) > 1 else {LOCAL: opens(LOCAL)}
            watched = f", and the runs of {engine}" if engine else ""
            screen.say(f"supervising every job that nobody supervises{watched}" + ("" if once else "; Ctrl-C leaves"))
            period = ONCE_SECONDS if once else EVERY_SECONDS
            janitor = Janitor(
                Told(plain, tell),
                adapters,
                opens=opens,
                names=names,
                secrets=sources.read_secret if added is None else added.secrets,
                period_seconds=period if added is None else min(period, added.period_seconds),
            )
            with logged(screen):
                await _run(janitor, plain, added, once)
            unsettled = await plain.jobs(settled=False)
        done = f"{plural(len(adopted), 'job')} supervised"
        others = f"{plural(len(unsettled), 'job')} not settled, which others have or a person must decide"
        screen.result(
            {"supervised": sorted(adopted), "unsettled": sorted(row.key for row in unsettled)},
            [f"{done}; {others}" if unsettled else f"nothing is left to do: {done}"],
        )
        left = sum(bool(attention(row)) for row in unsettled)
        if left:
            screen.say(f"{plural(left, 'job needs', 'jobs need')} attention: {session.command('ls', '--attention')}")
        return exits.FINE

    try:
        return run_to_end(work())
    except Detached as left:
        screen.say("left: what is open on the scheduler runs on; nothing new starts until somebody supervises")
        return exits.SIGNALLED + left.number


@asynccontextmanager
async def _opened(session: Session, added: beside.Beside | None) -> AsyncIterator[Store]:
    """The store that the options name; without a name, the engine's own."""
    if added is None or session.store is not None:
        async with session.opened() as store:
            yield store
        return
    store = await added.open_store()
    try:
        yield store
    finally:
        await store.close()


async def _run(janitor: Janitor, store: Store, added: beside.Beside | None, once: bool) -> None:
    """The janitor, and what stands beside it; `once`: that looks before and after it."""
    if added is None:
        await janitor.run(once=once)
    elif once:
        await added.look(store)
        await janitor.run(once=True)
        await added.look(store)
    else:
        watching = asyncio.ensure_future(added.run(store))
        try:
            await janitor.run()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


class _Lines(logging.Handler):
    """Warnings of the supervisor as lines; its story is told from the store."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(logging.WARNING)
        self.screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        self.screen.say(f"dispatch: {record.getMessage()}")


class logged:
    """While it lasts, what the supervisor warns of is said on standard error."""

    def __init__(self, screen: Screen) -> None:
        self.lines = _Lines(screen)

    def __enter__(self) -> None:
        logging.getLogger("dispatch_core").addHandler(self.lines)

    def __exit__(self, *raised: object) -> None:
        logging.getLogger("dispatch_core").removeHandler(self.lines)
