"""A run's log as one stream of bytes: whole, or its last lines, or followed until the run has ended.

One rule: memory is bounded, and who follows reads no more often than agreed, whatever the run writes. It asks the
scheduler, never the record, whether a run has ended. What there is to say beside the log is told, one line at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from dispatch_core.adapters.contract import Adapter, Job, Log, Piece, Target
from dispatch_core.errors import SchedulerUnavailable
from dispatch_core.record import State

CHUNK = 256 * 1024
"""Bytes that are read at a time."""
LOOKED_BACK = 64 * 2**20
"""Bytes, from the end, in which the last lines are looked for."""
LOOK_SECONDS = 5.0
"""How often the scheduler is asked whether a run that is followed has ended."""

Tell = Callable[[str], None]


async def written(
    adapter: Adapter,
    job: Job,
    target: Target,
    tell: Tell,
    *,
    last_lines: int | None = None,
    follow: bool = False,
    seconds: float = 1.0,
) -> AsyncIterator[bytes]:
    """What a run has written: its standard output, then a standard error of its own.

    `last_lines`: only so many of each. `follow`: also what it writes from then on, as it comes, until it has ended;
    read every so many seconds, and again where the scheduler did not answer. Raises SchedulerUnavailable, until it
    follows."""
    streams = [_Stream(adapter, target, number, tell) for number in (1, 2)]
    for stream in streams:
        await stream.place(last_lines)
        while not stream.is_at_place and (data := await stream.more()):
            yield data
    asked, over, silent = -LOOK_SECONDS, False, False
    while follow:
        now = asyncio.get_running_loop().time()
        if not over and now - asked >= LOOK_SECONDS:
            asked, over = now, await _is_over(adapter, job, target)
        try:
            for stream in streams:
                async for data in stream.new(ROUND if over else 1):
                    yield data
            follow, silent = not over, False
        except SchedulerUnavailable as error:
            if not silent:
                tell(f"{error}; the log is read again until it answers")
            silent = True
        if follow and not any(stream.is_behind for stream in streams):
            await asyncio.sleep(seconds)


ROUND = 4096
"""Chunks that are still read once a run has ended: something that it left behind may go on writing."""


class _Stream:
    """One of a run's two streams, and how far it was read."""

    def __init__(self, adapter: Adapter, target: Target, number: int, tell: Tell) -> None:
        self._adapter, self._target, self._number, self._tell = adapter, target, number, tell
        self._begin = 0
        self._size = 0
        self.is_behind = False
        """Whether there was more than was asked for the last time."""
        self._told: tuple[Log, str] | None = None

    @property
    def is_at_place(self) -> bool:
        """Whether all was read that was there when this was placed: a run may write faster than it is read."""
        return self._begin >= self._size

    async def place(self, last_lines: int | None) -> None:
        """Begin with the first byte, or with the last lines."""
        self._size = (await self._read(0, 0))[1]
        self._begin = 0 if last_lines is None else await self._line_begins(last_lines)

    async def more(self) -> bytes:
        """The next bytes, none where there are none yet."""
        data, size = await self._read(self._begin, CHUNK)
        if self._told == (Log.THERE, "") and size < self._begin:
            self._tell("the log became shorter; it is shown from its beginning")
            self._begin = 0
            return b""
        self._begin += len(data)
        return data

    async def new(self, chunks: int) -> AsyncIterator[bytes]:
        """What has come meanwhile, and at most so many chunks of it."""
        self.is_behind = False
        for _ in range(chunks):
            if data := await self.more():
                yield data
            if len(data) < CHUNK:
                return
        self.is_behind = True

    async def _line_begins(self, last_lines: int) -> int:
        """Where the last lines begin."""
        end, wanted = self._size, last_lines
        while end > max(0, self._size - LOOKED_BACK):
            begin = max(0, end - CHUNK)
            data, _ = await self._read(begin, end - begin)
            if end == self._size and data.endswith(b"\n"):
                wanted += 1
            if wanted == 0:
                return end
            if data.count(b"\n") >= wanted:
                at = len(data)
                for _ in range(wanted):
                    at = data.rindex(b"\n", 0, at)
                return begin + at + 1
            wanted -= data.count(b"\n")
            end = begin
        return end

    async def _read(self, begin: int, length: int) -> tuple[bytes, int]:
        if self._told is not None and self._told[0] is Log.SHARED:
            return b"", 0
        piece = await self._adapter.read_log(self._target, self._number, begin, length)
        if (piece.log, piece.why) != self._told:
            self._told = piece.log, piece.why
            self._say(piece)
        return piece.data, piece.size

    def _say(self, piece: Piece) -> None:
        run = f"run {self._target.run} of {self._target.id}"
        if piece.log is Log.NOT_BEGUN and self._number == 1:
            why = f" ({piece.why})" if piece.why else ""
            self._tell(f"{run} has not begun{why}; there is no log yet")
        elif piece.log is Log.GONE:
            self._tell(f"{run} wrote to {piece.path}, which was removed, or cannot be read from here")


async def _is_over(adapter: Adapter, job: Job, target: Target) -> bool:
    """Whether the run has ended; not, while nobody can say."""
    try:
        listing = await adapter.find(job)
    except SchedulerUnavailable:
        return False
    shown = next((sighting for sighting in listing.objects if sighting.id == target.id), None)
    if shown is None:
        return listing.complete
    return shown.run > target.run or (shown.run == target.run and shown.state is State.ENDED)
