"""The controllers of JobSet and TrainJob, after their published schemas and sources: nothing of them was recorded.

One rule: a JobSet owns one Job for each replica, suspended with it; a TrainJob owns one JobSet of its own name, and its
conditions are the JobSet's in its own words, except Suspended, which says what was declared and not what still runs.

Not here: startupPolicy, DependsOn, coordinator, volumes, runtimes (runtimeRef is not looked up), initializers.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tests.kubernetes.server import shaping
from tests.kubernetes.server.controllers.jobs import deleting
from tests.kubernetes.server.controllers.loop import Loop, condition, is_true, owner_reference, set_condition
from tests.kubernetes.server.kinds import JOB, JOBSET, TRAINJOB, Resource
from tests.kubernetes.server.removing import delete
from tests.kubernetes.server.storage import Object, copied, key_of, read_stamp, stamp

PREFIX = "jobset.sigs.k8s.io"


def _ended(job: Object) -> bool:
    return is_true(job, "Complete") or is_true(job, "Failed")


def _make(loop: Loop, resource: Resource, owner: Object, made: Object) -> None:
    namespace = owner["metadata"]["namespace"]
    if loop.store.get(resource, namespace, made["metadata"]["name"]) is not None:
        return
    made["metadata"] |= {"namespace": namespace, "generation": 1}
    made["metadata"]["ownerReferences"] = [owner_reference(loop.resource, owner)]
    made["metadata"]["uid"] = shaping.new_uid()
    shaping.defaulted(resource, made)
    loop.store.create(resource, made)


def _follow_suspend(loop: Loop, resource: Resource, child: Object, suspend: bool) -> None:
    if child["spec"].get("suspend", False) != suspend:
        changed = copied(child)
        changed["spec"]["suspend"] = suspend
        changed["metadata"]["generation"] = changed["metadata"].get("generation", 1) + 1
        loop.store.update(resource, changed)


class JobSets(Loop):
    """Jobs for JobSets."""

    resource = JOBSET

    def settle(self, found: Object) -> None:
        if deleting(found):
            return
        status = copied(found.get("status") or {})
        status.setdefault("restarts", 0)
        jobs = [job for _, job in self.store.owned_by(found["metadata"]["uid"], JOB)]
        current = [job for job in jobs if _restart_of(job) == status["restarts"]]
        if not status.get("terminalState"):
            self._advance(found, status, jobs, current)
        status["replicatedJobsStatus"] = [self._replica(row, current) for row in found["spec"]["replicatedJobs"]]
        self.write_status(found, status)

    def _advance(self, found: Object, status: Object, jobs: list[Object], current: list[Object]) -> None:
        for job in jobs:
            if job not in current and not deleting(job):
                delete(self.store, JOB, job, "Foreground")
        failed = [job for job in current if is_true(job, "Failed")]
        if failed:
            self._failed(found, status, failed[0])
        elif current and len(current) == _replicas(found) and all(is_true(job, "Complete") for job in current):
            self._end(found, status, "Completed", "AllJobsCompleted", "jobset completed successfully")
        else:
            self._run(found, status, jobs, current)

    def _run(self, found: Object, status: Object, jobs: list[Object], current: list[Object]) -> None:
        suspend = bool(found["spec"].get("suspend"))
        if suspend and not is_true({"status": status}, "Suspended"):
            set_condition(status, "Suspended", True, "SuspendedJobs", "jobset is suspended")
        elif not suspend and is_true({"status": status}, "Suspended"):
            set_condition(status, "Suspended", False, "ResumeJobs", "jobset is resumed")
        for job in current:
            if not _ended(job):
                _follow_suspend(self, JOB, job, suspend)
        if len(jobs) == len(current):
            for row in found["spec"]["replicatedJobs"]:
                for index in range(row.get("replicas", 1)):
                    _make(self, JOB, found, _child(found, status, row, index))

    def _failed(self, found: Object, status: Object, job: Object) -> None:
        policy = found["spec"].get("failurePolicy") or {}
        known = condition(job["status"]["conditions"], "Failed") or {}
        action = next(
            (
                rule["action"]
                for rule in policy.get("rules") or ()
                if known.get("reason") in (rule.get("onJobFailureReasons") or [known.get("reason")])
            ),
            "RestartJobSet" if policy else "",
        )
        first = f"(first failed job: {job['metadata']['name']})"
        counted = status.get("restartsCountTowardsMax", 0)
        if action == "FailJobSet":
            message = f"jobset failed due to FailJobSet failure policy action {first}"
            self._end(found, status, "Failed", "FailJobSetFailurePolicyAction", message)
        elif not action:
            self._end(found, status, "Failed", "FailedJobs", f"jobset failed due to one or more job failures {first}")
        elif action == "RestartJobSet" and counted >= policy.get("maxRestarts", 0):
            message = f"jobset failed due to reaching max number of restarts {first}"
            self._end(found, status, "Failed", "ReachedMaxRestarts", message)
        else:
            status["restarts"] += 1
            status["restartsCountTowardsMax"] = counted + (action == "RestartJobSet")
            self.look_at(key_of(found), 0.02)

    def _end(self, found: Object, status: Object, kind: str, reason: str, message: str) -> None:
        set_condition(status, kind, True, reason, message)
        status["terminalState"] = kind
        for _, job in self.store.owned_by(found["metadata"]["uid"], JOB):
            if not _ended(job) and not deleting(job):
                delete(self.store, JOB, job, "Foreground")

    @staticmethod
    def _replica(row: dict[str, Any], jobs: list[Object]) -> dict[str, Any]:
        of = [job for job in jobs if job["metadata"]["labels"][f"{PREFIX}/replicatedjob-name"] == row["name"]]
        statuses = [job.get("status") or {} for job in of]
        parallel = [job["spec"].get("parallelism", 1) for job in of]
        pairs = list(zip(statuses, parallel, strict=True))
        return {
            "name": row["name"],
            "ready": len([1 for s, n in pairs if s.get("succeeded", 0) + s.get("ready", 0) >= n]),
            "succeeded": len([job for job in of if is_true(job, "Complete")]),
            "failed": len([job for job in of if is_true(job, "Failed")]),
            "active": len([1 for s in statuses if s.get("active")]),
            "suspended": len([job for job in of if job["spec"].get("suspend")]),
        }


def _replicas(found: Object) -> int:
    return sum(row.get("replicas", 1) for row in found["spec"]["replicatedJobs"])


def _restart_of(job: Object) -> int:
    return int(job["metadata"]["labels"][f"{PREFIX}/restart-attempt"])


def _child(found: Object, status: Object, row: dict[str, Any], index: int) -> Object:
    template = copied(row["template"])
    name = found["metadata"]["name"]
    labels = {
        f"{PREFIX}/jobset-name": name,
        f"{PREFIX}/jobset-uid": found["metadata"]["uid"],
        f"{PREFIX}/replicatedjob-name": row["name"],
        f"{PREFIX}/job-index": str(index),
        f"{PREFIX}/restart-attempt": str(status["restarts"]),
    }
    spec = {**template["spec"], "suspend": bool(found["spec"].get("suspend"))}
    inner = spec["template"].setdefault("metadata", {})
    inner["labels"] = {**(inner.get("labels") or {}), **labels}
    known = template.get("metadata") or {}
    metadata = {"name": f"{name}-{row['name']}-{index}", "labels": {**(known.get("labels") or {}), **labels}}
    metadata["annotations"] = known.get("annotations") or {}
    return {"metadata": metadata, "spec": spec}


class TrainJobs(Loop):
    """JobSets for TrainJobs."""

    resource = TRAINJOB

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._resumed: dict[str, str] = {}

    def settle(self, found: Object) -> None:
        if deleting(found) or is_true(found, "Complete") or is_true(found, "Failed"):
            return
        status = copied(found.get("status") or {})
        suspend = bool(found["spec"].get("suspend"))
        if suspend:
            set_condition(status, "Suspended", True, "Suspended", "TrainJob is suspended")
            self._resumed.pop(found["metadata"]["uid"], None)
        else:
            self._resumed.setdefault(found["metadata"]["uid"], stamp())
            if condition(status.get("conditions"), "Suspended"):
                set_condition(status, "Suspended", False, "Resumed", "TrainJob is resumed")
        child = self.store.get(JOBSET, *key_of(found))
        if child is None:
            _make(self, JOBSET, found, _jobset_of(found))
        else:
            self._follow(found, status, child, suspend)
        if self._too_long(found):
            set_condition(status, "Failed", True, "DeadlineExceeded", "TrainJob exceeded its active deadline")
            if child is not None:
                delete(self.store, JOBSET, child, "Foreground")
        self.write_status(found, status)

    def _follow(self, found: Object, status: Object, child: Object, suspend: bool) -> None:
        if not deleting(child):
            _follow_suspend(self, JOBSET, child, suspend)
        known = child.get("status") or {}
        for theirs, ours in (("Completed", "Complete"), ("Failed", "Failed")):
            if is_true(child, theirs):
                said = condition(known["conditions"], theirs) or {}
                set_condition(status, ours, True, said["reason"], said["message"])
        status["jobsStatus"] = known.get("replicatedJobsStatus", [])

    def _too_long(self, found: Object) -> bool:
        seconds, since = found["spec"].get("activeDeadlineSeconds"), self._resumed.get(found["metadata"]["uid"])
        if seconds is None or since is None:
            return False
        left = float(seconds) - (datetime.now(UTC) - read_stamp(since)).total_seconds()
        if left > 0:
            self.look_at(key_of(found), left + 0.01)
        return left <= 0


def _jobset_of(found: Object) -> Object:
    """As a runtime with one replicated job `node` makes it."""
    trainer = found["spec"].get("trainer") or {}
    resources = trainer.get("resourcesPerNode") or {}
    container = {"name": "node", "image": trainer.get("image", ""), "resources": resources}
    container |= {name: trainer[name] for name in ("command", "args", "env") if name in trainer}
    nodes = trainer.get("numNodes", 1)
    label = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    labels = {**(found["spec"].get("labels") or {}), **label}
    pod = {"metadata": {"labels": labels}, "spec": {"restartPolicy": "Never", "containers": [container]}}
    job = {"backoffLimit": 0, "parallelism": nodes, "completions": nodes, "completionMode": "Indexed", "template": pod}
    row = {"name": "node", "replicas": 1, "template": {"metadata": {"labels": label}, "spec": job}}
    metadata = {"name": found["metadata"]["name"], "labels": found["spec"].get("labels") or {}}
    return {"metadata": metadata, "spec": {"suspend": bool(found["spec"].get("suspend")), "replicatedJobs": [row]}}
