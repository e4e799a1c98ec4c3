"""Writes: what happens to an object between the request and the store.

One rule: the order is the real server's: the patch with its tests, defaults, the object's own validity, what admission
says, and only then the store, or for a dry run nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.kubernetes.server import patching, removing, shaping
from tests.kubernetes.server.kinds import NAMESPACE, QUOTA, Resource
from tests.kubernetes.server.refusing import already_exists, bad_request, forbidden, modified, not_found
from tests.kubernetes.server.storage import Object, Store, copied, stamp


@dataclass
class Write:
    """What the request says beside the object."""

    manager: str = "unknown"
    user: str = ""
    dry_run: bool = False
    strict: bool = False
    timeout: str = "10s"
    """What a webhook is given, as the request's `?timeout=` has it."""
    warnings: list[str] = field(default_factory=list)
    """Filled for the response's Warning headers."""


def managed(before: Object | None, after: Object, resource: Resource, manager: str, subresource: str = "") -> None:
    """Note who wrote, and when. Which fields each manager owns is not kept."""
    entries = [dict(entry) for entry in ((before or after)["metadata"].get("managedFields") or ())]
    for entry in entries:
        if entry["manager"] == manager and entry.get("subresource", "") == subresource:
            entry["time"] = stamp()
            break
    else:
        entry = {"manager": manager, "operation": "Update", "apiVersion": resource.api_version, "time": stamp()}
        entry |= {"fieldsType": "FieldsV1", "fieldsV1": {}}
        entries.append({**entry, "subresource": subresource} if subresource else entry)
    after["metadata"]["managedFields"] = entries


Admission = Callable[[Resource, Object | None, Object, Write], None]
"""(resource, before, after, write): may change `after`, and raises Refused; `before` is None for a create."""


