"""Kueue: a Workload for each Job of a queue, gates, and its webhooks. Who gets the quota is `admission`.

One rule: `spec.suspend` of a queued Job is Kueue's alone. It follows the Workload, whoever wrote it, a moment later; a
Workload being evicted keeps its quota until its pods are gone, and its eviction counters only ever grow.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

from tests.kubernetes.server import shaping
from tests.kubernetes.server.controllers.jobs import deleting, ended, ready
from tests.kubernetes.server.controllers.kubelet import amount
from tests.kubernetes.server.controllers.loop import Loop, condition, emit, is_true, owner_reference, set_condition
from tests.kubernetes.server.faults import Faults
from tests.kubernetes.server.kinds import (
    JOB,
    JOBSET,
    POD,
    PRIORITY_CLASS,
    PYTORCHJOB,
    TRAINJOB,
    WORKLOAD,
    Resource,
)
from tests.kubernetes.server.refusing import Refused, internal
from tests.kubernetes.server.removing import stored
from tests.kubernetes.server.storage import Change, Key, Object, Store, copied, key_of
from tests.kubernetes.server.writing import Write

GATE = "kueue.x-k8s.io/admission-gated-by"
QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY = "kueue.x-k8s.io/priority-class"
UID = "kueue.x-k8s.io/job-uid"
PENDING = "Workload is pending evaluation in the scheduling queue"
IN_USE = "kueue.x-k8s.io/resource-in-use"
MANAGED = (JOB, JOBSET, TRAINJOB, PYTORCHJOB)
ENDS = {"Complete": "Succeeded", "Completed": "Succeeded", "Succeeded": "Succeeded", "Failed": "Failed"}


def queue_of(job: Object) -> str:
    return str((job["metadata"].get("labels") or {}).get(QUEUE, ""))


def gate_of(found: Object) -> str:
    return str((found["metadata"].get("annotations") or {}).get(GATE, ""))


def _switch(resource: Resource, job: Object) -> dict[str, Any]:
    spec: dict[str, Any] = job["spec"]
    return spec.setdefault("runPolicy", {}) if resource is PYTORCHJOB else spec


def suspended(resource: Resource, job: Object) -> bool:
    return bool(_switch(resource, job).get("suspend"))


def pods_of(store: Store, uid: str) -> Iterator[Object]:
    """The pods of an object, through whatever it owns."""
    for resource, owned in store.owned_by(uid):
        if resource is POD:
            yield owned
        elif resource is not WORKLOAD:
            yield from pods_of(store, owned["metadata"]["uid"])


def pod_sets(resource: Resource, job: Object) -> list[dict[str, Any]]:
    """(name, count, template) of the pods that a job asks for."""
    spec = job["spec"]
    if resource is JOB:
        count = min(spec["parallelism"], spec.get("completions") or spec["parallelism"])
        return [{"name": "main", "count": count, "template": spec["template"]}]
    if resource is PYTORCHJOB:
        rows = spec["pytorchReplicaSpecs"].items()
        return [{"name": k.lower(), "count": row.get("replicas", 1), "template": row["template"]} for k, row in rows]
    if resource is JOBSET:
        return [
            {
                "name": row["name"],
                "count": row.get("replicas", 1) * row["template"]["spec"].get("parallelism", 1),
                "template": row["template"]["spec"]["template"],
            }
            for row in spec["replicatedJobs"]
        ]
    trainer = spec.get("trainer") or {}
    container = {"name": "node", "resources": trainer.get("resourcesPerNode") or {}}
    return [{"name": "node", "count": trainer.get("numNodes", 1), "template": {"spec": {"containers": [container]}}}]


def asked_by(workload: Object) -> dict[str, float]:
    total: dict[str, float] = {}
    for row in workload["spec"]["podSets"]:
        for container in row["template"]["spec"]["containers"]:
            resources = container.get("resources") or {}
            for name, value in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
                total[name] = total.get(name, 0.0) + row["count"] * amount(value)
    return total


class Webhooks:
    """What Kueue's webhooks refuse and change at a write."""

    def __init__(self, faults: Faults, *, gates: bool, takes: str = "") -> None:
        self._faults = faults
        self._gates = gates
        self._takes = takes

    def mutate(self, resource: Resource, before: Object | None, after: Object, write: Write) -> None:
        if resource not in (*MANAGED, WORKLOAD):
            return
        if self._faults.webhook_down:
            first, word = ("m", "mutate") if before is None else ("v", "validate")
            hook = f"{first}{resource.kind.lower()}.kb.io"
            name = f"{resource.group.replace('.', '-')}-{resource.version}-{resource.kind.lower()}"
            service = "https://kueue-webhook-service.kueue-system.svc:443"
            where = f"{service}/{word}-{name}?timeout={write.timeout}"
            why = f'failed calling webhook "{hook}": failed to call webhook: Post "{where}": dial tcp 10.96.0.20:443: '
            raise internal(f"{why}connect: connection refused")
        if before is not None or resource not in MANAGED:
            return
        if self._takes == "a queue by default" and not queue_of(after):
            after["metadata"].setdefault("labels", {})[QUEUE] = "training"
        if queue_of(after) or self._takes:
            _switch(resource, after)["suspend"] = True

    def validate(self, resource: Resource, before: Object | None, after: Object, write: Write) -> None:
        if resource not in MANAGED:
            return
        if self._gates and gate_of(after) != (gate_of(before) if before else ""):
            self._check_gate(resource, before, after)
        running = before is not None and not suspended(resource, before)
        if running and before is not None and queue_of(before) not in ("", queue_of(after)):
            value = f'metadata.labels[{QUEUE}]: Invalid value: "{queue_of(after)}": field is immutable'
            raise self._denied(resource, value)

    def _check_gate(self, resource: Resource, before: Object | None, after: Object) -> None:
        field = f"metadata.annotations[{GATE}]"
        names = [name for name in gate_of(after).split(",") if name]
        if before is not None and set(names) - set(gate_of(before).split(",")):
            raise self._denied(resource, f"{field}: Forbidden: cannot add admission gate after creation")
        for name in names:
            if len(name) > 63:
                raise self._denied(resource, f"{field}: Too long: may not be more than 63 bytes")
            if not re.fullmatch(rf"{shaping.SUBDOMAIN}/\S+", name):
                why = 'must be a domain-prefixed path (such as "acme.io/foo")'
                raise self._denied(resource, f'{field}: Invalid value: "{name}": {why}')

    @staticmethod
    def _denied(resource: Resource, why: str) -> Refused:
        hook = f"v{resource.kind.lower()}.kb.io"
        return Refused(403, "Forbidden", f'admission webhook "{hook}" denied the request: {why}')


