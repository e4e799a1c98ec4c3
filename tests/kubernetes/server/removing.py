"""Deletion: preconditions, the three ways of propagation, finalizers, and the garbage collector.

One rule: an object goes only when its last finalizer does. Foreground keeps the owner until its dependents are gone,
Background lets it go first, Orphan strips the dependents of it; what names an owner that is not there is collected.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.kubernetes.server.kinds import JOB, POD, Resource
from tests.kubernetes.server.refusing import conflict
from tests.kubernetes.server.storage import Change, Object, Store, copied, key_of, owner_uids, stamp

FINALIZERS = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}
ORPHANS_WARNING = (
    "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them "
    "or set propagationPolicy=Orphan to suppress this warning"
)


def check_preconditions(resource: Resource, found: Object, preconditions: dict[str, Any]) -> None:
    """Raises Refused (409) where the object is not the one that is meant."""
    metadata = found["metadata"]
    for field, word, after in (
        ("uid", "UID", ". The object might have been deleted and then recreated"),
        ("resourceVersion", "ResourceVersion", ". The object might have been modified"),
    ):
        wanted = preconditions.get(field)
        if wanted is not None and wanted != metadata[field]:
            why = f"the {word} in the precondition ({wanted}) does not match the {word} in record ({metadata[field]})"
            raise conflict(resource, metadata["name"], why + after)


def stored(store: Store, resource: Resource, changed: Object) -> Object:
    """Store the next state of an object, or take it away when it is being deleted and nothing keeps it any more."""
    metadata = changed["metadata"]
    waits = resource is POD and metadata.get("deletionGracePeriodSeconds", 0) > 0
    if metadata.get("deletionTimestamp") and not metadata.get("finalizers") and not waits:
        return store.remove(resource, changed)
    return store.update(resource, changed)


def delete(store: Store, resource: Resource, found: Object, policy: str, grace: int | None = None) -> Object | None:
    """Delete an object; the object while it stays, None when it is gone."""
    found = copied(found)
    metadata = found["metadata"]
    kept = [name for name in metadata.get("finalizers") or () if name not in FINALIZERS.values()]
    kept += [FINALIZERS[policy]] if policy in FINALIZERS else []
    metadata["finalizers"] = kept
    if not kept:
        del metadata["finalizers"]
    seconds = _grace(resource, found, grace)
    if not kept and not seconds:
        store.remove(resource, store.objects[resource][key_of(found)])
        return None
    first = "deletionTimestamp" not in metadata
    if first or seconds < metadata.get("deletionGracePeriodSeconds", 0):
        metadata["deletionTimestamp"] = stamp(datetime.now(UTC) + timedelta(seconds=seconds))
        metadata["deletionGracePeriodSeconds"] = seconds
    if first:
        metadata["generation"] = metadata.get("generation", 1) + 1
    return store.update(resource, found)


def _grace(resource: Resource, found: Object, asked: int | None) -> int:
    """Seconds a pod may take to end; none for one that no node has, or that has ended."""
    ended = (found.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    if resource is not POD or not found["spec"].get("nodeName") or ended:
        return 0
    return asked if asked is not None else found["spec"].get("terminationGracePeriodSeconds", 30)


def default_policy(resource: Resource) -> str:
    return "Orphan" if resource is JOB else "Background"


class Collector:
    """The garbage collector: follows the changes a moment later."""

    def __init__(self, store: Store, pause: float = 0.01) -> None:
        self._store = store
        self._pause = pause
        self._changed: asyncio.Queue[Change] = asyncio.Queue()
        store.listeners.append(self._changed.put_nowait)

    async def run(self) -> None:
        while True:
            changes = [await self._changed.get()]
            await asyncio.sleep(self._pause)
            while not self._changed.empty():
                changes.append(self._changed.get_nowait())
            for change in changes:
                self.follow(change)

    def follow(self, change: Change) -> None:
        uid = change.at["metadata"]["uid"]
        present = self._store.by_uid(uid)
        if present is None:
            self._collect_dependents(uid)
            for owner in owner_uids(change.at):
                self._finish(owner)
            return
        resource, found = present
        if owner_uids(found) and not found["metadata"].get("deletionTimestamp"):
            self._collect(resource, found)
        self._finish(uid)

    def _collect_dependents(self, uid: str) -> None:
        for resource, dependent in self._store.owned_by(uid):
            self._collect(resource, dependent)

    def _collect(self, resource: Resource, found: Object) -> None:
        """Delete what has no owner left."""
        if any(self._store.by_uid(owner) for owner in owner_uids(found)):
            return
        if not found["metadata"].get("deletionTimestamp"):
            delete(self._store, resource, found, "Background")

    def _finish(self, uid: str) -> None:
        """Carry on with an owner that is being deleted."""
        present = self._store.by_uid(uid)
        if present is None or not present[1]["metadata"].get("deletionTimestamp"):
            return
        resource, found = present
        finalizers = found["metadata"].get("finalizers") or []
        if "orphan" in finalizers:
            self._release_dependents(uid)
            self._without(resource, found, "orphan")
        elif "foregroundDeletion" in finalizers:
            dependents = list(self._store.owned_by(uid))
            for kind, dependent in dependents:
                if not dependent["metadata"].get("deletionTimestamp"):
                    delete(self._store, kind, dependent, "Background" if kind is POD else "Foreground")
            if not list(self._store.owned_by(uid)):
                self._without(resource, found, "foregroundDeletion")

    def _release_dependents(self, uid: str) -> None:
        for resource, dependent in self._store.owned_by(uid):
            released = copied(dependent)
            owners = [owner for owner in released["metadata"]["ownerReferences"] if owner["uid"] != uid]
            released["metadata"]["ownerReferences"] = owners
            if not owners:
                del released["metadata"]["ownerReferences"]
            self._store.update(resource, released)

    def _without(self, resource: Resource, found: Object, finalizer: str) -> None:
        freed = copied(found)
        freed["metadata"]["finalizers"].remove(finalizer)
        if not freed["metadata"]["finalizers"]:
            del freed["metadata"]["finalizers"]
        stored(self._store, resource, freed)
