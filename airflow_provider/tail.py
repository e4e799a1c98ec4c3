"""The end of a run's log, for the task's log in Airflow: where people look first.

One rule: bounded in lines, bytes and time, and never in the way of how the task ends; what cannot be read is said in
one line. The job's secrets are taken out of it, and where one cannot be looked up any more, nothing is shown.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

from airflow_provider.secrets import secrets
from dispatch_core.adapters.contract import Adapter, Log, Piece, Target
from dispatch_core.errors import DispatchError
from dispatch_core.record import Record

BYTES = 64 * 1024
"""As much of each stream's end is read."""
LONGEST_LINE = 2000
"""Characters; Airflow's page cuts off longer ones."""
SECONDS = 30.0

SHORTEST_SECRET = 4
"""Characters; a shorter one would take every other word apart."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


async def tail(adapter: Adapter, record: Record, count: int) -> list[str]:
    """The last `count` lines of the newest run that has written anything, standard output first, under a heading."""
    if count < 1:
        return []
    try:
        async with asyncio.timeout(SECONDS):
            hidden = await _hidden(record)
            return [line async for line in _lines(adapter, record, count, hidden)]
    except (DispatchError, OSError, TimeoutError) as error:
        return [f"the end of the job's log is not shown: {error or 'it could not be read in time'}"]


async def _lines(adapter: Adapter, record: Record, count: int, hidden: list[str]) -> AsyncIterator[str]:
    for target in _targets(record):
        pieces = [await _end(adapter, target, stream) for stream in (1, 2)]
        if all(piece.log is Log.NOT_BEGUN for piece in pieces):
            continue
        for stream, piece in enumerate(pieces, 1):
            if piece.log is Log.GONE:
                yield f"run {target.run} of {target.id} wrote to {piece.path}, which cannot be read from here"
            elif piece.data:
                shown = _shown(piece, count, hidden)
                name = "log" if stream == 1 else "standard error"
                yield f"the last {len(shown)} lines of the {name} of run {target.run} of {target.id}:"
                for line in shown:
                    yield line
        return


def _targets(record: Record) -> list[Target]:
    """The newest run of each submission's canonical object, newest first; the two newest, as one may not have begun."""
    found = [record.object(submission.canonical) for submission in record.submissions if submission.canonical]
    return [Target(id=one.id, name=one.name, run=one.run) for one in reversed(found) if one is not None][:2]


async def _end(adapter: Adapter, target: Target, stream: int) -> Piece:
    size = (await adapter.read_log(target, stream, 0, 0)).size
    return await adapter.read_log(target, stream, max(size - BYTES, 0), BYTES)


def _shown(piece: Piece, count: int, hidden: list[str]) -> list[str]:
    text = piece.data.decode("utf-8", errors="replace")
    for secret in hidden:
        text = text.replace(secret, "***")
    lines = text.splitlines()
    if piece.size > len(piece.data):
        lines = lines[1:] or [text[-LONGEST_LINE:]]  # the first is a part of one, and may begin within a secret
    return [_CONTROL.sub("", line)[:LONGEST_LINE] for line in lines[-count:]]


async def _hidden(record: Record) -> list[str]:
    """The values of the job's secrets, longest first, and each of their lines, as a log shows them line by line."""
    sources = {source for s in record.submissions for source in s.spec.secret_environment.values()}
    values = [await secrets(source) for source in sorted(sources, key=repr)]
    lines = {line for value in values for line in (value, *value.splitlines())}
    return sorted((line for line in lines if len(line) >= SHORTEST_SECRET), key=len, reverse=True)
