"""The pages behind a real server, in a thread with a loop of its own, and people who may do what their name says."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount

from dispatch_core.adapters.local.scheduler import LocalScheduler
from dispatch_core.client import Explanation, explain
from dispatch_core.record import Record
from dispatch_core.stores.contract import Browsed
from dispatch_core.stores.sql import SqlStore, open_store
from dispatch_core.web.access import Access, Denied, ReadsAll, Right
from dispatch_core.web.pages import routes
from tests.cli.conftest import quick

PREFIX = "/some/prefix"
ACTOR, VIEWER = ("ada", "secret"), ("vic", "secret")
SECRET = b"the same in every worker"


class People(ReadsAll):
    """Ada may act, Vic may look; the password is the same for both."""

    async def admit(self, request: Request, right: Right, key: str = "") -> str:
        scheme, _, rest = request.headers.get("authorization", "").partition(" ")
        name = base64.b64decode(rest).decode().partition(":")[0] if scheme == "Basic" else ""
        if name not in ("ada", "vic"):
            raise Denied(401, "log in first")
        if right is not Right.READ and name != "ada":
            raise Denied(403, "vic may look, and not act")
        return f"person {name}"


def application(url: str, access: Access, spool: Path | None) -> Starlette:
    opened: list[SqlStore] = []
    adapters: list[LocalScheduler] = []

    def store() -> SqlStore:
        if not opened:
            opened.append(open_store(url))
        return opened[0]

    async def explained(store: Browsed, record: Record) -> Explanation:
        if not adapters:
            adapters.append(quick(spool))
        return await explain(store, adapters[0], record.key, record.uid)

    async def denied(request: Request, error: Exception) -> Response:
        assert isinstance(error, Denied)
        return PlainTextResponse(error.line, error.status, {"www-authenticate": 'Basic realm="test"'})

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        for each in (*opened, *adapters):
            await each.close()

    pages = routes(store, access, secret=SECRET, explain=explained if spool else None)
    return Starlette(routes=[Mount(PREFIX, routes=pages)], exception_handlers={Denied: denied}, lifespan=lifespan)


@contextmanager
def served(url: str, spool: Path | None = None) -> Iterator[str]:
    """The pages of a store at the address that is given."""
    config = uvicorn.Config(
        application(url, People(), spool), host="127.0.0.1", port=0, log_level="warning", lifespan="on", ws="none"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            threading.Event().wait(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}{PREFIX}"
    finally:
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive()
