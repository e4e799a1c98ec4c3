"""What reaches a server, and how often: requests on connections that were kept, and closed meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dispatch_core.adapters.kubernetes.cluster import KubernetesCluster
from dispatch_core.adapters.kubernetes.transport import JSON_PATCH, Api, Lost, NotSent
from tests.kubernetes.rig import kubeconfig

ANSWER = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 17\r\n\r\n{"kind":"Status"}'


class Closing:
    """A server that answers the first request on each connection, and closes it at the second, without a word."""

    def __init__(self) -> None:
        self.methods: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            for answered in (True, False):
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.methods.append(head.split(" ", 1)[0])
                length = next((line.split(":")[1] for line in head.split("\r\n") if "Content-Length" in line), "0")
                await reader.readexactly(int(length))
                if answered:
                    writer.write(ANSWER)
                    await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def closing(folder: Path) -> AsyncIterator[tuple[Closing, Api]]:
    behaviour = Closing()
    server = await asyncio.start_server(behaviour.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    api = Api(KubernetesCluster(name="test", kubeconfig=str(kubeconfig(url, folder))))
    try:
        yield behaviour, api
    finally:
        await api.close()
        server.close()


@pytest.mark.promise("G5")
@pytest.mark.promise("L1")
@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_a_call_on_a_kept_connection_that_breaks_is_sent_once(tmp_path: Path, method: str) -> None:
    async with closing(tmp_path) as (server, api):
        assert (await api.request("GET", "/version", seconds=5.0)).well
        with pytest.raises(Lost):
            await api.request(method, "/apis/x", {}, [], seconds=5.0, content=JSON_PATCH)
        assert server.methods == ["GET", method]


async def test_what_may_come_twice_is_sent_again(tmp_path: Path) -> None:
    """So a DELETE of ours names the uid of what it means, or a name that nothing else ever has."""
    async with closing(tmp_path) as (server, api):
        for method in ("GET", "DELETE"):
            assert (await api.request(method, "/apis/x", seconds=5.0)).well
        assert server.methods == ["GET", "DELETE", "DELETE"]


@pytest.mark.promise("G5")
async def test_what_was_never_sent_says_so(tmp_path: Path) -> None:
    api = Api(KubernetesCluster(name="test", kubeconfig=str(kubeconfig("http://127.0.0.1:1", tmp_path))))
    with pytest.raises(NotSent):
        await api.request("POST", "/apis/x", {}, {}, seconds=5.0)
    await api.close()
