"""How a shell script gets to the scheduler's host, and its output back.

One rule: a script is either run whole or not at all. It goes to `/bin/sh` through standard input, so that no other
shell ever reads it, no command line shows it and no limit on arguments cuts it; and its last line alone makes it act,
so that one whose connection breaks on the way does nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from dispatch_core.errors import SchedulerUnavailable

LARGEST_OUTPUT = 256 * 2**20
"""Bytes that a script may print: a listing of some hundred thousand jobs."""

CLOSING_SECONDS = 1.0
"""How long the output of an ended script may stay open: something that left its group may hold it."""

INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "SLURM_CONF"),
    *("LD_LIBRARY_PATH", "MUNGE_SOCKET"),
)
"""Variables of this program that Slurm's commands, and with them the jobs, are given; nothing else leaks into a job."""


class Finished(NamedTuple):
    """What a script left behind."""

    code: int
    """Its exit code; negative: the signal that ended it."""
    out: bytes
    err: bytes


class Lost(Exception):
    """The script may have run, and nobody knows how far: its time was over, or the connection broke."""


class Transport(Protocol):
    """One way to one host, shared by all jobs on a cluster in this event loop."""

    async def run(self, script: str, seconds: float) -> Finished:
        """Run a POSIX shell script on the host. Raises Lost, and SchedulerUnavailable where it was not sent at all."""

    async def close(self) -> None:
        """End the connection; scripts under way are given up."""


def whole(script: str) -> str:
    """The script as it is sent: read to its end before any of it acts."""
    return f"dispatch_script() {{\n{script}\n}}\ndispatch_script </dev/null\nexit $?\n"


class LocalTransport:
    """This machine, as this user."""

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        """`variables`: the whole environment of the scripts; None: what this program has of `INHERITED`."""
        known = {name: os.environ[name] for name in INHERITED if name in os.environ}
        self._variables = dict(known if variables is None else variables)
        self._children: set[asyncio.subprocess.Process] = set()
        self._closed = False

    async def run(self, script: str, seconds: float) -> Finished:
        if self._closed:
            raise SchedulerUnavailable("the connection to the scheduler is closed; open another one")
        try:
            child = await asyncio.create_subprocess_exec(
                "/bin/sh",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._variables,
                start_new_session=True,
            )
        except OSError as error:
            raise SchedulerUnavailable(f"/bin/sh cannot be started here: {error}") from error
        self._children.add(child)
        try:
            async with asyncio.timeout(seconds):
                out, err = await child.communicate(whole(script).encode())
        except TimeoutError:
            await _given_up(child)
            raise Lost(f"no answer within {seconds:g} s") from None
        except BaseException:
            await _given_up(child)
            raise
        finally:
            self._children.discard(child)
        if self._closed:
            raise Lost("the connection to the scheduler was closed meanwhile")
        assert child.returncode is not None  # noqa: S101 - communicate() has waited for it
        return Finished(child.returncode, out, err)

    async def close(self) -> None:
        self._closed = True
        children = tuple(self._children)
        for child in children:
            _end(child)
        await asyncio.gather(*(child.wait() for child in children))


def _end(child: asyncio.subprocess.Process) -> None:
    """End the script and what it started, which may outlive it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


async def _given_up(child: asyncio.subprocess.Process) -> None:
    _end(child)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSING_SECONDS):
            await child.communicate()  # closes the pipes
