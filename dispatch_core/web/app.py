"""The application: the store's routes and, where they are given, the pages, on one store.

One rule: the store is opened by the first request that needs it, in the loop that serves it, and closed by the lifespan
where there is one; so that the same application is a server of its own, or a part of another that runs no lifespan.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute

from dispatch_core.errors import DispatchError
from dispatch_core.stores.contract import Store
from dispatch_core.stores.messages import told
from dispatch_core.web import api
from dispatch_core.web.access import Access, Denied

Opened = TypeVar("Opened", bound=Store)

Pages = Callable[[Callable[[], Opened], Access], Sequence[BaseRoute]]
"""The routes of the pages, on the one open store, which they do not close."""


def application(open_store: Callable[[], Opened], access: Access, *, pages: Pages[Opened] | None = None) -> Starlette:
    """An ASGI application. `open_store` is called once; what it raises is told to whoever asked, and tried again."""
    opened: list[Opened] = []

    def store() -> Opened:
        if not opened:
            opened.append(open_store())
        return opened[0]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        while opened:
            await opened.pop().close()

    return Starlette(
        routes=[*api.routes(store, access), *(pages(store, access) if pages else ())],
        lifespan=lifespan,
        exception_handlers={Denied: _denied, DispatchError: _failed},
    )


async def _denied(request: Request, error: Exception) -> Response:
    """What a person gets who may not: where there is a place to log in, the way there."""
    assert isinstance(error, Denied)  # noqa: S101 - Starlette gives each what it is registered for
    if error.status == 401 and error.login and request.method == "GET":
        return RedirectResponse(error.login, 303)
    headers = {"www-authenticate": 'Basic realm="dispatch"'} if error.status == 401 and not error.login else None
    return PlainTextResponse(f"{error.line}\n", error.status, headers)


async def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, DispatchError)  # noqa: S101 - as above
    status, refusal = told(error)
    return PlainTextResponse(f"{refusal.text}\n", status)
