"""The scheduler of Kueue: who gets the quota of a ClusterQueue, who waits and why, and who is preempted.

One rule: a Workload is admitted only with its gate open, active, in a queue that takes some, and with room for all of
it; a higher priority makes room by one victim at a time.

Not here: cohorts and borrowing, AdmissionChecks, waitForPodsReady, partial admission, several flavours.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.kubernetes.server.controllers.jobs import deleting
from tests.kubernetes.server.controllers.kubelet import amount
from tests.kubernetes.server.controllers.kueue import PENDING, asked_by, evict, gate_of, set_told
from tests.kubernetes.server.controllers.loop import Loop, condition, emit, is_true
from tests.kubernetes.server.kinds import CLUSTER_QUEUE, LOCAL_QUEUE, WORKLOAD
from tests.kubernetes.server.storage import Change, Key, Object, Store, copied, key_of


class Admission(Loop):
    """The scheduler of Kueue: who gets the quota."""

    resource = WORKLOAD

    def keys(self, change: Change) -> Iterable[Key]:
        """Any change of a queue or a Workload may make room for all that wait."""
        if change.resource in (WORKLOAD, LOCAL_QUEUE, CLUSTER_QUEUE):
            yield "", ""

    async def run(self) -> None:
        while True:
            await self._due()
            for workload in sorted(self.store.all(WORKLOAD), key=_rank):
                now = self.store.get(WORKLOAD, *key_of(workload))
                if now is not None and not is_true(now, "Finished") and not deleting(now):
                    self.settle(copied(now))

    def settle(self, found: Object) -> None:
        status = copied(found.get("status") or {})
        evicted = is_true(found, "Evicted")
        known = condition(status.get("conditions"), "Evicted") or {}
        if not found["spec"].get("active", True):
            if not evicted or known["reason"] != "Deactivated":
                evict(found, status, "Deactivated", "The workload is deactivated")
            if "admission" not in status:
                self._wait(found, status)
        elif evicted and known["reason"] == "Deactivated" and "admission" not in status:
            requeued = condition(status["conditions"], "Requeued")
            if requeued is None or requeued["status"] == "True":
                self._admit_or_wait(found, status)
            else:
                set_told(found, status, "Requeued", True, "Reactivated", "The workload was reactivated")
        elif "admission" not in status:
            self._admit_or_wait(found, status)
        self.store.update(WORKLOAD, {**found, "status": status})

    def _wait(self, workload: Object, status: Object, reason: str = "", message: str = "") -> None:
        if not reason and gate_of(workload):
            reason, message = "AdmissionGated", f"Admission is gated by: {gate_of(workload)}"
        elif not reason:
            reason, message = "Deactivated", "The workload is deactivated"
        set_told(workload, status, "QuotaReserved", False, reason, message)
        set_told(workload, status, "Admitted", False, "NoReservation", "The workload has no reservation")

    def _admit_or_wait(self, workload: Object, status: Object) -> None:
        known = condition(status.get("conditions"), "QuotaReserved") or {}
        requeued = condition(status.get("conditions"), "Requeued") is not None
        fresh = known.get("reason") == "AdmissionGated" or (known.get("reason") == "Deactivated" and requeued)
        if fresh and not gate_of(workload):
            self._wait(workload, status, "PendingEvaluation", PENDING)
            return
        why = self._hindrance(workload)
        if why is not None:
            self._wait(workload, status, *why)
            return
        queue = self._cluster_queue(workload)
        assert queue is not None
        name = queue["metadata"]["name"]
        usage = {key: _written(value) for key, value in asked_by(workload).items()}
        flavors = dict.fromkeys(usage, "default-flavor")
        rows = [
            {"name": row["name"], "count": row["count"], "flavors": flavors, "resourceUsage": usage}
            for row in workload["spec"]["podSets"]
        ]
        status["admission"] = {"clusterQueue": name, "podSetAssignments": rows}
        set_told(workload, status, "QuotaReserved", True, "QuotaReserved", f"Quota reserved in ClusterQueue {name}")
        set_told(workload, status, "Admitted", True, "Admitted", "The workload is admitted")
        for kind in ("Evicted", "Preempted"):
            known = condition(status["conditions"], kind)
            if known is not None and known["status"] == "True":
                set_told(workload, status, kind, False, "QuotaReserved", f"Previously: {known['message']}")
        emit(self.store, WORKLOAD, workload, "Admitted", f"Admitted by ClusterQueue {name}")

    def _cluster_queue(self, workload: Object) -> Object | None:
        local = self.store.get(LOCAL_QUEUE, workload["metadata"]["namespace"], workload["spec"]["queueName"])
        return self.store.get(CLUSTER_QUEUE, "", local["spec"]["clusterQueue"]) if local else None

    def _hindrance(self, workload: Object) -> tuple[str, str] | None:
        """(reason, message) of why it must wait, or None."""
        if gate_of(workload):
            return "AdmissionGated", f"Admission is gated by: {gate_of(workload)}"
        name = workload["spec"]["queueName"]
        local = self.store.get(LOCAL_QUEUE, workload["metadata"]["namespace"], name)
        if local is None:
            return "Misconfigured", f"LocalQueue {name} doesn't exist"
        if local["spec"].get("stopPolicy", "None") != "None":
            return "Suspended", f"LocalQueue {name} is inactive"
        queue = self._cluster_queue(workload)
        if queue is None or queue["spec"].get("stopPolicy", "None") != "None":
            return "Suspended", f"ClusterQueue {local['spec']['clusterQueue']} is inactive"
        return self._quota_hindrance(workload, queue)

    def _quota_hindrance(self, workload: Object, queue: Object) -> tuple[str, str] | None:
        quota = {
            row["name"]: amount(row["nominalQuota"])
            for group in queue["spec"].get("resourceGroups") or ()
            for row in group["flavors"][0]["resources"]
        }
        asked = {name: value for name, value in asked_by(workload).items() if name in quota}
        for name, value in asked.items():
            if value > quota[name]:
                return "ExceedsMaxQuota", f"insufficient quota for {name} in flavor default-flavor"
        users = [each for each in self.store.all(WORKLOAD) if self._uses(each, queue)]
        used = {name: sum(asked_by(each).get(name, 0.0) for each in users) for name in asked}
        if all(used[name] + value <= quota[name] for name, value in asked.items()):
            return None
        victims = [each for each in users if each["spec"]["priority"] < workload["spec"]["priority"]]
        lower = (queue["spec"].get("preemption") or {}).get("withinClusterQueue") == "LowerPriority"
        if lower and victims:
            self._preempt(workload, min(victims, key=lambda each: each["spec"]["priority"]))
            return "WaitingForPreemptedWorkloads", "Workload is waiting for preempted workloads to release quota"
        return "WaitingForQuota", "insufficient unused quota for cpu in flavor default-flavor"

    @staticmethod
    def _uses(workload: Object, queue: Object) -> bool:
        admission = (workload.get("status") or {}).get("admission") or {}
        return admission.get("clusterQueue") == queue["metadata"]["name"] and not is_true(workload, "Finished")

    def _preempt(self, preemptor: Object, victim: Object) -> None:
        if is_true(victim, "Evicted"):
            return
        status = copied(victim["status"])
        uid = preemptor["metadata"]["uid"]
        message = f"Preempted to accommodate a workload (UID: {uid}) due to prioritization in the ClusterQueue"
        evict(victim, status, "Preempted", message)
        set_told(victim, status, "Preempted", True, "InClusterQueue", message)
        self.store.update(WORKLOAD, {**victim, "status": status})


def _rank(workload: Object) -> tuple[int, str, str]:
    metadata = workload["metadata"]
    return -workload["spec"].get("priority", 0), metadata["creationTimestamp"], metadata["name"]


def _written(value: float) -> str:
    if value >= 2**20 and value % 2**20 == 0:
        return f"{int(value // 2**20)}Mi"
    return f"{int(value)}" if value == int(value) else f"{round(value * 1000)}m"


def add_queues(store: Store, namespace: str, *, cpu: str = "4", memory: str = "16Gi") -> None:
    """A ClusterQueue with a quota, the LocalQueue `training` and the held one `parked`."""
    rows = [{"name": "cpu", "nominalQuota": cpu}, {"name": "memory", "nominalQuota": memory}]
    group = {"coveredResources": ["cpu", "memory"], "flavors": [{"name": "default-flavor", "resources": rows}]}
    spec = {"resourceGroups": [group], "preemption": {"withinClusterQueue": "LowerPriority"}, "stopPolicy": "None"}
    name = f"{namespace}-quota"
    store.create(CLUSTER_QUEUE, {"metadata": {"name": name}, "spec": spec})
    for queue, policy in (("training", "None"), ("parked", "Hold")):
        metadata = {"name": queue, "namespace": namespace}
        store.create(LOCAL_QUEUE, {"metadata": metadata, "spec": {"clusterQueue": name, "stopPolicy": policy}})
