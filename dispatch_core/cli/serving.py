"""`serve`: the store over HTTP, and its pages, on this machine or for others.

One rule: without tokens it answers this machine only and changes nothing; with them, each request is what its token's
line says. What is served is a database, in this one program.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import secrets
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dispatch_core.cli import exits
from dispatch_core.cli.session import Detached, Session, prepare, run
from dispatch_core.errors import BadInput

if TYPE_CHECKING:
    from starlette.applications import Starlette

LEAVING_SECONDS = 5
"""How long requests that are under way may take when the server is told to leave."""

IDLE_SECONDS = 15
"""How long a connection is kept open that nobody uses; clients of dispatch leave it sooner."""

_BIND = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+):(\d{1,5})")


def serve(session: Session, bind: str, token_files: Sequence[Path]) -> int:
    """Serve until a signal comes."""
    host, port = _address(bind)
    if not token_files and not _is_here(host):
        raise BadInput(f"--bind {bind}: without --token-file only this machine is served: 127.0.0.1:8642")
    app = _application(session, token_files)

    async def work() -> None:
        await prepare(session)
        with _listening(host, port) as listening:
            shown = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"

            def told() -> None:
                session.screen.result({"address": shown, "store": _shown(session)})
                sys.stdout.flush()  # whoever started this as a program waits for the address
                session.screen.say(f"serving {_shown(session)} at {shown}; Ctrl-C ends it")
                if not token_files:
                    session.screen.say(
                        "no --token-file: whoever is on this machine may look, and nobody changes anything"
                    )
                elif not _is_here(host):
                    session.screen.say("tokens cross the network as they are: put a proxy that speaks TLS in front")

            await _serve(app, listening, told)

    try:
        run(work())
    except Detached:
        session.screen.say("left; the records are as they were")
    return exits.FINE


def _application(session: Session, token_files: Sequence[Path]) -> Starlette:
    from dispatch_core import client
    from dispatch_core.places import is_served
    from dispatch_core.record import Record
    from dispatch_core.stores.contract import Browsed
    from dispatch_core.stores.sql import open_store

    try:
        import uvicorn  # noqa: F401 - so that it is missed before anything is opened

        from dispatch_core.web import pages
        from dispatch_core.web.access import Access
        from dispatch_core.web.app import application
        from dispatch_core.web.tokens import Onlookers, Tokens
    except ModuleNotFoundError as error:
        raise BadInput(f"serve needs {error.name}: pip install 'dispatch-supervisor[server]'") from error
    if is_served(session.url):
        raise BadInput("--store is a server's address already; serve the database itself")
    access: Access = Tokens(token_files) if token_files else Onlookers()
    secret = secrets.token_bytes(32)

    async def explain(store: Browsed, record: Record) -> client.Explanation:
        async with session.scheduler(record.scheduler) as adapter:
            return await client.explain(store, adapter, record.key, record.uid)

    return application(
        lambda: open_store(session.url),
        access,
        pages=lambda store, may: pages.routes(store, may, secret=secret, explain=explain),
    )


async def _serve(app: Starlette, listening: socket.socket, told: Callable[[], None]) -> None:
    import uvicorn

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # a signal is what ends the command, and that is seen to where all commands see to it

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            told()

    server = Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="on",
            ws="none",
            server_header=False,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=LEAVING_SECONDS,
        )
    )
    serving = asyncio.ensure_future(server.serve(sockets=[listening]))
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        server.should_exit = True
        await serving
        raise


def _address(bind: str) -> tuple[str, int]:
    found = _BIND.fullmatch(bind)
    if found is None or int(found[2]) > 65535:
        raise BadInput(f"--bind {bind!r} is not HOST:PORT, like 127.0.0.1:8642 or [::1]:8642")
    return found[1].strip("[]"), int(found[2])


def _is_here(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens there. Raises BadInput."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # Named, the protocol makes asyncio send what is small at once.
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise BadInput(f"--bind {host}: {error.strerror or error}") from None
    with listening:
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(128)
        except OSError as error:
            raise BadInput(f"--bind {host}:{port} cannot be listened on: {error.strerror or error}") from None
        yield listening


def _shown(session: Session) -> str:
    """The store as a person would name it, without a password."""
    from sqlalchemy import make_url

    return make_url(session.url).set(query={}).render_as_string(hide_password=True)
