"""Forms that only these pages can have sent: a token of the browser's own session, and a bounded, strict reading.

One rule: a form counts only if it carries the token that was made for this browser and for who is asking; the cookie
alone, or a request that another site made the browser send, changes nothing. Nothing is kept on the server.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response

from dispatch_core.errors import BadInput
from dispatch_core.web.access import Denied, refuse_other_sites

COOKIE = "dispatch_form"
LARGEST_BYTES = 65_536
MOST_FIELDS = 20
KIND = "application/x-www-form-urlencoded"

_NONCE = re.compile(r"[0-9a-f]{32}")


class Forms:
    """Makes and checks the tokens of one server; `secret` is the same in each of its workers."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def nonce(self, request: Request) -> str:
        """What this browser's session is known by, or a new one."""
        known = request.cookies.get(COOKIE, "")
        return known if _NONCE.fullmatch(known) else secrets.token_hex(16)

    def token(self, nonce: str, who: str) -> str:
        """What a form carries for this session and this person."""
        return hmac.new(self._secret, f"{nonce} {who}".encode(), hashlib.sha256).hexdigest()

    def remember(self, request: Request, response: Response, nonce: str) -> None:
        """Give the browser its session's name, for these pages alone."""
        if request.cookies.get(COOKIE) != nonce:
            response.set_cookie(
                COOKIE,
                nonce,
                path=request.scope.get("root_path", "") or "/",
                httponly=True,
                samesite="lax",
                secure=request.url.scheme == "https",
            )

    def check(self, request: Request, fields: dict[str, str], who: str) -> None:
        """Raises Denied for a form that was not made for this browser and this person."""
        refuse_other_sites(request)
        nonce = request.cookies.get(COOKIE, "")
        made = self.token(nonce, who) if _NONCE.fullmatch(nonce) else ""
        if not made or not hmac.compare_digest(made.encode(), fields.get("token", "").encode()):
            raise Denied(403, "this form was not made for you here, or long ago: nothing was done; look again")


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form, each given once. Raises BadInput."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != KIND:
        raise BadInput(f"the body is not {KIND}; nothing was done")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > LARGEST_BYTES:
            raise BadInput(f"the form is longer than {LARGEST_BYTES} bytes; nothing was done")
    try:
        pairs = parse_qsl(bytes(body).decode("ascii"), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise BadInput("the form cannot be read; nothing was done") from None
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise BadInput("the form has a field twice; nothing was done")
    return fields
