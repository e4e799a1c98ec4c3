"""What every controller has in common: a queue of keys, and the words of conditions.

One rule: a key is looked at again whenever its object or one that it owns changed, a moment later, so that a client can
see, and trip over, the state in between.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from tests.kubernetes.server.kinds import EVENT, Resource
from tests.kubernetes.server.removing import stored
from tests.kubernetes.server.storage import Change, Key, Object, Store, copied, key_of, stamp

Condition = dict[str, Any]


def condition(conditions: Iterable[Condition] | None, kind: str) -> Condition | None:
    return next((found for found in conditions or () if found["type"] == kind), None)


def is_true(found: Object, kind: str) -> bool:
    known = condition((found.get("status") or {}).get("conditions"), kind)
    return known is not None and known["status"] == "True"


def set_condition(status: Object, kind: str, value: bool, reason: str, message: str, **more: Any) -> None:
    """Write a condition in its place; the time of a transition stands while the value does."""
    conditions: list[Condition] = status.setdefault("conditions", [])
    known = condition(conditions, kind)
    text = "True" if value else "False"
    since = known["lastTransitionTime"] if known and known["status"] == text else stamp()
    made = {"type": kind, "status": text, "lastTransitionTime": since, "reason": reason, "message": message, **more}
    if known is None:
        conditions.append(made)
    else:
        conditions[conditions.index(known)] = made


def owner_reference(resource: Resource, owner: Object) -> dict[str, Any]:
    named = {"apiVersion": resource.api_version, "kind": resource.kind}
    metadata = owner["metadata"]
    return {**named, "name": metadata["name"], "uid": metadata["uid"], "controller": True, "blockOwnerDeletion": True}


def emit(store: Store, resource: Resource, about: Object, reason: str, message: str, kind: str = "Normal") -> None:
    """An Event about an object."""
    metadata = about["metadata"]
    involved = {"apiVersion": resource.api_version, "kind": resource.kind, "name": metadata["name"]}
    involved |= {"namespace": metadata["namespace"], "uid": metadata["uid"]}
    name = f"{metadata['name']}.{random.getrandbits(64):016x}"
    event = {"metadata": {"name": name, "namespace": metadata["namespace"]}, "involvedObject": involved}
    times = {"firstTimestamp": stamp(), "lastTimestamp": stamp(), "eventTime": None, "count": 1}
    store.create(EVENT, {**event, "reason": reason, "message": message, "type": kind, **times})


class Loop(ABC):
    """A controller of one resource."""

    resource: Resource

    def __init__(self, store: Store, pause: float = 0.01) -> None:
        self.store = store
        self._pause = pause
        self._waiting: dict[Key, None] = {}
        self._woken = asyncio.Event()
        store.listeners.append(self._hear)

    def keys(self, change: Change) -> Iterable[Key]:
        """The objects to look at after a change: itself, or its owner."""
        if change.resource is self.resource:
            yield key_of(change.at)
        for owner in change.at["metadata"].get("ownerReferences") or ():
            if owner["kind"] == self.resource.kind:
                yield change.at["metadata"].get("namespace", ""), owner["name"]

    def _hear(self, change: Change) -> None:
        for key in self.keys(change):
            self.look_at(key)

    def look_at(self, key: Key, after: float = 0.0) -> None:
        if after > 0:
            asyncio.get_running_loop().call_later(after, self.look_at, key)
            return
        self._waiting[key] = None
        self._woken.set()

    async def _due(self) -> list[Key]:
        """The keys to look at, once there are any and a moment has passed."""
        await self._woken.wait()
        await asyncio.sleep(self._pause)
        self._woken.clear()
        keys = list(self._waiting)
        self._waiting.clear()
        return keys

    async def run(self) -> None:
        while True:
            for key in await self._due():
                found = self.store.get(self.resource, *key)
                if found is not None:
                    self.settle(copied(found))

    @abstractmethod
    def settle(self, found: Object) -> None:
        """Bring the world one step nearer to what the object declares; `found` may be changed at will."""

    def write_status(self, found: Object, status: Object) -> Object:
        """Store a status; the rest of the object is taken as it is now."""
        now = self.store.get(self.resource, *key_of(found))
        if now is None or now["metadata"]["uid"] != found["metadata"]["uid"]:
            return found
        return stored(self.store, self.resource, {**now, "status": status})
