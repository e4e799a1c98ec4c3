"""What the server keeps: the objects, one counter of revisions, and the history that watches resume from.

One rule: a stored object is never changed in place. Whoever writes hands over a new one, so a page of a list, an
event of a watch and the state before a write are plain references.
"""

from __future__ import annotations

import json
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import msgspec

from tests.kubernetes.server.kinds import Resource

Object = dict[str, Any]
Key = tuple[str, str]
"""(namespace, name); the namespace of a cluster-wide object is empty."""


def stamp(at: datetime | None = None) -> str:
    """A time as the API writes it: whole seconds, UTC."""
    return (at or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_stamp(text: str) -> datetime:
    return datetime.fromisoformat(text)


def copied(found: Any) -> Any:
    """A deep copy of what JSON can hold; copy.deepcopy takes most of the time of a busy server."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(found))


def key_of(found: Object) -> Key:
    return found["metadata"].get("namespace", ""), found["metadata"]["name"]


def owner_uids(found: Object) -> set[str]:
    return {owner["uid"] for owner in found["metadata"].get("ownerReferences") or ()}


@dataclass(frozen=True)
class Change:
    """One write, with what was there before and after; `after` is None for a removal."""

    revision: int
    resource: Resource
    before: Object | None
    after: Object | None
    at: Object
    """The object as a watch shows it: of a removal the last state, with the revision of the removal."""

    @cached_property
    def body(self) -> bytes:
        return json.dumps(self.at).encode()


@dataclass
class Store:
    """Objects by resource and key."""

    revision: int = 1000
    floor: int = 1000
    """Watches from before this revision are 410."""
    keep: int = 20_000
    """Changes that the history holds."""
    objects: dict[Resource, dict[Key, Object]] = field(default_factory=dict)
    history: deque[Change] = field(default_factory=deque)
    listeners: list[Callable[[Change], None]] = field(default_factory=list)
    _owned: dict[str, dict[tuple[Resource, Key], None]] = field(default_factory=dict)
    _uids: dict[str, tuple[Resource, Key]] = field(default_factory=dict)

    def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        return self.objects.get(resource, {}).get((namespace, name))

    def by_uid(self, uid: str) -> tuple[Resource, Object] | None:
        where = self._uids.get(uid)
        return None if where is None else (where[0], self.objects[where[0]][where[1]])

    def all(self, resource: Resource, namespace: str | None = None) -> list[Object]:
        """In the order of the keys, as etcd keeps them."""
        found = self.objects.get(resource, {})
        return [found[key] for key in sorted(found) if namespace in (None, key[0])]

    def owned_by(self, uid: str, resource: Resource | None = None) -> Iterator[tuple[Resource, Object]]:
        for kind, key in list(self._owned.get(uid, ())):
            if resource in (None, kind) and key in self.objects[kind]:
                yield kind, self.objects[kind][key]

    def create(self, resource: Resource, made: Object) -> Object:
        made = copied(made)
        made["metadata"].setdefault("uid", str(uuid.uuid4()))
        made["metadata"].setdefault("creationTimestamp", stamp())
        return self._write(resource, None, made)

    def update(self, resource: Resource, changed: Object) -> Object:
        """Store the next state of an object; one that is the same as before keeps its revision."""
        before = self.objects[resource][key_of(changed)]
        changed = copied(changed)
        changed["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"]
        if changed == before:
            return before
        return self._write(resource, before, changed)

    def remove(self, resource: Resource, gone: Object) -> Object:
        """Take an object away; `gone` is the last state that a watch shows."""
        key = key_of(gone)
        before = self.objects[resource].pop(key)
        self._index(resource, before, add=False)
        self.revision += 1
        last = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self.revision)}}
        self._tell(Change(self.revision, resource, before, None, last))
        return last

    def compact(self) -> None:
        """Forget the history: any watch from before now is 410, as after a restart."""
        self.history.clear()
        self.revision += 1
        self.floor = self.revision

    def _write(self, resource: Resource, before: Object | None, after: Object) -> Object:
        self.revision += 1
        after["metadata"]["resourceVersion"] = str(self.revision)
        if before is not None:
            self._index(resource, before, add=False)
        self.objects.setdefault(resource, {})[key_of(after)] = after
        self._index(resource, after, add=True)
        self._tell(Change(self.revision, resource, before, after, after))
        return after

    def _index(self, resource: Resource, found: Object, *, add: bool) -> None:
        where = (resource, key_of(found))
        uid = found["metadata"]["uid"]
        if add:
            self._uids[uid] = where
        else:
            self._uids.pop(uid, None)
        for owner in owner_uids(found):
            dependents = self._owned.setdefault(owner, {})
            if add:
                dependents[where] = None
            else:
                dependents.pop(where, None)
            if not dependents:
                self._owned.pop(owner, None)

    def _tell(self, change: Change) -> None:
        self.history.append(change)
        while len(self.history) > self.keep:
            self.floor = self.history.popleft().revision
        for listener in list(self.listeners):
            listener(change)
