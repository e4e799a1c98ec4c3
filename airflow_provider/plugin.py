"""The plugin of Airflow's API server: the store over HTTP and the pages, at `/dispatch`.

One rule: Airflow imports this in every process that loads plugins, so nothing is made before the first request. The
records are read and written on Airflow's own database engine; it is never closed from here. Airflow finds the plugin by
the entry point group `airflow.plugins`, and mounts it where the core API is: not on a server of `--apps execution`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin

from airflow_provider.links import PREFIX, external_views

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from dispatch_core.stores.sql import SqlStore

Message = MutableMapping[str, Any]


class Lazy:
    """An ASGI application that is made by its first request."""

    def __init__(self, make: Callable[[], Starlette]) -> None:
        self._make = make
        self._made: Starlette | None = None

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        if self._made is None:
            self._made = self._make()
        await self._made(scope, receive, send)


def make_application() -> Starlette:
    """The routes of the store and the pages, with Airflow's users and Airflow's database."""
    from airflow_provider import views
    from airflow_provider.authorization import AuthManagerAccess
    from dispatch_core.web import pages
    from dispatch_core.web.app import application

    secret = hmac.digest(conf.get_mandatory_value("api", "secret_key").encode(), b"forms of dispatch", hashlib.sha256)
    return application(
        open_metadata_store,
        AuthManagerAccess(),
        pages=lambda store, access: [*views.routes(store, access), *pages.routes(store, access, secret=secret)],
    )


def open_metadata_store() -> SqlStore:
    """The store in Airflow's metadata database; who asks for it does not close it. Raises StoreUnavailable."""
    from airflow import settings

    from dispatch_core.errors import StoreUnavailable
    from dispatch_core.stores.engine import make_engine
    from dispatch_core.stores.sql import SqlStore

    engine = settings.async_engine
    if engine is None:
        raise StoreUnavailable(
            "Airflow has no asynchronous engine for its database here: [database] sql_alchemy_conn_async"
        )
    if engine.dialect.name == "sqlite":
        # SQLite has to be told on each connection how to keep what it commits, and Airflow's own are not.
        return SqlStore(make_engine(f"sqlite:///{engine.url.database}"))
    return SqlStore(engine.execution_options(isolation_level="READ COMMITTED"))


class DispatchPlugin(AirflowPlugin):
    """What Airflow is told of."""

    name = "dispatch"
    fastapi_apps = [{"app": Lazy(make_application), "url_prefix": PREFIX, "name": "dispatch"}]  # noqa: RUF012
    external_views = external_views()