def set_told(workload: Object, status: Object, kind: str, value: bool, reason: str, message: str) -> None:
    """A condition of a Workload, where it is another than before."""
    known = condition(status.get("conditions"), kind)
    if known is None or (known["status"] == "True", known["reason"]) != (value, reason):
        generation = workload["metadata"].get("generation", 1)
        set_condition(status, kind, value, reason, message, observedGeneration=generation)


def evict(workload: Object, status: Object, reason: str, message: str) -> None:
    """Evicted, and counted."""
    set_told(workload, status, "Evicted", True, reason, message)
    rows = status.setdefault("schedulingStats", {}).setdefault("evictions", [])
    for row in rows:
        if row["reason"] == reason:
            row["count"] += 1
            return
    rows.append({"reason": reason, "underlyingCause": "", "count": 1})


class QueuedJobs(Loop):
    """Jobs of one kind and their Workloads."""

    def __init__(self, store: Store, resource: Resource, *, gates: bool) -> None:
        self.resource = resource
        self._gates = gates
        super().__init__(store)

    def keys(self, change: Change) -> Iterable[Key]:
        yield from super().keys(change)
        if change.resource is POD:
            for owner in change.at["metadata"].get("ownerReferences") or ():
                found = self.store.by_uid(owner["uid"])
                while found and found[0] is not self.resource:
                    above = found[1]["metadata"].get("ownerReferences") or ()
                    found = self.store.by_uid(above[0]["uid"]) if above else None
                if found:
                    yield key_of(found[1])

    def settle(self, found: Object) -> None:
        owned = found["metadata"].get("ownerReferences") or ()
        if not queue_of(found) or any(owner["kind"] in ("JobSet", "TrainJob") for owner in owned):
            return
        workloads = [each for _, each in self.store.owned_by(found["metadata"]["uid"], WORKLOAD)]
        end = next((kind for kind in ENDS if is_true(found, kind)), None)
        if deleting(found):
            self._free(workloads)
        elif not workloads:
            if end is None:
                self._make(found)
        elif end is not None:
            self._finish(found, workloads[0], end)
        elif not deleting(workloads[0]):
            self._keep(found, copied(workloads[0]))
        else:
            self._free(workloads)

    def _make(self, job: Object) -> None:
        uid, kind = job["metadata"]["uid"], self.resource.kind.lower()
        hashed = hashlib.sha256(uid.encode()).hexdigest()[:5]
        metadata: dict[str, Any] = {"name": f"{kind}-{job['metadata']['name']}-{hashed}", "labels": {UID: uid}}
        metadata |= {"namespace": job["metadata"]["namespace"], "finalizers": [IN_USE], "generation": 1}
        metadata["ownerReferences"] = [owner_reference(self.resource, job)]
        if gate_of(job) and self._gates:
            metadata["annotations"] = {GATE: gate_of(job)}
        name = (job["metadata"].get("labels") or {}).get(PRIORITY, "")
        known = self.store.get(PRIORITY_CLASS, "", name) or {}
        spec = {"active": True, "queueName": queue_of(job), "priority": known.get("value", 0)}
        spec["podSets"] = copied(pod_sets(self.resource, job))
        made = self.store.create(WORKLOAD, {"metadata": metadata, "spec": spec})
        emit(self.store, self.resource, job, "CreatedWorkload", f"Created Workload: {made['metadata']['name']}")

    def _free(self, workloads: list[Object]) -> None:
        for workload in workloads:
            if IN_USE in (workload["metadata"].get("finalizers") or ()):
                freed = copied(workload)
                freed["metadata"]["finalizers"].remove(IN_USE)
                stored(self.store, WORKLOAD, freed)

    def _finish(self, job: Object, workload: Object, end: str) -> None:
        if not is_true(workload, "Finished"):
            said = condition(job["status"]["conditions"], end) or {}
            status = copied(workload.get("status") or {})
            set_told(workload, status, "Finished", True, ENDS[end], said["message"])
            workload = self.store.update(WORKLOAD, {**workload, "status": status})
        self._free([workload])

    def _keep(self, job: Object, workload: Object) -> None:
        """Queue and gate follow the Job, the Job's suspend follows the Workload."""
        workload["spec"]["queueName"] = queue_of(job)
        annotations = workload["metadata"].setdefault("annotations", {})
        annotations.pop(GATE, None)
        if gate_of(job) and self._gates:
            annotations[GATE] = gate_of(job)
        if not annotations:
            del workload["metadata"]["annotations"]
        status = copied(workload.get("status") or {})
        pods = list(pods_of(self.store, job["metadata"]["uid"]))
        self._readiness(workload, status, pods)
        runs = is_true(workload, "Admitted") and not is_true(workload, "Evicted")
        if suspended(self.resource, job) == runs:
            _switch(self.resource, job)["suspend"] = not runs
            job["metadata"]["generation"] = job["metadata"].get("generation", 1) + 1
            self.store.update(self.resource, job)
        elif is_true(workload, "Evicted") and not runs and all(ended(pod) for pod in pods):
            self._release_quota(workload, status)
        self.store.update(WORKLOAD, {**workload, "status": status})

    @staticmethod
    def _readiness(workload: Object, status: Object, pods: list[Object]) -> None:
        live = [pod for pod in pods if not deleting(pod)]
        count = sum(row["count"] for row in workload["spec"]["podSets"])
        good = [pod for pod in live if ready(pod) or pod["status"].get("phase") == "Succeeded"]
        known = condition(status.get("conditions"), "PodsReady")
        if len(good) >= count:
            lost = known is not None and known["reason"] in ("WaitForRecovery", "Recovered")
            message = "All pods reached readiness and the workload is running"
            set_told(workload, status, "PodsReady", True, "Recovered" if lost else "Started", message)
        elif is_true({"status": status}, "PodsReady"):
            message = "At least one pod has failed, waiting for recovery"
            set_told(workload, status, "PodsReady", False, "WaitForRecovery", message)
        elif known is None or (not pods and is_true({"status": status}, "Evicted")):
            set_told(workload, status, "PodsReady", False, "WaitForStart", "Not all pods are ready or succeeded")

    @staticmethod
    def _release_quota(workload: Object, status: Object) -> None:
        if "admission" not in status:
            return
        del status["admission"]
        why = condition(status["conditions"], "Evicted") or {}
        held = why["reason"] == "Deactivated"
        set_told(workload, status, "QuotaReserved", False, "PendingEvaluation", PENDING)
        set_told(workload, status, "Admitted", False, "NoReservation", "The workload has no reservation")
        set_told(workload, status, "Requeued", not held, why["reason"], why["message"])
