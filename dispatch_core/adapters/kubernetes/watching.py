"""What wakes those who wait for a job: one stream for each kind, list and watch, however many jobs there are.

One rule: a stream is a hint, never the truth, so nothing is read from it but whose object changed; but no hint is lost.
Whatever breaks (410, silence, a dropped connection, an error in the stream) is followed by a list, and everybody is
woken whose object it shows otherwise, or no longer. It runs only while somebody waits.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from dispatch_core.adapters.contract import Job
from dispatch_core.adapters.kubernetes import kinds
from dispatch_core.adapters.kubernetes.kinds import Json, dig
from dispatch_core.adapters.kubernetes.transport import Api, Lost, NotSent
from dispatch_core.adapters.shared import closed
from dispatch_core.errors import DispatchError

STREAM_SECONDS = 290
"""After so long the server ends a stream in good order."""
SILENT_SECONDS = 90.0
"""Bookmarks come each minute: a stream that is silent for longer is broken, and nobody has said so."""
AGAIN_SECONDS = 1.0
LONGEST_AGAIN_SECONDS = 30.0
KEPT = 50_000
"""Changes that are remembered, of those who watch only later."""

Listed = tuple[str, Mapping[str, tuple[str, frozenset[str]]]]
"""The resourceVersion of a list, and of each object by its uid its own, and the marks it is waited for by."""


def marks_of(object: Json) -> frozenset[str]:
    """What an object is waited for by: its job's uid, and its key, which another record may have."""
    return frozenset(filter(None, (kinds.label(object, kinds.UID), kinds.label(object, kinds.KEY_HASH))))


def marks_for(job: Job) -> frozenset[str]:
    return frozenset((job.uid, kinds.key_hash(job.key)))


class Changes:
    """Who waits for what, and what has changed since whose listing."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._changed: OrderedDict[str, int] = OrderedDict()
        self._count = 0
        self._forgotten = 0
        """The number of the latest change that is no longer remembered."""

    @property
    def now(self) -> int:
        """How many changes there were so far."""
        return self._count

    @property
    def is_awaited(self) -> bool:
        return bool(self._waiting)

    def changed(self, marks: frozenset[str]) -> None:
        self._count += 1
        for mark in marks:
            self._changed[mark] = self._count
            self._changed.move_to_end(mark)
            for woken in self._waiting.get(mark, ()):
                if not woken.done():
                    woken.set_result(None)
        while len(self._changed) > KEPT:
            self._forgotten = max(self._forgotten, self._changed.popitem(last=False)[1])

    def since(self, marks: frozenset[str], number: int) -> bool:
        return self._forgotten > number or any(self._changed.get(mark, 0) > number for mark in marks)

    @contextlib.contextmanager
    def waiting(self, marks: frozenset[str]) -> Any:
        woken = asyncio.get_running_loop().create_future()
        for mark in marks:
            self._waiting.setdefault(mark, set()).add(woken)
        try:
            yield woken
        finally:
            for mark in marks:
                self._waiting[mark].discard(woken)
                if not self._waiting[mark]:
                    del self._waiting[mark]

    def close(self) -> None:
        for woken in {woken for waiting in self._waiting.values() for woken in waiting}:
            if not woken.done():
                woken.set_exception(closed())
                woken.exception()


class Stream:
    """Follows the objects of one kind, and says whose have changed."""

    def __init__(
        self, api: Api, path: str, selector: str, take: Callable[[], Awaitable[Listed]], changes: Changes
    ) -> None:
        self._api, self._path, self._selector, self._take, self._changes = api, path, selector, take, changes
        self._at = ""
        """The resourceVersion that was seen last."""
        self._shown: dict[str, tuple[str, frozenset[str]]] | None = None
        self.is_following = False
        """Whether every change is seen as it comes; else a listing has to be compared."""
        self._pause = AGAIN_SECONDS

    async def run(self) -> None:
        """Follow for as long as somebody waits."""
        try:
            while self._changes.is_awaited:
                try:
                    if not self.is_following:
                        await self._list()
                    await self._follow()
                    self._pause = AGAIN_SECONDS
                except (Lost, NotSent, DispatchError):
                    self.is_following = False
                    await asyncio.sleep(self._pause)
                    self._pause = min(2 * self._pause, LONGEST_AGAIN_SECONDS)
        finally:
            self.is_following = False

    async def _list(self) -> None:
        at, found = await self._take()
        self.compare(found)
        self._at, self.is_following = at, True

    def compare(self, found: Mapping[str, tuple[str, frozenset[str]]]) -> None:
        """Say what is otherwise than it was shown last, and take this as shown; the first time, nothing was."""
        shown = self._shown
        self._shown = dict(found)
        if shown is None:
            return
        for uid, (release, marks) in found.items():
            if shown.get(uid, ("", marks))[0] != release:
                self._changes.changed(marks)
        for uid in shown.keys() - found.keys():
            self._changes.changed(shown[uid][1])

    async def _follow(self) -> None:
        """Take events until the stream ends in good order. Raises Lost where it does not."""
        query = {
            "watch": "true",
            "labelSelector": self._selector,
            "resourceVersion": self._at,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(STREAM_SECONDS),
        }
        async for line in self._api.lines(self._path, query, SILENT_SECONDS):
            if line.strip():
                self._take_event(line)
            if not self._changes.is_awaited:
                return

    def _take_event(self, line: bytes) -> None:
        try:
            event = msgspec.json.decode(line)
        except msgspec.DecodeError as error:
            raise Lost("a watch broke off within a line") from error
        object = event.get("object") if isinstance(event, dict) else None
        at = dig(object, "metadata", "resourceVersion") if isinstance(object, dict) else None
        if not isinstance(object, dict) or event.get("type") == "ERROR" or not at:
            raise Lost(f"a watch was ended: {object.get('message', '') if isinstance(object, dict) else ''}")
        self._at, self._pause = str(at), AGAIN_SECONDS
        if event["type"] == "BOOKMARK":
            return
        uid, marks = kinds.uid_of(object), marks_of(object)
        self._shown = {} if self._shown is None else self._shown
        if event["type"] == "DELETED":  # or it left the selector: its former marks are those that are waited for
            marks |= self._shown.pop(uid, ("", marks))[1]
        else:
            self._shown[uid] = (self._at, marks)
        self._changes.changed(marks)
