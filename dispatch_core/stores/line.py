"""One line to a server that keeps records: a request is sent until it is answered.

One rule: whether a request that was not answered was carried out is never assumed either way: it is in doubt until the
same request is answered, and whoever asked is told so. Every call is bounded in time; the token is in the request's
header and nowhere else: in no error, no repr and no log.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import httpx
import msgspec

from dispatch_core.errors import BadInput, CommitUnknown, DispatchError, StoreUnavailable
from dispatch_core.stores import messages
from dispatch_core.stores.messages import LARGEST_BYTES, MARK, PREFIX, PROTOCOL, Refusal

PAUSES = (0.05, 0.2, 0.8)
"""Seconds between the four tries of a request."""

CONNECT_SECONDS = 10.0
TRY_SECONDS = 30.0
"""The longest for one try, from waiting for a connection to the last byte of the answer."""

IDLE_SECONDS = 4.0
"""A connection is not used again after so long: servers close what is idle, and what is sent on it then is in doubt."""

CONNECTIONS = 10

_IN_DOUBT = frozenset({408, 500, 502, 503, 504})
"""What is said where nobody knows what has become of a request; a proxy says so too."""

_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)

T = TypeVar("T")


class Credential(Protocol):
    """What shows a server who asks."""

    async def header(self, client: httpx.AsyncClient) -> str | None:
        """The Authorization header; None: there is none. Raises StoreUnavailable where it cannot be had now."""

    def refused(self) -> bool:
        """The server did not know it; whether another one may be had by asking again."""


class Token:
    """One token, as it was given, or none; it never shows itself."""

    def __init__(self, token: str | None) -> None:
        if token is not None and not (token.isascii() and token.isprintable() and token and " " not in token):
            raise BadInput(
                "the token for the store is empty, or holds what no token has: spaces, or letters that no"
                " header can carry"
            )
        self._token = token

    def __repr__(self) -> str:
        return "Token(...)"

    async def header(self, client: httpx.AsyncClient) -> str | None:
        return None if self._token is None else f"Bearer {self._token}"

    def refused(self) -> bool:
        return False


@dataclass(frozen=True)
class Question:
    """One request."""

    method: str
    path: str
    body: object = None
    named: Mapping[str, str] = field(default_factory=dict)
    """The parameters in its address."""
    headers: Mapping[str, str] = field(default_factory=dict)
    seconds: float | None = None
    """The longest for one try; None: as long as any may take."""


@dataclass(frozen=True)
class Lost:
    """A try that came to nothing."""

    failure: StoreUnavailable
    in_doubt: bool = False
    """It may have been carried out."""
    again: bool = True


def read_url(url: str) -> str:
    """The address of a server, without a slash at its end. Raises BadInput, which repeats nothing secret."""
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, UnicodeError):
        raise BadInput("the store's URL cannot be read; write it like https://host/dispatch") from None
    if parsed.userinfo:
        raise BadInput("the store's URL holds a name or a password, which would show in lists and logs; leave it out")
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.fragment:
        raise BadInput("the store's URL is not an address like https://host/dispatch, without ? and #")
    return str(parsed).rstrip("/")


class Line:
    """A way to one server, in one event loop. Used again after `close`, it is open again."""

    def __init__(self, url: str, credential: Credential) -> None:
        self.url = read_url(url)
        self._credential = credential
        self._client: httpx.AsyncClient | None = None

    def __repr__(self) -> str:
        return f"Line({self.url!r})"

    async def ask(self, question: Question, unknown: CommitUnknown | None = None) -> httpx.Response:
        """Send a request until it is answered, four times at most.

        Raises what the server refused it with. Where it was not answered: `unknown`, if that is given and it may have
        been carried out, else StoreUnavailable.
        """
        content = _content(question.body)
        pauses = iter(PAUSES)
        in_doubt = False
        while True:
            try:
                tried = await self._try(question, content)
            except StoreUnavailable as error:
                # It says that nothing was written by this try, and nothing of an earlier one.
                raise (unknown if unknown is not None and in_doubt else error) from None
            if isinstance(tried, httpx.Response):
                return tried
            in_doubt = in_doubt or tried.in_doubt
            pause = next(pauses, None) if tried.again else None
            if pause is None:
                raise (unknown if unknown is not None and in_doubt else tried.failure) from None
            await asyncio.sleep(pause)

    async def decoded(self, question: Question, kind: type[T]) -> T:
        """As `ask`, with the answer as such a value."""
        answer = await self.ask(question)
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise StoreUnavailable(
                f"the store {self.url} answered what this version of dispatch cannot read: {error}; install the same"
                " release on both sides"
            ) from error

    async def close(self) -> None:
        """End the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _try(self, question: Question, content: bytes | None) -> httpx.Response | Lost:
        """One try, with another credential where the first is not known any more."""
        answer = await self._send(question, content)
        if isinstance(answer, httpx.Response) and answer.status_code == 401 and self._credential.refused():
            answer = await self._send(question, content)
        return answer if isinstance(answer, Lost) else self._judged(answer)

    async def _send(self, question: Question, content: bytes | None) -> httpx.Response | Lost:
        client = self._opened()
        seconds = question.seconds or TRY_SECONDS
        try:
            async with asyncio.timeout(seconds):
                shown = await self._credential.header(client)
                headers = {**question.headers, **({"authorization": shown} if shown else {})}
                if content is not None:
                    headers["content-type"] = "application/json"
                return await client.request(
                    question.method,
                    self.url + PREFIX + question.path,
                    params=question.named or None,
                    content=content,
                    headers=headers,
                    timeout=httpx.Timeout(seconds, connect=CONNECT_SECONDS),
                )
        except _NOT_SENT as error:
            return Lost(self._silent(error))
        except (httpx.HTTPError, OSError) as error:  # a TimeoutError is an OSError
            return Lost(self._silent(error), in_doubt=True)

    def _judged(self, answer: httpx.Response) -> httpx.Response | Lost:
        """The answer, or what it means that it is none; raises what the server refused the request with."""
        ours = answer.headers.get(MARK) == PROTOCOL
        if ours and answer.is_success:
            return answer
        if ours:
            raise self._refused(answer)
        in_doubt = answer.status_code in _IN_DOUBT
        failure = StoreUnavailable(
            f"the store {self.url} did not answer: what did says {answer.status_code}, and is not dispatch; is that the"
            " address that it is served at?"
        )
        return Lost(failure, in_doubt=in_doubt, again=in_doubt)

    def _refused(self, answer: httpx.Response) -> DispatchError:
        try:
            refusal = msgspec.json.decode(answer.content, type=Refusal)
        except (msgspec.ValidationError, msgspec.DecodeError):
            return StoreUnavailable(f"the store {self.url} refused, with {answer.status_code} and no reason")
        known = messages.raised(refusal)
        return known or StoreUnavailable(f"the store {self.url} refused: {refusal.text}")

    def _silent(self, error: BaseException) -> StoreUnavailable:
        text = " ".join(str(error).split()) or type(error).__name__
        return StoreUnavailable(f"the store {self.url} did not answer: {text}; nothing is decided until it does")

    def _opened(self) -> httpx.AsyncClient:
        if self._client is None:
            limits = httpx.Limits(
                max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS, keepalive_expiry=IDLE_SECONDS
            )
            # Reading every authority's certificate takes longer than a hundred requests; http:// needs none.
            verify = True if self.url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self._client = httpx.AsyncClient(limits=limits, follow_redirects=False, verify=verify)
        return self._client


def _content(body: object) -> bytes | None:
    """The body on the line. Raises BadInput for what no server takes."""
    if body is None:
        return None
    try:
        content = msgspec.json.encode(body)
    except UnicodeEncodeError as error:
        raise BadInput(f"nothing was sent to the store, as it is not text: {error}") from error
    if len(content) > LARGEST_BYTES:
        raise BadInput(
            f"nothing was sent to the store: {len(content)} bytes, and a store over HTTP takes {LARGEST_BYTES} at most;"
            " use one on the database itself"
        )
    return content
