"""The Prefect server with the store beside it: `uvicorn --factory prefect_collection.server:create_app`.

One rule: Prefect's own application is served as Prefect makes it, and nothing in it is changed; what begins with
`/dispatch` is answered before it. `prefect server start` knows no other application than its own, so this is started
in its place. The records are in the server's own database, once `python -m prefect_collection.setup` was run. Who may
do what is said by token files, as for `dispatch serve`; Prefect's own password opens nothing here.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from prefect.server.api import server
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route

from dispatch_core.stores.sql import SqlStore, open_store
from dispatch_core.web import pages
from dispatch_core.web.access import Access
from dispatch_core.web.app import application
from dispatch_core.web.tokens import Onlookers, Tokens
from prefect_collection.server_database import server_schema, server_url

PREFIX = "/dispatch"

TOKEN_FILES = "DISPATCH_TOKEN_FILES"  # noqa: S105 - the name of a variable
"""The variable with the token files, separated by colons. Without it whoever is on this machine may look, and nobody
changes anything."""

SCHEMA = "DISPATCH_SCHEMA"
"""The variable with the PostgreSQL schema that holds the tables, where it is another one than `dispatch`."""


def create_app() -> Starlette:
    """Prefect's application and the store's. Raises BadInput for token files that cannot be used, and StoreUnavailable
    where Prefect's settings name no database."""
    url = server_url()
    schema = server_schema(url, os.environ.get(SCHEMA))
    files = [Path(file).expanduser() for file in os.environ.get(TOKEN_FILES, "").split(":") if file]
    access: Access = Tokens(files) if files else Onlookers()
    # The same in every worker of one server.
    known = b"".join(file.read_bytes() for file in files)
    secret = hmac.digest(known, b"forms of dispatch", "sha256") if known else secrets.token_bytes(32)

    def opened() -> SqlStore:
        return open_store(url, schema=schema)

    ours = application(opened, access, pages=lambda store, may: pages.routes(store, may, secret=secret))
    prefect = server.create_app()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        # What is mounted is not told of the beginning and the end by itself.
        async with prefect.router.lifespan_context(prefect), ours.router.lifespan_context(ours):
            yield

    async def home(request: Request) -> Response:
        return RedirectResponse(f"{PREFIX.lstrip('/')}/")

    return Starlette(routes=[Route(PREFIX, home), Mount(PREFIX, ours), Mount("", prefect)], lifespan=lifespan)
