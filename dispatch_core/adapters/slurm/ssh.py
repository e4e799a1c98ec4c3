"""The way to a submission host over SSH: one connection for a cluster in an event loop, with a session for each script.

One rule: whoever calls is told whether the script was sent. Until a session has been opened and the script written into
it, everything that breaks is SchedulerUnavailable, and nothing has happened; from then on it is Lost. `ssh_connection`
is the one room that knows the SSH library, and it is loaded when the first script is sent.
"""

from __future__ import annotations

import asyncio
import importlib.util
from types import ModuleType
from typing import TYPE_CHECKING

from dispatch_core.adapters.slurm.cluster import SshHost
from dispatch_core.adapters.slurm.transport import Finished, Lost, whole
from dispatch_core.errors import BadInput, SchedulerUnavailable

if TYPE_CHECKING:
    from dispatch_core.adapters.slurm.ssh_connection import Connection

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 15.0
"""Between two attempts to connect; it doubles until a session was opened."""


class SshTransport:
    """The submission host, as the user whose key it is; opened on first use, and again when the connection broke."""

    def __init__(self, ssh: SshHost) -> None:
        """Raises BadInput where the SSH library is not installed."""
        if importlib.util.find_spec("asyncssh") is None:
            raise BadInput("a cluster over SSH needs asyncssh: pip install 'dispatch-supervisor[ssh]'")
        self._ssh = ssh
        self._connection: Connection | None = None
        self._opening: asyncio.Task[Connection] | None = None
        self._pause = 0.0
        self._not_before = 0.0
        """On the loop's clock: when the next attempt to connect may begin."""
        self._failure = ""
        """What the last attempt to connect ended with."""
        self._closed = False

    async def run(self, script: str, seconds: float) -> Finished:
        sent = False
        try:
            async with asyncio.timeout(seconds):
                connection = await self._connected()
                async with connection.session() as session:
                    self._pause = 0.0
                    session.send(whole(script).encode())
                    sent = True
                    return await session.finished()
        except TimeoutError:
            if sent:
                raise Lost(f"{self._ssh.host} did not answer within {seconds:g} s") from None
            why = f"; before that: {self._failure}" if self._failure else ""
            raise SchedulerUnavailable(f"{self._ssh.host} took no script within {seconds:g} s{why}") from None

    async def close(self) -> None:
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening})
        if self._connection is not None:
            await self._connection.close()

    async def _connected(self) -> Connection:
        """The connection; all who find none wait for one attempt, and are told how it ended."""
        if self._connection is not None and not self._connection.broken:
            return self._connection
        if self._closed:
            raise SchedulerUnavailable(f"the connection to {self._ssh.host} is closed; open another one")
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._open())
        opening = self._opening
        await asyncio.wait({opening})
        if opening.cancelled():
            raise SchedulerUnavailable(f"the connection to {self._ssh.host} was closed before it was open")
        return opening.result()

    async def _open(self) -> Connection:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._not_before - loop.time())
        self._pause = min(max(2 * self._pause, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
        try:
            library = await asyncio.to_thread(_library)
            self._connection = await library.connect(self._ssh)
            self._failure = ""
        except SchedulerUnavailable as error:
            self._failure = str(error)
            raise
        finally:
            self._not_before = loop.time() + self._pause
        return self._connection


def _library() -> ModuleType:
    """Loaded in a thread: it takes a good part of a second."""
    from dispatch_core.adapters.slurm import ssh_connection

    return ssh_connection
