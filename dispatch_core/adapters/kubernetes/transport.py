"""One connection to an API server: requests that are bounded, and streams.

One rule: whether a request can have had an effect is always known. `NotSent` says that it was never written; anything
else that broke is `Lost`, and may have been carried out. The library reads configuration and credentials and opens the
connection; it decides nothing. Below it, aiohttp sends a GET or a DELETE once more where a connection that it had kept
was closed under it, and neither a POST nor a PATCH; so a call, of which each copy counts, is one of these.
"""

from __future__ import annotations

import asyncio
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
        self._client: Any = None
        self._opening = asyncio.Lock()
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
        answered = await self._once(method, path, query, body, seconds, content)
        left = seconds - (time.monotonic() - began)
        if answered.status == 401 and left > 0:  # an expired token: nothing happened, and the next one may be good
            await self._forget()
            answered = await self._once(method, path, query, body, left, content)
        return answered

    async def _once(
        self, method: str, path: str, query: Mapping[str, str] | None, body: object, seconds: float, content: str
    ) -> Answered:
        import aiohttp

        data = None if body is None else msgspec.json.encode(body)
        sent = time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                client, headers = await self._ready()
                sent = time.monotonic()
                async with self._session(client).request(
                    method,
                    client.configuration.host.rstrip("/") + path,
                    params=dict(query or {}),
                    data=data,
                    headers={**headers, "Accept": JSON, **({"Content-Type": content} if data is not None else {})},
                    allow_redirects=False,
                    **self._proxied(client),
                ) as response:
                    text = await response.read()
        except aiohttp.ClientConnectorError as error:
            raise NotSent(f"{self._cluster.name} cannot be reached: {_line(error)}") from error
        except TimeoutError:
            raise Lost(f"{self._cluster.name} has not answered within {seconds:.1f} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Lost(f"the connection to {self._cluster.name} broke: {_line(error)}") from error
        self.clock.heard(response.headers.get("Date", ""), sent, time.monotonic())
        return Answered(response.status, _object(text), _retry_after(response.headers.get("Retry-After", "")))

    async def lines(self, path: str, query: Mapping[str, str], silent_seconds: float) -> AsyncIterator[bytes]:
        """The lines of a stream, until it ends. Raises Lost where it breaks, or is silent for so long; a refusal is
        one line, its body."""
        import aiohttp

        try:
            client, headers = await self._ready()
            async with self._session(client).get(
                client.configuration.host.rstrip("/") + path,
                params=dict(query),
                headers={**headers, "Accept": JSON},
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=silent_seconds),
                **self._proxied(client),
            ) as response:
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
            async with asyncio.timeout(seconds):
                client, headers = await self._ready()
                url = client.configuration.host.rstrip("/") + path
                async with self._session(client).get(
                    url, params=dict(query), headers=headers, **self._proxied(client)
                ) as response:
                    return response.status, await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Lost(f"{self._cluster.name} has not answered: {_line(error)}") from error

    # --- the connection

    def _session(self, client: Any) -> aiohttp.ClientSession:
        session: aiohttp.ClientSession = client.rest_client.pool_manager
        return session

    def _proxied(self, client: Any) -> dict[str, Any]:
        rest = client.rest_client
        told = {"proxy": rest.proxy, "proxy_headers": rest.proxy_headers, "server_hostname": rest.server_hostname}
        return {name: value for name, value in told.items() if value is not None}

    async def _ready(self) -> tuple[Any, dict[str, str]]:
        """The library's client, and what each request carries to be let in."""
        async with self._opening:
            if self._closed:
                raise closed()
            if self._client is None:
                self._client = await _open(self._cluster)
            client = self._client
        headers: dict[str, str] = {}
        await client.update_params_for_auth(headers, [], ["BearerToken"])
        return client, headers

    async def _forget(self) -> None:
        """Read configuration and credentials anew before the next request."""
        async with self._opening:
            client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def close(self) -> None:
        self._closed = True
        await self._forget()


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
