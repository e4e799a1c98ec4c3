"""Which lines match a pattern that a person wrote, found out by another process.

One rule: a pattern may take for ever over one line, and nothing ends a match but the end of its process, so none is
made in this one: every job of the loop would wait for it. What is not answered in time is not told, and the pattern is
left alone for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence

log = logging.getLogger(__name__)

ANSWERS = """
import json, re, sys
print("null", flush=True)
for asked in sys.stdin:
    pattern, texts = json.loads(asked)
    try:
        found = [at for at, text in enumerate(texts) if re.search(pattern, text)]
    except re.error:
        found = None
    print(json.dumps(found), flush=True)
"""
ONE_SECONDS = 2.0
"""For all lines of one log."""
ALL_SECONDS = 6.0
"""For all logs of one listing."""
AGAIN_SECONDS = 600.0
"""For so long a pattern that took too long is not tried."""
KEPT = 1000

Asked = tuple[str, Sequence[str]]
"""A pattern, and lines."""
Found = list[int] | None
"""The places of the lines that match; None: that cannot be told."""


class Patterns:
    """Matches patterns; no process of it outlives a question."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        """Until when a pattern is left alone, in monotonic seconds."""

    async def matches(self, asked: Sequence[Asked]) -> list[Found]:
        """What is found of each."""
        told: list[Found] = [None] * len(asked)
        now = time.monotonic()
        left = [at for at, (pattern, _) in enumerate(asked) if self._until.get(pattern, now) <= now]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ALL_SECONDS):
                while left:
                    left = await self._answered(asked, left, told)
        return told

    async def _answered(self, asked: Sequence[Asked], left: list[int], told: list[Found]) -> list[int]:
        """Have one process answer until it does not; those that it has not come to."""
        try:
            helper = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", "-c", ANSWERS), stdin=PIPE, stdout=PIPE, stderr=DEVNULL
            )
        except OSError:
            return []
        try:
            await _line(helper)  # it has begun, which may take a while
            for number, at in enumerate(left):
                try:
                    async with asyncio.timeout(ONE_SECONDS):
                        told[at] = await _answer(helper, asked[at])
                except TimeoutError:
                    self._give_up(asked[at][0])
                    return left[number + 1 :]
        except (OSError, ValueError):
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                helper.kill()
            await helper.wait()
        return []

    def _give_up(self, pattern: str) -> None:
        log.warning("progress_pattern %r takes too long over a log: no progress is told of its jobs", pattern[:200])
        self._until.pop(pattern, None)
        self._until[pattern] = time.monotonic() + AGAIN_SECONDS
        while len(self._until) > KEPT:
            del self._until[next(iter(self._until))]


async def _answer(helper: Process, asked: Asked) -> Found:
    """Raises OSError and ValueError where its process has ended."""
    assert helper.stdin is not None  # noqa: S101 - it is a pipe
    helper.stdin.write(json.dumps(asked).encode() + b"\n")
    await helper.stdin.drain()
    return await _line(helper)


async def _line(helper: Process) -> Found:
    assert helper.stdout is not None  # noqa: S101 - it is a pipe
    found: Found = json.loads(await helper.stdout.readline())
    return found
