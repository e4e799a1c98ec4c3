"""A store over HTTP: a real uvicorn on loopback, in front of one of the databases of the conformance suite."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.requests import Request

from dispatch_core.stores.contract import Store
from dispatch_core.stores.http import HttpStore
from dispatch_core.stores.line import Token
from dispatch_core.web.access import Denied, ReadsAll, Right
from dispatch_core.web.app import application
from tests.stores.databases import OnPostgres, OnSqlite
from tests.stores.proxy import HttpProxy, Moment, nothing

TOKEN = "a-token-of-the-tests"


class OneToken(ReadsAll):
    """Who has the one token may do everything."""

    async def admit(self, request: Request, right: Right, key: str = "") -> str:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            raise Denied(401, "who are you?")
        return "person ada"


class Served(uvicorn.Server):
    """One server in the test's own event loop."""

    def __init__(self, open_store: Callable[[], Store]) -> None:
        app = application(open_store, OneToken())
        super().__init__(uvicorn.Config(app, log_config=None, access_log=False, lifespan="on"))
        # Named, the protocol makes asyncio send what is small at once, as it does for sockets that it makes itself.
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self.socket.bind(("127.0.0.1", 0))
        self.port = int(self.socket.getsockname()[1])

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def begin(self) -> None:
        self._serving = asyncio.create_task(self.serve(sockets=[self.socket]))
        async with asyncio.timeout(30):
            while not self.started:
                await asyncio.sleep(0.005)

    async def end(self) -> None:
        self.should_exit = True
        await self._serving


class OnHttp:
    """The records of another database, asked for over HTTP; each store has a server of its own."""

    def __init__(self, behind: OnSqlite | OnPostgres) -> None:
        self.behind = behind
        self._servers: list[Served] = []
        self._stores: list[HttpStore] = []
        self._proxies: list[HttpProxy] = []

    async def open(self) -> HttpStore:
        return self._store((await self._serve()).port)

    async def open_breakable(self) -> HttpStore:
        proxy = HttpProxy("127.0.0.1", (await self._serve()).port, b"")
        self._proxies.append(proxy)
        return self._store(await proxy.start())

    async def _serve(self) -> Served:
        behind = await self.behind.open()
        server = Served(lambda: behind)
        await server.begin()
        self._servers.append(server)
        return server

    def _store(self, port: int) -> HttpStore:
        store = HttpStore(f"http://127.0.0.1:{port}", Token(TOKEN))
        self._stores.append(store)
        return store

    @property
    def proxy(self) -> HttpProxy:
        return self._proxies[-1]

    @property
    def broken(self) -> int:
        return self.proxy.broken

    def break_commit(self, moment: Moment, then: Callable[[], Awaitable[None]] = nothing) -> None:
        """Break the line at the next request."""
        self.proxy.break_commit(moment, then)

    async def cut_off(self) -> None:
        await self.proxy.go_away()

    async def restore(self) -> None:
        await self.proxy.come_back()

    async def document(self, uid: str) -> bytes:
        return await self.behind.document(uid)

    async def overwrite(self, uid: str, document: str) -> None:
        await self.behind.overwrite(uid, document)

    async def wait(self, seconds: float) -> None:
        await self.behind.wait(seconds)

    async def end(self) -> None:
        for store in self._stores:
            await store.close()
        for proxy in self._proxies:
            await proxy.stop()
        for server in self._servers:
            await server.end()
