"""Who may do what on `dispatch serve`: tokens from files, or, without any, whoever is on this machine and only looks.

One rule: a token is kept as its digest alone, and a file that others could read or write is not read. Without tokens
nothing may be changed, and only a request that names this machine itself is answered: a page of another site can make
a browser ask, but not under that name.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from starlette.requests import Request

from dispatch_core.errors import BadInput
from dispatch_core.places import private_text
from dispatch_core.web.access import Denied, ReadsAll, Right

SHORTEST = 16
"""Characters of a token; `openssl rand -hex 24` makes one."""

HERE = frozenset({"127.0.0.1", "localhost", "::1"})

_ORDER = (Right.READ, Right.ACT, Right.STORE)
_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")


class Tokens(ReadsAll):
    """Who has a token may do what its line says, and all that is less."""

    def __init__(self, files: Iterable[Path]) -> None:
        """Raises BadInput, which repeats no token."""
        self._known: dict[bytes, tuple[Right, str]] = {}
        for file in files:
            for number, line in enumerate(private_text(file, "the token file").splitlines(), 1):
                if line.strip() and not line.lstrip().startswith("#"):
                    self._add(f"{file}:{number}", line.split())
        if not self._known:
            raise BadInput(
                "the token files hold no token: write lines like `read ann TOKEN`; right is read, act, store"
            )

    async def admit(self, request: Request, right: Right, key: str = "") -> str:
        """The name of who has the token. Raises Denied."""
        token = _shown(request)
        if token is None:
            raise Denied(401, "this server wants a token")
        known = self._known.get(_digest(token))
        if known is None:
            raise Denied(401, "this server does not know this token")
        may, name = known
        if _ORDER.index(may) < _ORDER.index(right):
            raise Denied(403, f"the token of {name} may {may.value} and not {right.value}; nothing was done")
        return f"person {name}"

    def _add(self, where: str, words: list[str]) -> None:
        if len(words) != 3 or words[0] not in [right.value for right in _ORDER]:
            raise BadInput(f"{where}: a line is `right name token`, and right is read, act or store")
        right, name, token = words
        if not _NAME.fullmatch(name):
            raise BadInput(f"{where}: a name has letters, digits and _.@- only, 64 at most")
        if len(token) < SHORTEST:
            raise BadInput(f"{where}: the token of {name} is shorter than {SHORTEST} characters, and could be guessed")
        if _digest(token) in self._known:
            raise BadInput(f"{where}: the token of {name} is given twice")
        self._known[_digest(token)] = (Right(right), name)


class Onlookers(ReadsAll):
    """Without tokens: whoever is on this machine may look, and nobody may do anything."""

    async def admit(self, request: Request, right: Right, key: str = "") -> str:
        if urlsplit(f"//{request.headers.get('host', '')}").hostname not in HERE:
            raise Denied(403, "without tokens this server answers to the name of this machine only, like 127.0.0.1")
        if right is not Right.READ:
            raise Denied(403, "this server was started without --token-file: it shows, and changes nothing")
        return "person somebody"


def _shown(request: Request) -> str | None:
    """The token of a program, or the password that a browser asked its user for."""
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return None
    return None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
