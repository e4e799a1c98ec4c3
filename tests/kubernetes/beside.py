"""A test API server for programs beside the tests, which ask it as they would a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future

from tests.kubernetes.server import ApiServer

IMAGE = "registry.example/test:1"


@contextlib.contextmanager
def running() -> Iterator[ApiServer]:
    """A server in a thread of its own; what is kept there may be read from here."""
    begun: Future[tuple[ApiServer, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        over = asyncio.Event()
        async with ApiServer() as server:
            begun.set_result((server, asyncio.get_running_loop(), over))
            await over.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="api-server")
    thread.start()
    server, loop, over = begun.result(timeout=60)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
