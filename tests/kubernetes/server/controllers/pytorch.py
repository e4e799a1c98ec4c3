"""The controller of PyTorchJobs, after the published schema and sources of training-operator 1.9: nothing was recorded.

One rule: pods are made and counted by replica type; once Failed is true no condition changes any more, and pods stay
after the end unless cleanPodPolicy says otherwise.

Not here: elastic policy, the restart policies ExitCode and Always, the services (no name resolves here anyway).
"""

from __future__ import annotations

from typing import Any

from tests.kubernetes.server import shaping
from tests.kubernetes.server.controllers.jobs import deleting, ended
from tests.kubernetes.server.controllers.loop import Loop, condition, is_true, owner_reference, set_condition
from tests.kubernetes.server.kinds import POD, PYTORCHJOB
from tests.kubernetes.server.removing import delete
from tests.kubernetes.server.storage import Object, copied, stamp

PREFIX = "training.kubeflow.org"


def _set(status: Object, kind: str, value: bool, message: str, reason: str = "") -> None:
    word = reason or f"PyTorchJob{kind}"
    known = condition(status.get("conditions"), kind)
    if known is None or known["reason"] != word or (known["status"] == "True") != value:
        set_condition(status, kind, value, word, message, lastUpdateTime=stamp())


class PyTorchJobs(Loop):
    """Pods for PyTorchJobs."""

    resource = PYTORCHJOB

    def settle(self, found: Object) -> None:
        if deleting(found):
            return
        status = copied(found.get("status") or {})
        pods = [pod for _, pod in self.store.owned_by(found["metadata"]["uid"], POD)]
        name = found["metadata"]["name"]
        if is_true(found, "Succeeded") or is_true(found, "Failed"):
            self._clean(found, pods)
            return
        _set(status, "Created", True, f"PyTorchJob {name} is created.")
        if (found["spec"].get("runPolicy") or {}).get("suspend"):
            self._suspend(name, status, pods)
        else:
            self._run(found, status, pods)
        self.write_status(found, status)

    def _suspend(self, name: str, status: Object, pods: list[Object]) -> None:
        for pod in pods:
            if not deleting(pod):
                delete(self.store, POD, pod, "Background")
        if is_true({"status": status}, "Running"):
            _set(status, "Running", False, f"PyTorchJob {name} is suspended.", "PyTorchJobSuspended")
        _set(status, "Suspended", True, f"PyTorchJob {name} is suspended.")
        status.pop("startTime", None)
        status["replicaStatuses"] = {}

    def _run(self, found: Object, status: Object, pods: list[Object]) -> None:
        name = found["metadata"]["name"]
        if is_true({"status": status}, "Suspended"):
            _set(status, "Suspended", False, f"PyTorchJob {name} is resumed.", "PyTorchJobResumed")
        status.setdefault("startTime", stamp())
        counts = {}
        for kind, spec in found["spec"]["pytorchReplicaSpecs"].items():
            mine = [pod for pod in pods if pod["metadata"]["labels"][f"{PREFIX}/replica-type"] == kind.lower()]
            there = {pod["metadata"]["name"] for pod in mine}
            for index in range(spec.get("replicas", 1)):
                if f"{name}-{kind.lower()}-{index}" not in there:
                    self._make(found, kind.lower(), spec, index)
            phases = [pod["status"].get("phase") for pod in mine]
            named = (("active", "Running"), ("succeeded", "Succeeded"), ("failed", "Failed"))
            counts[kind] = {key: phases.count(phase) for key, phase in named if phases.count(phase)}
        status["replicaStatuses"] = counts
        self._conclude(found, status, counts)

    def _conclude(self, found: Object, status: Object, counts: dict[str, dict[str, int]]) -> None:
        name = found["metadata"]["name"]
        leader = "Master" if "Master" in counts else "Worker"
        wanted = found["spec"]["pytorchReplicaSpecs"][leader].get("replicas", 1)
        failed = next((kind for kind, count in counts.items() if count.get("failed")), None)
        if failed is not None:
            message = f"PyTorchJob {name} is failed because {counts[failed]['failed']} {failed} replica(s) failed."
            self._end(status, "Failed", message)
        elif counts[leader].get("succeeded", 0) >= wanted:
            self._end(status, "Succeeded", f"PyTorchJob {name} is successfully completed.")
        elif counts[leader].get("active"):
            _set(status, "Running", True, f"PyTorchJob {name} is running.")

    @staticmethod
    def _end(status: Object, kind: str, message: str) -> None:
        if condition(status.get("conditions"), "Running"):
            _set(status, "Running", False, message, f"PyTorchJob{kind}")
        _set(status, kind, True, message)
        status["completionTime"] = stamp()

    def _clean(self, found: Object, pods: list[Object]) -> None:
        policy = (found["spec"].get("runPolicy") or {}).get("cleanPodPolicy", "None")
        for pod in pods:
            if policy == "All" or (policy == "Running" and not ended(pod)):
                delete(self.store, POD, pod, "Background")

    def _make(self, found: Object, kind: str, spec: dict[str, Any], index: int) -> None:
        pod = copied(spec["template"])
        name, namespace = found["metadata"]["name"], found["metadata"]["namespace"]
        labels = {"job-name": name, "replica-type": kind, "replica-index": str(index)}
        labels |= {"operator-name": "pytorchjob-controller", **({"job-role": "master"} if kind == "master" else {})}
        metadata = pod.setdefault("metadata", {})
        ours = {f"{PREFIX}/{label}": value for label, value in labels.items()}
        metadata["labels"] = {**(metadata.get("labels") or {}), **ours}
        metadata |= {"name": f"{name}-{kind}-{index}", "namespace": namespace, "generation": 1}
        metadata["ownerReferences"] = [owner_reference(PYTORCHJOB, found)]
        pod["spec"]["restartPolicy"] = spec.get("restartPolicy", "Never")
        rank = index if kind == "master" or "Master" not in found["spec"]["pytorchReplicaSpecs"] else index + 1
        world = sum(row.get("replicas", 1) for row in found["spec"]["pytorchReplicaSpecs"].values())
        for container in pod["spec"]["containers"]:
            variables = {"MASTER_ADDR": f"{name}-master-0", "MASTER_PORT": "23456", "RANK": rank, "WORLD_SIZE": world}
            container.setdefault("env", []).extend({"name": key, "value": str(v)} for key, v in variables.items())
        shaping.defaulted(POD, pod)
        self.store.create(POD, pod)
