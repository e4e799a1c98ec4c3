"""One connection to an API server: requests that are bounded, and streams.

One rule: whether a request can have had an effect is always known. `NotSent` says that it was never written; anything
else that broke is `Lost`, and may have been carried out; so is a success that no API server has told. The library reads
configuration and credentials and opens the connection; it decides nothing. Below it, aiohttp sends a GET or a DELETE
once more where a connection that it had kept was closed under it, and neither a POST nor a PATCH; so a call, of which
each copy counts, is one of these.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from dispatch_core.adapters.kubernetes.cluster import KubernetesCluster
from dispatch_core.adapters.kubernetes.hostclock import HostClock
from dispatch_core.adapters.shared import closed
from dispatch_core.errors import BadInput, DispatchError

if TYPE_CHECKING:
    import aiohttp

JSON, JSON_PATCH = "application/json", "application/json-patch+json"
LOGIN_SECONDS = 30.0
"""A program that gets a token may hang; whoever asks next starts another."""
LARGEST_LINE = 2**24
"""Bytes of one event of a watch; etcd keeps no object of more than 1.5 MiB."""


class NotSent(DispatchError):
    """The request never left: nothing happened."""


class Lost(DispatchError):
    """No answer came: it may have happened."""


class Answered(NamedTuple):
    """What the server answered."""

    status: int
    body: dict[str, Any]
    """{} where it is no JSON object."""
    retry_after: float = 0.0

    @property
    def well(self) -> bool:
        return 200 <= self.status < 300

    @property
    def message(self) -> str:
        return " ".join(str(self.body.get("message") or f"HTTP {self.status}").split())[:500]

    @property
    def reason(self) -> str:
        return str(self.body.get("reason") or "")


class Api:
    """The API server of one cluster."""

    def __init__(self, cluster: KubernetesCluster) -> None:
        """Raises BadInput where the library is missing."""
        try:
            import kubernetes_asyncio  # noqa: F401 - an extra, and seconds to import
        except ModuleNotFoundError as error:
            raise BadInput(
                f"cluster {cluster.name}: Kubernetes needs {error.name}: pip install 'dispatch-supervisor[kubernetes]'"
            ) from error
        self.clock = HostClock()
        self._cluster = cluster
        self._current: _Connection | None = None
        self._connections: set[_Connection] = set()
        """The current one, and those that a stream or a request still uses."""
        self._opening = asyncio.Lock()
        self._was_open = False
        self._closed = False

    async def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
        *,
        seconds: float,
        content: str = JSON,
    ) -> Answered:
        """One request, given up after so many seconds: nothing is written to the connection later than that. Raises
        NotSent, Lost and BadInput."""
        began = time.monotonic()
        answered, connection = await self._once(method, path, query, body, seconds, content)
        left = seconds - (time.monotonic() - began)
        if answered.status == 401 and left > 0:  # an expired token: nothing happened, and the next one may be good
            await self._retire(connection)
            answered, _ = await self._once(method, path, query, body, left, content)
        return answered

    async def _once(
        self, method: str, path: str, query: Mapping[str, str] | None, body: object, seconds: float, content: str
    ) -> tuple[Answered, _Connection]:
        import aiohttp

        data = None if body is None else msgspec.json.encode(body)
        sent: float | None = None
        try:
            async with asyncio.timeout(seconds), self._connected() as connection:
                sent = time.monotonic()
                async with connection.session.request(
                    method,
                    connection.url(path),
                    params=dict(query or {}),
                    data=data,
                    headers={
                        **connection.headers,
                        "Accept": JSON,
                        **({"Content-Type": content} if data is not None else {}),
                    },
                    allow_redirects=False,
                    **connection.proxied,
                ) as response:
                    text = await response.read()
        except aiohttp.ClientConnectorError as error:
            raise NotSent(f"{self._cluster.name} cannot be reached: {_line(error)}") from error
        except TimeoutError:
            broke = NotSent if sent is None else Lost
            raise broke(f"{self._cluster.name} has not answered within {seconds:.1f} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Lost(f"the connection to {self._cluster.name} broke: {_line(error)}") from error
        told = _object(text)
        if _is_by_the_server(told):
            self.clock.heard(response.headers.get("Date", ""), sent, time.monotonic())
        elif 200 <= response.status < 300:
            raise Lost(f"something before {self._cluster.name} has answered in its place: {_shortly(text)}")
        wait = _retry_after(response.headers.get("Retry-After", ""))
        return Answered(response.status, told, wait), connection

    async def lines(self, path: str, query: Mapping[str, str], silent_seconds: float) -> AsyncIterator[bytes]:
        """The lines of a stream, until it ends. Raises Lost where it breaks, or is silent for so long; a refusal is
        one line, its body."""
        import aiohttp

        try:
            async with (
                self._connected() as connection,
                connection.session.get(
                    connection.url(path),
                    params=dict(query),
                    headers={**connection.headers, "Accept": JSON},
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=silent_seconds),
                    **connection.proxied,
                ) as response,
            ):
                rest = b""
                async for chunk in response.content.iter_any():
                    *whole, rest = (rest + chunk).split(b"\n")
                    for line in whole:
                        yield line
                    if len(rest) > LARGEST_LINE:
                        raise Lost(f"{self._cluster.name} sent a line of more than {LARGEST_LINE} bytes")
                if rest:
                    yield rest
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Lost(f"a stream from {self._cluster.name} broke: {_line(error)}") from error

    async def read(self, path: str, query: Mapping[str, str], seconds: float) -> tuple[int, bytes]:
        """Status and body of what is no JSON, such as a log. Raises NotSent and Lost."""
        import aiohttp

        try:
            async with (
                asyncio.timeout(seconds),
                self._connected() as connection,
                connection.session.get(
                    connection.url(path), params=dict(query), headers=connection.headers, **connection.proxied
                ) as response,
            ):
                return response.status, await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Lost(f"{self._cluster.name} has not answered: {_line(error)}") from error

    # --- the connection

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[_Connection]:
        """The connection, with what lets a request in. Raises NotSent; before it was ever open, BadInput."""
        async with self._opening:
            if self._closed:
                raise closed()
            if self._current is None:
                self._current = await self._opened()
                self._connections.add(self._current)
            connection = self._current
            connection.uses += 1
        try:
            await connection.authorize()
            if self._closed:
                raise closed()
            yield connection
        finally:
            connection.uses -= 1
            await self._let_go(connection)

    async def _opened(self) -> _Connection:
        """What could be read before can be read again: that a login fails now is an outage."""
        try:
            async with asyncio.timeout(LOGIN_SECONDS):
                connection = _Connection(await _open(self._cluster))
        except TimeoutError:
            raise NotSent(f"{self._cluster.name}: no login within {LOGIN_SECONDS:g} s") from None
        except BadInput as error:
            if self._was_open:
                raise NotSent(str(error)) from error
            raise
        self._was_open = True
        return connection

    async def _retire(self, connection: _Connection) -> None:
        """Read configuration and credentials anew before the next request; what is under way goes on."""
        if self._current is connection:
            self._current = None
        await self._let_go(connection)

    async def _let_go(self, connection: _Connection) -> None:
        if connection is not self._current and not connection.uses and connection in self._connections:
            self._connections.remove(connection)
            await connection.client.close()

    async def close(self) -> None:
        self._closed = True
        async with self._opening:
            connections, self._current = list(self._connections), None
            self._connections.clear()
        for connection in connections:
            await connection.client.close()


class _Connection:
    """The library's client, and how many requests use it."""

    def __init__(self, client: Any) -> None:
        self.client, self.uses = client, 0
        self.headers: dict[str, str] = {}
        """What each request carries to be let in."""

    @property
    def session(self) -> aiohttp.ClientSession:
        session: aiohttp.ClientSession = self.client.rest_client.pool_manager
        return session

    @property
    def proxied(self) -> dict[str, Any]:
        rest = self.client.rest_client
        told = {"proxy": rest.proxy, "proxy_headers": rest.proxy_headers, "server_hostname": rest.server_hostname}
        return {name: value for name, value in told.items() if value is not None}

    def url(self, path: str) -> str:
        return str(self.client.configuration.host).rstrip("/") + path

    async def authorize(self) -> None:
        """Have the library read a token file again, or log in anew, where it is time. Raises NotSent."""
        import aiohttp
        from kubernetes_asyncio import config

        headers: dict[str, str] = {}
        try:
            await self.client.update_params_for_auth(headers, [], ["BearerToken"])
        except (config.ConfigException, aiohttp.ClientError, OSError, ValueError, KeyError, TypeError) as error:
            raise NotSent(f"its credentials cannot be read: {_line(error)}") from error
        self.headers = headers


async def _open(cluster: KubernetesCluster) -> Any:
    """The library's client, as the kubeconfig or the pod's service account has it. Raises BadInput."""
    import os

    from kubernetes_asyncio import client, config

    told = client.Configuration()
    try:
        if cluster.kubeconfig is None and cluster.context is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config(client_configuration=told)  # type: ignore[no-untyped-call]
        else:
            await config.load_kube_config(
                config_file=cluster.kubeconfig,
                context=cluster.context,
                client_configuration=told,
                persist_config=False,
            )
    except (config.ConfigException, OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"cluster {cluster.name}: its kubeconfig cannot be used: {_line(error)}") from error
    return client.ApiClient(told)


def _is_by_the_server(told: Mapping[str, Any]) -> bool:
    """Whether this is how an API server speaks: each of its objects has a kind, but for its release."""
    return "kind" in told or "gitVersion" in told


def _shortly(text: bytes) -> str:
    return " ".join(text[:100].decode(errors="replace").split())


def _object(text: bytes) -> dict[str, Any]:
    try:
        told = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {"message": text[:300].decode(errors="replace")} if text else {}
    return told if isinstance(told, dict) else {}


def _retry_after(told: str) -> float:
    return float(told) if told.isdecimal() else 0.0


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
