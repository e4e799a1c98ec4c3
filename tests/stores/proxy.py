"""A TCP proxy between a store and its server that breaks the line at a chosen moment.

It knows one word of the server's protocol, the COMMIT that a client sends as a plain query, and otherwise counts what
passes. What it breaks is broken for real: the client sees a closed connection, the server one that hangs up.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

LATER_SECONDS = 0.6


class Moment(Enum):
    """When the line breaks, seen from the commit."""

    BEFORE = "the COMMIT never reaches the server"
    AFTER = "it has landed, and its reply never reaches the client"
    LATER = "the client is cut off, and the COMMIT reaches the server a while later"


async def nothing() -> None:
    """What else happens at the moment of the break."""


class Proxy:
    """Passes everything on, until it is told to break a commit, or the n-th packet."""

    def __init__(self, host: str, port: int, word: bytes) -> None:
        self._host, self._server_port, self._word = host, port, word
        self._lines: set[asyncio.Task[None]] = set()
        self._break_at: Moment | None = None
        self._then: Callable[[], Awaitable[None]] = nothing
        self.refuses = False
        """Whether new connections are turned away."""
        self.packets_left: int | None = None
        """Packets, either way, that still pass before the line breaks; None: no limit."""
        self.broken = 0
        """How often the line was broken."""

    async def start(self) -> int:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._listener.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        self._listener.close()
        for line in tuple(self._lines):
            line.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)
        await self._listener.wait_closed()

    async def go_away(self) -> None:
        """From now on nobody listens, and no line goes on."""
        self._port = int(self._listener.sockets[0].getsockname()[1])
        self._listener.close()
        current = asyncio.current_task()
        for line in self._lines:
            if line is not current:
                line.cancel()

    async def come_back(self) -> None:
        """Listen again where it did before."""
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self._port)

    def break_commit(self, moment: Moment, then: Callable[[], Awaitable[None]] = nothing) -> None:
        """Break the line at the next COMMIT, once; `then` runs after the break and before the client sees it."""
        self._break_at, self._then = moment, then

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        current = asyncio.current_task()
        assert current is not None
        self._lines.add(current)
        current.add_done_callback(self._lines.discard)
        if self.refuses:
            writer.close()
            return
        line = Line(reader, writer, *await asyncio.open_connection(self._host, self._server_port))
        ways = [asyncio.create_task(self._upwards(line)), asyncio.create_task(self._downwards(line))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            if line.silent:
                await ways[0]
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for end in (line.client_writer, line.server_writer):
                end.close()
                with suppress(OSError):
                    await end.wait_closed()

    async def _upwards(self, line: "Line") -> None:
        while data := await self._asked(line.client_reader):
            if self._word in data and self._break_at is not None:
                moment, self._break_at = self._break_at, None
                self.broken += 1
                await self._break(line, data, moment)
                return
            line.server_writer.write(data)
            await line.server_writer.drain()

    async def _downwards(self, line: "Line") -> None:
        while data := await self._next(line.server_reader):
            if line.silent:
                line.replied.set()
                continue
            line.client_writer.write(data)
            await line.client_writer.drain()

    async def _break(self, line: "Line", data: bytes, moment: Moment) -> None:
        line.silent = True
        if moment is Moment.LATER:
            line.client_writer.transport.abort()
            await asyncio.sleep(LATER_SECONDS)
        if moment is Moment.BEFORE:
            # The server hangs up before anything else happens, or it would keep the row from everybody.
            line.server_writer.close()
        else:
            line.server_writer.write(data)
            await line.replied.wait()
        await self._then()

    async def _asked(self, reader: asyncio.StreamReader) -> bytes:
        """The next that a client sends, as much as belongs together."""
        return await self._next(reader)

    async def _next(self, reader: asyncio.StreamReader) -> bytes:
        """The next packet; nothing where the line has ended, or breaks here."""
        with suppress(ConnectionError):
            data = await reader.read(65536)
            if data and self.packets_left is not None:
                self.packets_left -= 1
                if self.packets_left < 0:
                    self.packets_left = None
                    self.broken += 1
                    return b""
            return data
        return b""


class HttpProxy(Proxy):
    """The same for HTTP, where each request is broken at, or passes, whole."""

    async def _asked(self, reader: asyncio.StreamReader) -> bytes:
        data = b""
        while len(data) < _length(data):
            more = await self._next(reader)
            if not more:
                return b""
            data += more
        return data


def _length(request: bytes) -> int:
    """How long a request is that begins so, as far as that can be told."""
    head, end, _ = request.partition(b"\r\n\r\n")
    if not end:
        return len(request) + 1
    named = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return len(head) + len(end) + (int(named[1]) if named else 0)


@dataclass
class Line:
    """One connection, seen from the middle."""

    client_reader: asyncio.StreamReader
    client_writer: asyncio.StreamWriter
    server_reader: asyncio.StreamReader
    server_writer: asyncio.StreamWriter
    silent: bool = False
    """Nothing reaches the client any more."""
    replied: asyncio.Event = field(default_factory=asyncio.Event)
    """The server has said something since."""
