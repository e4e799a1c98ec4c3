"""What a request may do, and who says so.

One rule: every route asks `admit` before it reads a body or the store; there is no other way in. Who is asking is told
by the credential alone: nothing that a request says of itself counts. This room knows no store and no engine.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol
from urllib.parse import urlsplit

from starlette.requests import Request


class Right(Enum):
    """What a request asks for; whoever may do one may do those above it too."""

    READ = "read"
    """Look at records and their histories."""
    ACT = "act"
    """Ask of a job what a person asks: cancel, hold, release, resolve, dispose."""
    STORE = "store"
    """Be a store's user: create records, commit them whole, hold leases, prune. It is the right to launch anything."""


class Denied(Exception):
    """A request that is refused; nothing was read and nothing was written for it."""

    def __init__(self, status: int, line: str, *, login: str = "") -> None:
        super().__init__(line)
        self.status = status
        """401: nobody whom we know; 403: somebody who may not."""
        self.line = line
        """For whoever asked; it repeats no credential."""
        self.login = login
        """Where a person could log in and come back; "" where there is no such place."""


class Access(Protocol):
    """Who may do what. One for each server."""

    async def admit(self, request: Request, right: Right, key: str = "") -> str:
        """The name of who asks, as it is written into a commit ("person ada"); raises Denied.

        `key`: the job that it is about; "" where it is about no one of them, as a list is: whoever may look at any is
        let in to it, and `readable` says what of it is shown.
        """

    async def readable(self, request: Request, keys: frozenset[str]) -> frozenset[str]:
        """Those of these keys whose jobs who asks may look at; raises Denied for nobody whom we know."""


class ReadsAll:
    """For those servers on which whoever may look at one job may look at all."""

    async def readable(self, request: Request, keys: frozenset[str]) -> frozenset[str]:
        return keys


def refuse_other_sites(request: Request) -> None:
    """Refuse what another site made a browser send, with the credentials that the browser adds to it by itself.

    For every request that changes something. A program that is no browser says nothing of this, and passes. Raises
    Denied.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        foreign = site not in ("same-origin", "none")
    else:
        foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("host")
    if foreign:
        raise Denied(403, "this was sent by a page of another site; nothing was done")