@dataclass
class Writer:
    """The writes of one server."""

    store: Store
    mutating: list[Admission] = field(default_factory=list)
    validating: list[Admission] = field(default_factory=list)

    def create(self, resource: Resource, namespace: str, body: Object, write: Write) -> Object:
        made = copied(body)
        metadata = self._checked_metadata(resource, namespace, made)
        self._check_fields(resource, made, write)
        for name in ("resourceVersion", "uid", "creationTimestamp", "deletionTimestamp", "managedFields"):
            metadata.pop(name, None)
        made.pop("kind", None), made.pop("apiVersion", None)
        shaping.named(made)
        if resource.namespaced:
            metadata["namespace"] = namespace
            self._check_namespace(resource, namespace, metadata.get("name", ""))
        metadata.update(uid=str(uuid.uuid4()), creationTimestamp=stamp(), generation=1)
        if resource.status:
            made.pop("status", None)
        self._admit(self.mutating, resource, None, made, write)
        shaping.defaulted(resource, made)
        managed(None, made, resource, write.manager)
        shaping.check(resource, made)
        self._admit(self.validating, resource, None, made, write)
        self._check_quota(resource, namespace, metadata["name"])
        there = self.store.get(resource, namespace, metadata["name"])
        if there is not None:
            deleting = "deletionTimestamp" in there["metadata"]
            raise already_exists(resource, metadata["name"], deleting=deleting)
        return made if write.dry_run else self.store.create(resource, made)

    def patch(
        self, resource: Resource, key: tuple[str, str], content_type: str, body: bytes, write: Write, subresource: str
    ) -> Object:
        found = self.store.get(resource, *key)
        if found is None:
            if content_type == patching.APPLY:
                return self.create(
                    resource, key[0], patching.patched(resource, {"metadata": {}}, content_type, body), write
                )
            raise not_found(resource, key[1])
        shown = {"kind": resource.kind, "apiVersion": resource.api_version, **found}
        wanted = patching.patched(resource, shown, content_type, body)
        return self._change(resource, found, wanted, write, subresource)

    def replace(self, resource: Resource, key: tuple[str, str], body: Object, write: Write, subresource: str) -> Object:
        found = self.store.get(resource, *key)
        if found is None:
            raise not_found(resource, key[1])
        wanted = copied(body)
        wanted.setdefault("metadata", {}).setdefault("name", key[1])
        for name in ("creationTimestamp", "generation", "namespace"):
            if name in found["metadata"]:
                wanted["metadata"][name] = found["metadata"][name]
        uid = wanted["metadata"].get("uid", found["metadata"]["uid"])
        if uid != found["metadata"]["uid"]:
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {found['metadata']['uid']}"
            raise removing.conflict(resource, key[1], why)
        wanted["metadata"]["uid"] = uid
        return self._change(resource, found, wanted, write, subresource)

    def delete(self, resource: Resource, found: Object, options: dict[str, Any], write: Write) -> Object | None:
        """The object while it stays, None when it is gone."""
        removing.check_preconditions(resource, found, options.get("preconditions") or {})
        policy = options.get("propagationPolicy")
        if policy is None:
            policy = removing.default_policy(resource)
            if policy == "Orphan":
                write.warnings.append(removing.ORPHANS_WARNING)
        if write.dry_run:
            return None if policy == "Background" else found
        return removing.delete(self.store, resource, found, policy, options.get("gracePeriodSeconds"))

    def _change(self, resource: Resource, found: Object, wanted: Object, write: Write, subresource: str) -> Object:
        wanted.pop("kind", None), wanted.pop("apiVersion", None)
        revision = wanted["metadata"].get("resourceVersion")
        if revision not in (None, "", found["metadata"]["resourceVersion"]):
            raise modified(resource, found["metadata"]["name"])
        after = self._kept(resource, found, wanted, subresource)
        if not subresource:
            self._check_fields(resource, after, write)
            self._admit(self.mutating, resource, found, after, write)
            shaping.check_change(resource, found, after)
            shaping.check(resource, after)
        after["metadata"]["uid"] = found["metadata"]["uid"]
        after["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
        if after == found:
            return found
        managed(found, after, resource, write.manager, subresource)
        if after.get("spec") != found.get("spec"):
            after["metadata"]["generation"] = found["metadata"].get("generation", 1) + 1
        if not subresource:
            self._admit(self.validating, resource, found, after, write)
        if write.dry_run:
            return after
        return removing.stored(self.store, resource, after)

    @staticmethod
    def _kept(resource: Resource, found: Object, wanted: Object, subresource: str) -> Object:
        """Status through /status only, everything else through the object itself only."""
        if subresource == "status":
            metadata = {**found["metadata"], "managedFields": found["metadata"].get("managedFields")}
            return {**found, "metadata": metadata, "status": wanted.get("status", {})}
        metadata = {**wanted["metadata"], "managedFields": found["metadata"].get("managedFields")}
        for name in ("deletionTimestamp", "deletionGracePeriodSeconds", "generation", "creationTimestamp"):
            metadata.pop(name, None)
            if name in found["metadata"]:
                metadata[name] = found["metadata"][name]
        after = {**wanted, "metadata": metadata}
        if resource.status:
            after.pop("status", None)
            if "status" in found:
                after["status"] = found["status"]
        return copied(after)

    @staticmethod
    def _admit(
        admissions: list[Admission], resource: Resource, before: Object | None, after: Object, write: Write
    ) -> None:
        for admission in admissions:
            admission(resource, before, after, write)

    @staticmethod
    def _checked_metadata(resource: Resource, namespace: str, made: Object) -> dict[str, Any]:
        metadata: dict[str, Any] = made.setdefault("metadata", {})
        if resource.namespaced and metadata.get("namespace", namespace) != namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        if not metadata.get("name") and not metadata.get("generateName"):
            message = "Required value: name or generateName is required"
            raise shaping.invalid(resource, "", [("metadata.name", "FieldValueRequired", message)])
        return metadata

    @staticmethod
    def _check_fields(resource: Resource, made: Object, write: Write) -> None:
        unknown = shaping.unknown_fields(resource, made)
        if unknown and write.strict:
            said = ", ".join(f'unknown field "{path}"' for path in unknown)
            raise bad_request(
                f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '
                f"strict decoding error: {said}"
            )
        write.warnings += [f'unknown field "{path}"' for path in unknown]
        shaping.pruned(resource, made)

    def _check_namespace(self, resource: Resource, namespace: str, name: str) -> None:
        found = self.store.get(NAMESPACE, "", namespace)
        if found is None:
            raise not_found(NAMESPACE, namespace)
        if "deletionTimestamp" in found["metadata"] or (found.get("status") or {}).get("phase") == "Terminating":
            cause = {"reason": "NamespaceTerminating", "message": f"namespace {namespace} is being terminated"}
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise forbidden(resource, name, why, [{**cause, "field": "metadata.namespace"}])

    def _check_quota(self, resource: Resource, namespace: str, name: str) -> None:
        """A ResourceQuota on the number of objects; what is used is what its status says."""
        counted = f"count/{resource.qualified}"
        for quota in self.store.all(QUOTA, namespace):
            hard = quota["spec"]["hard"].get(counted)
            used = (quota.get("status") or {}).get("used", {}).get(counted, "0")
            if hard is not None and int(used) + 1 > int(hard):
                said = f"requested: {counted}=1, used: {counted}={used}, limited: {counted}={hard}"
                raise forbidden(resource, name, f"exceeded quota: {quota['metadata']['name']}, {said}")
