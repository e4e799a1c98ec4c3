"""Lists and watches.

One rule: a watch shows each change once, in order, as the watcher's selector sees it: an object that enters is ADDED,
one that leaves is DELETED with its old labels and the new revision, and where the history is too short the stream says
410 and ends.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from tests.kubernetes.server.kinds import JOB, Resource
from tests.kubernetes.server.refusing import Refused, bad_request, expired, invalid
from tests.kubernetes.server.selecting import Matches
from tests.kubernetes.server.storage import Change, Object, Store

TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


class TooOld(Refused):
    """410 of a continue token, with a token to go on with."""

    def __init__(self, token: str) -> None:
        super().__init__(410, "Expired", TOO_OLD)
        self.token = token

    def status(self) -> dict[str, Any]:
        return {**super().status(), "metadata": {"continue": self.token}}


def _token(revision: int, start: str) -> str:
    text = json.dumps({"v": "meta.k8s.io/v1", "rv": revision, "start": start}, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _read_token(token: str) -> tuple[int, str]:
    try:
        raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        if not raw.startswith(b"{"):
            raise ValueError(f"invalid character '\\x{raw[0]:02x}' looking for beginning of value")
        read = json.loads(raw)
        return read["rv"], read["start"]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise bad_request(f"invalid continue token: continue key is not valid: {error}") from error


def body_of(resource: Resource, found: Object) -> Object:
    return {"kind": resource.kind, "apiVersion": resource.api_version, **found}


class Lists:
    """Lists with pages: every page of one list shows the state of its first."""

    def __init__(self, store: Store, keep: int = 50) -> None:
        self._store = store
        self._keep = keep
        self._pages: OrderedDict[tuple[Resource, int], list[Object]] = OrderedDict()
        """All of a resource as it was at a revision."""

    def forget(self) -> None:
        """Every continue token is 410 from here on."""
        self._pages.clear()

    def answer(self, resource: Resource, namespace: str | None, matches: Matches, query: dict[str, str]) -> Object:
        revision, items = self._items(resource, namespace, matches, query)
        metadata: dict[str, Any] = {"resourceVersion": str(revision)}
        limit = int(query.get("limit") or 0)
        if limit and len(items) > limit:
            rest = items[limit:]
            items = items[:limit]
            if (resource, revision) not in self._pages:
                self._pages[resource, revision] = self._store.all(resource)
            while len(self._pages) > self._keep:
                self._pages.popitem(last=False)
            metadata["continue"] = _token(revision, f"/{items[-1]['metadata']['name']}\0")
            if not query.get("labelSelector") and not query.get("fieldSelector"):
                metadata["remainingItemCount"] = len(rest)
        if resource.custom:
            items = [body_of(resource, item) for item in items]
        body: Object = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": metadata}
        return {**body, "items": items}

    def _items(
        self, resource: Resource, namespace: str | None, matches: Matches, query: dict[str, str]
    ) -> tuple[int, list[Object]]:
        token = query.get("continue")
        if not token:
            self._check_revision(query)
            return self._store.revision, [item for item in self._store.all(resource, namespace) if matches(item)]
        revision, start = _read_token(token)
        if revision == -1:
            revision, items = self._store.revision, self._store.all(resource)
        elif (resource, revision) in self._pages:
            items = self._pages[resource, revision]
        else:
            raise TooOld(_token(-1, start.removeprefix("/")))
        after = start.strip("/\0")
        there = [item for item in items if namespace in (None, item["metadata"].get("namespace", ""))]
        return revision, [item for item in there if item["metadata"]["name"] > after and matches(item)]

    def _check_revision(self, query: dict[str, str]) -> None:
        asked = query.get("resourceVersion") or "0"
        if not asked.isdecimal():
            raise invalid_revision(asked)
        if int(asked) > self._store.revision and query.get("resourceVersionMatch") != "Exact":
            causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
            message = f"Timeout: Too large resource version: {asked}, current: {self._store.revision}"
            raise Refused(504, "Timeout", message, {"causes": causes, "retryAfterSeconds": 1}, retry_after=1)
        if query.get("resourceVersionMatch") == "Exact" and int(asked) < self._store.floor:
            raise expired("The resourceVersion for the provided list is too old.")


def invalid_revision(asked: str) -> Refused:
    """A real server answers a watch like this with 500 and no reason."""
    return Refused(
        500, None, f'resourceVersion: Invalid value: "{asked}": strconv.ParseUint: parsing "{asked}": invalid syntax'
    )


@dataclass
class WatchOptions:
    """What a watch asks for."""

    start: int | None
    bookmarks: bool
    seconds: float
    initial: bool

    @classmethod
    def read(cls, resource: Resource, query: dict[str, str]) -> WatchOptions:
        asked = query.get("resourceVersion") or "0"
        if not asked.isdecimal():
            raise invalid_revision(asked)
        initial = query.get("sendInitialEvents") == "true"
        if initial and query.get("resourceVersionMatch") != "NotOlderThan":
            message = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
            refused = invalid(resource, "", [("resourceVersionMatch", "FieldValueForbidden", message)])
            refused.details = {"group": "meta.k8s.io", "kind": "ListOptions", "causes": refused.details["causes"]}  # type: ignore[index]
            refused.message = f'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: {message}'
            raise refused
        bookmarks = query.get("allowWatchBookmarks") in ("true", "1")
        seconds = float(query.get("timeoutSeconds") or 1800)
        present = initial or int(asked) == 0
        return cls(
            None if present else int(asked),
            bookmarks,
            seconds,
            initial or (present and bookmarks and "resourceVersion" not in query),
        )


def _line(kind: str, body: bytes | Object) -> bytes:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b'{"type":"' + kind.encode() + b'","object":' + text + b"}\n"


class Watches:
    """The open watches of one server."""

    def __init__(self, store: Store, bookmark_seconds: float) -> None:
        self._store = store
        self.bookmark_seconds = bookmark_seconds
        self._queues: set[asyncio.Queue[Change | None]] = set()
        store.listeners.append(self._tell)

    def __len__(self) -> int:
        return len(self._queues)

    def _tell(self, change: Change) -> None:
        for queue in self._queues:
            queue.put_nowait(change)

    def end(self) -> None:
        """End every open watch as a server does that goes down in good order."""
        for queue in self._queues:
            queue.put_nowait(None)

    async def lines(
        self, resource: Resource, namespace: str | None, matches: Matches, options: WatchOptions
    ) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[Change | None] = asyncio.Queue()
        self._queues.add(queue)
        try:
            opening, seen = self._opening(resource, namespace, matches, options)
            for line in opening:
                yield line
            if seen is not None:
                async for line in self._following(queue, resource, namespace, matches, options, seen):
                    yield line
        finally:
            self._queues.discard(queue)

    def _opening(
        self, resource: Resource, namespace: str | None, matches: Matches, options: WatchOptions
    ) -> tuple[list[bytes], int | None]:
        """The first lines, and the revision that they reach; None ends the stream."""
        now = self._store.revision
        if options.start is None:
            found = [item for item in self._store.all(resource, namespace) if matches(item)]
            lines = [_line("ADDED", body_of(resource, item)) for item in found]
            if options.initial:
                lines.append(_line("BOOKMARK", self._bookmark(resource, now, initial=True)))
            return lines, now
        if options.start < self._store.floor:
            message = f"too old resource version: {options.start} ({self._store.floor})"
            return [_line("ERROR", expired(message).status())], None
        past = [change for change in self._store.history if change.revision > options.start]
        lines = [shown for change in past if (shown := self._shown(change, resource, namespace, matches))]
        return lines, max(now, options.start)

    async def _following(
        self,
        queue: asyncio.Queue[Change | None],
        resource: Resource,
        namespace: str | None,
        matches: Matches,
        options: WatchOptions,
        seen: int,
    ) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        end = begun + options.seconds
        bookmark = loop.time() + self.bookmark_seconds
        while (left := end - loop.time()) > 0:
            wait = min(left, bookmark - loop.time()) if options.bookmarks else left
            try:
                change = await asyncio.wait_for(queue.get(), max(wait, 0))
            except TimeoutError:
                if options.bookmarks and seen <= self._store.revision and loop.time() - begun >= self.bookmark_seconds:
                    yield _line("BOOKMARK", self._bookmark(resource, max(seen, self._store.revision)))
                    bookmark = loop.time() + self.bookmark_seconds
                continue
            if change is None:
                return
            if change.revision > seen:
                seen = change.revision
                if line := self._shown(change, resource, namespace, matches):
                    yield line

    def _shown(self, change: Change, resource: Resource, namespace: str | None, matches: Matches) -> bytes | None:
        if change.resource is not resource or namespace not in (None, change.at["metadata"].get("namespace", "")):
            return None
        before = change.before is not None and matches(change.before)
        after = change.after is not None and matches(change.after)
        if not before and not after:
            return None
        if after:
            return _line("MODIFIED" if before else "ADDED", b"".join(_typed(resource, change.body)))
        last = change.at
        if change.after is not None and change.before is not None:
            metadata = {**change.before["metadata"], "resourceVersion": change.at["metadata"]["resourceVersion"]}
            last = {**change.before, "metadata": metadata}
        return _line("DELETED", body_of(resource, last))

    def _bookmark(self, resource: Resource, revision: int, *, initial: bool = False) -> Object:
        metadata: dict[str, Any] = {"resourceVersion": str(revision)}
        if initial:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        skeleton: Object = {"metadata": metadata}
        if resource is JOB:
            skeleton["spec"] = {"template": {"metadata": {}, "spec": {"containers": None}}}
            skeleton["status"] = {}
        return body_of(resource, skeleton)


def _typed(resource: Resource, body: bytes) -> tuple[bytes, bytes]:
    """The object's JSON with kind and apiVersion in front, without reading it again."""
    head = json.dumps({"kind": resource.kind, "apiVersion": resource.api_version}).encode()
    return head[:-1] + b", ", body[1:]
