"""A plain client for tests of the server itself.

One rule: it sends what it is given and says what came back; nothing is retried and nothing is interpreted.
"""

from __future__ import annotations

import json
from types import TracebackType
from typing import Any

import aiohttp

from tests.kubernetes.server import ADMIN_TOKEN, ApiServer
from tests.kubernetes.server.patching import JSON_PATCH, MERGE


class Client:
    """One session with one server, as its administrator."""

    def __init__(self, server: ApiServer) -> None:
        headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
        self.session = aiohttp.ClientSession(server.url, headers=headers)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.session.close()

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """(status, the JSON of the answer); a list is sent as JSON Patch, an object patches as a merge."""
        kind = "application/json"
        if method == "PATCH":
            kind = JSON_PATCH if isinstance(body, list) else MERGE
        data = None if body is None else json.dumps(body)
        async with self.session.request(method, path, data=data, headers={"Content-Type": kind}) as response:
            text = await response.text()
            return response.status, json.loads(text) if text.startswith(("{", "[")) else text

    async def json(self, method: str, path: str, body: Any = None) -> Any:
        """The answer of a call that must succeed."""
        status, answer = await self.call(method, path, body)
        assert status < 300, answer
        return answer

    async def lines(self, path: str) -> list[Any]:
        """The events of a watch that ends by itself."""
        async with self.session.get(path) as response:
            assert response.status == 200
            return [json.loads(line) async for line in response.content]
