"""Whether runs get on: the time of the latest line of a run's log, for those whose plan or options ask for it.

One rule: what cannot be told is not told, so a rule never fires on it: each listing reads the last lines of a few logs,
and the next one goes on with others. The times are those that the node noted with each line.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from dispatch_core.adapters.kubernetes.causes import first_of, time_of
from dispatch_core.adapters.kubernetes.kinds import OUTPUT, POD, PROGRESS, Json, annotation, dig, name_of
from dispatch_core.adapters.kubernetes.matching import Patterns
from dispatch_core.adapters.kubernetes.reading import Shown, is_watched
from dispatch_core.adapters.kubernetes.transport import Api
from dispatch_core.errors import DispatchError
from dispatch_core.evidence import Sighting
from dispatch_core.record import State

READ_AT_ONCE = 40
"""Logs that one listing reads at most."""
SIDE_BY_SIDE = 8
LINES = 200
"""Lines from the end in which a pattern is looked for."""
LARGEST_READ = 65536
"""Bytes of them."""
READ_SECONDS = 5.0


class _Read(NamedTuple):
    """The end of a log."""

    pod: str
    """Its uid."""
    began: datetime
    pattern: str
    rows: list[tuple[datetime, str]]
    """Lines, each behind its time."""


class Progress:
    """Adds the time of their last progress to sightings of runs."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self._turn = 0
        self._patterns = Patterns()
        self._matched: dict[str, datetime] = {}
        """When a pattern was last seen in a pod's log, by the pod's uid: later lines may have pushed it out."""

    async def added(self, rows: Sequence[tuple[Shown, Sighting]]) -> list[Sighting]:
        """The sightings, each with its progress, as far as it could be told this time."""
        told = [sighting for _, sighting in rows]
        watched = [at for at, (shown, seen) in enumerate(rows) if is_watched(shown) and seen.state is State.RUNNING]
        if not watched:
            self._matched.clear()
            return told
        first = self._turn % len(watched)
        self._turn += READ_AT_ONCE
        chosen = (watched[first:] + watched[:first])[:READ_AT_ONCE]
        room = asyncio.Semaphore(SIDE_BY_SIDE)

        async def look(at: int) -> _Read | None:
            async with room:
                return await self._read(rows[at][0])

        read = await asyncio.gather(*(look(at) for at in chosen))
        for at, last in zip(chosen, await self._last(read), strict=True):
            told[at] = msgspec.structs.replace(told[at], progress=last)
        alive = {str(dig(pod, "metadata", "uid")) for at in watched for pod in rows[at][0].pods or ()}
        self._matched = {uid: at for uid, at in self._matched.items() if uid in alive}
        return told

    async def _read(self, shown: Shown) -> _Read | None:
        """What the end of a run's log says; None: it cannot be told."""
        pod = first_of(shown.pods or ())
        began = time_of(dig(pod, "status", "startTime")) if pod is not None else None
        if pod is None or began is None:
            return None
        pattern = annotation(shown.object, PROGRESS).removeprefix(OUTPUT).strip()
        try:
            lines = await self._lines(pod, LINES if pattern else 1)
        except DispatchError:
            return None
        rows = [(at, text) for at, text in map(timed, lines or ()) if at is not None]
        return None if lines is None else _Read(str(dig(pod, "metadata", "uid")), began, pattern, rows)

    async def _last(self, read: Sequence[_Read | None]) -> list[datetime | None]:
        """The times of each run's last progress, its beginning at least; None: it cannot be told."""
        asked = [(one.pattern, [text for _, text in one.rows]) for one in read if one is not None and one.pattern]
        found = iter(await self._patterns.matches(asked) if asked else ())
        last: list[datetime | None] = []
        for one in read:
            matches = None if one is None else next(found) if one.pattern else [*range(len(one.rows))]
            last.append(None if one is None or matches is None else self._newest(one, matches))
        return last

    def _newest(self, read: _Read, matches: Sequence[int]) -> datetime:
        times = [read.rows[at][0] for at in matches]
        last = max([*times, read.began, self._matched.get(read.pod, read.began)])
        self._matched[read.pod] = last
        return last

    async def _lines(self, pod: Json, number: int) -> list[str] | None:
        """The last lines of a pod's log, each behind its time; None: it cannot be read."""
        container = str(dig(pod, "spec", "containers")[0]["name"])
        query = {"container": container, "timestamps": "true", "tailLines": str(number)}
        path = f"{POD.path(self._namespace, name_of(pod))}/log"
        status, text = await self._api.read(path, query, READ_SECONDS)
        return text[-LARGEST_READ:].decode(errors="replace").splitlines() if status == 200 else None


def timed(line: str) -> tuple[datetime | None, str]:
    """A line of a log behind its time, as the API gives it.

    >>> timed("2026-11-29T10:00:00.123456789Z epoch 3")
    (datetime.datetime(2026, 11, 29, 10, 0, 0, 123456, tzinfo=datetime.timezone.utc), 'epoch 3')
    """
    at, _, text = line.partition(" ")
    return time_of(re.sub(r"(\.\d{6})\d+", r"\1", at)), text
