"""The controller of batch/v1 Jobs.

One rule: an outcome is announced in two steps, as on a real cluster: FailureTarget or SuccessCriteriaMet when it is
decided, Failed or Complete only when no pod is left running. A pod counts once, guarded by its tracking finalizer.

Not here: backoffLimitPerIndex, maxFailedIndexes, elastic indexed Jobs.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tests.kubernetes.server import shaping
from tests.kubernetes.server.controllers.loop import Loop, condition, emit, is_true, owner_reference, set_condition
from tests.kubernetes.server.kinds import JOB, POD, QUOTA
from tests.kubernetes.server.removing import delete, stored
from tests.kubernetes.server.storage import Object, copied, key_of, read_stamp, stamp

TRACKING = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"
OURS = "kubernetes.io/job-controller"
BACKOFF = ("BackoffLimitExceeded", "Job has reached the specified backoff limit")
REACHED = ("CompletionsReached", "Reached expected number of succeeded pods")
DEADLINE = ("DeadlineExceeded", "Job was active longer than specified deadline")
SUCCESS_POLICY = ("SuccessPolicy", "Matched rules at index 0")

Verdict = tuple[str, str, str]
"""(condition, reason, message)."""


def ended(pod: Object) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def deleting(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def ready(pod: Object) -> bool:
    return is_true(pod, "Ready") and not deleting(pod)


def finished(job: Object) -> bool:
    return is_true(job, "Complete") or is_true(job, "Failed")


def _announce(status: Object, kind: str, value: bool, reason: str, message: str) -> None:
    set_condition(status, kind, value, reason, message, lastProbeTime=stamp())


def _rule_of(job: Object, pod: Object) -> tuple[str, int, str]:
    """(action, index of the rule, what it matched) of podFailurePolicy for a failed pod."""
    rules = (job["spec"].get("podFailurePolicy") or {}).get("rules") or ()
    for index, rule in enumerate(rules):
        for wanted in rule.get("onPodConditions") or ():
            known = condition(pod["status"].get("conditions"), wanted["type"])
            if known is not None and known["status"] == wanted.get("status", "True"):
                return rule["action"], index, f"has condition {wanted['type']}"
        codes = rule.get("onExitCodes")
        for container in pod["status"].get("containerStatuses") or ():
            code = (container.get("state") or {}).get("terminated", {}).get("exitCode")
            if codes and code and (code in codes["values"]) == (codes["operator"] == "In"):
                return rule["action"], index, f"container {container['name']} with exit code {code}"
    return "Count", -1, ""


class Jobs(Loop):
    """Pods for Jobs, and their status."""

    resource = JOB
    backoff_seconds = 0.05

    def settle(self, found: Object) -> None:
        if found["spec"].get("managedBy", OURS) != OURS:
            return
        pods = [copied(pod) for _, pod in self.store.owned_by(found["metadata"]["uid"], POD)]
        if deleting(found) or finished(found):
            self._untrack(pods)
            if finished(found) and not deleting(found):
                self._expire(found)
            return
        self._advance(found, pods)

    def _advance(self, job: Object, pods: list[Object]) -> None:
        status = copied(job.get("status") or {})
        counted = [pod for pod in pods if TRACKING in (pod["metadata"].get("finalizers") or ())]
        verdict = self._known_verdict(status) or self._verdict(job, status, counted)
        suspended = job["spec"].get("suspend") and verdict is None
        if verdict or suspended:
            for pod in pods:
                if not ended(pod) and not deleting(pod):
                    delete(self.store, POD, pod, "Background")
                    pod["metadata"]["deletionTimestamp"] = stamp()
        if suspended:
            self._suspend(job, status)
            self._untrack([pod for pod in counted if not ended(pod)])
            counted = [pod for pod in counted if ended(pod)]
        elif verdict is None:
            self._resume(job, status)
            self._create_missing(job, status, pods)
            pods = [pod for _, pod in self.store.owned_by(job["metadata"]["uid"], POD)]
        self._count(job, status, pods, counted, verdict)

    def _count(
        self, job: Object, status: Object, pods: list[Object], counted: list[Object], verdict: Verdict | None
    ) -> None:
        """The two writes: what was decided with the pods not yet counted, then the counters and the end."""
        over = {
            kind: [pod for pod in counted if self._as(job, pod, verdict) == kind] for kind in ("succeeded", "failed")
        }
        self._pods_of(status, pods)
        if verdict and not is_true({"status": status}, verdict[0]):
            _announce(status, verdict[0], True, *verdict[1:])
        if any(over.values()):
            uids = {kind: [pod["metadata"]["uid"] for pod in ones] for kind, ones in over.items() if ones}
            self.write_status(job, {**status, "uncountedTerminatedPods": uids})
            self._untrack([pod for ones in over.values() for pod in ones])
            for kind, ones in over.items():
                counts = [pod for pod in ones if kind == "succeeded" or _rule_of(job, pod)[0] != "Ignore"]
                if counts:
                    status[kind] = status.get(kind, 0) + len(counts)
                self._note_indexes(job, status, kind, ones)
        status["uncountedTerminatedPods"] = {}
        if verdict and not any(over.values()):
            self._untrack(counted)
        left = [pod for _, pod in self.store.owned_by(job["metadata"]["uid"], POD) if not ended(pod)]
        if verdict and not left:
            if (job.get("status") or {}).get("terminating"):
                self.write_status(job, status)
            self._end(job, status, verdict)
        self.write_status(job, status)
        if any(over.values()) and not verdict:
            self.look_at(key_of(job), self.backoff_seconds)

    def _note_indexes(self, job: Object, status: Object, kind: str, pods: list[Object]) -> None:
        if kind == "succeeded" and job["spec"]["completionMode"] == "Indexed" and pods:
            done = self._indexes(status) | {int(pod["metadata"]["annotations"][INDEX]) for pod in pods}
            status["completedIndexes"] = ",".join(str(index) for index in sorted(done))

    @staticmethod
    def _indexes(status: Object) -> set[int]:
        return {int(text) for text in status.get("completedIndexes", "").split(",") if text}

    @staticmethod
    def _as(job: Object, pod: Object, verdict: Verdict | None) -> str:
        phase = pod["status"].get("phase")
        if phase in ("Succeeded", "Failed"):
            return str(phase).lower()
        replaced = job["spec"]["podReplacementPolicy"] != "Failed" or not pod["spec"].get("nodeName")
        failing = verdict is not None and verdict[0] == "FailureTarget"
        waits = verdict is None and replaced
        return "failed" if deleting(pod) and (failing or waits) else ""

    @staticmethod
    def _pods_of(status: Object, pods: list[Object]) -> None:
        active = len([pod for pod in pods if not ended(pod) and not deleting(pod)])
        status.pop("active", None)
        if active:
            status["active"] = active
        status["terminating"] = len([pod for pod in pods if not ended(pod) and deleting(pod)])
        status["ready"] = len([pod for pod in pods if ready(pod) and not ended(pod)])

    @staticmethod
    def _known_verdict(status: Object) -> Verdict | None:
        for kind in ("FailureTarget", "SuccessCriteriaMet"):
            known = condition(status.get("conditions"), kind)
            if known is not None and known["status"] == "True":
                return kind, known["reason"], known["message"]
        return None

    def _verdict(self, job: Object, status: Object, counted: list[Object]) -> Verdict | None:
        spec = job["spec"]
        failed = [pod for pod in counted if self._as(job, pod, None) == "failed"]
        for pod in failed:
            action, index, matched = _rule_of(job, pod)
            if action == "FailJob":
                where = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
                message = f"Container {matched.removeprefix('container ')}".replace(
                    " with", f" for pod {where} failed with"
                )
                if matched.startswith("has"):
                    message = f"Pod {where} {matched}"
                return "FailureTarget", "PodFailurePolicy", f"{message} matching FailJob rule at index {index}"
        counts = [pod for pod in failed if _rule_of(job, pod)[0] != "Ignore"]
        if status.get("failed", 0) + len(counts) > spec["backoffLimit"]:
            return "FailureTarget", *BACKOFF
        if self._too_long(job, status):
            return "FailureTarget", *DEADLINE
        return self._success(job, status, [pod for pod in counted if pod["status"].get("phase") == "Succeeded"])

    def _success(self, job: Object, status: Object, now: list[Object]) -> Verdict | None:
        succeeded = status.get("succeeded", 0) + len(now)
        if job["spec"].get("successPolicy"):
            done = self._indexes(status) | {int(pod["metadata"]["annotations"][INDEX]) for pod in now}
            if any(self._matches(rule, done) for rule in job["spec"]["successPolicy"]["rules"]):
                return "SuccessCriteriaMet", *SUCCESS_POLICY
        wanted = job["spec"].get("completions")
        if succeeded and succeeded >= (wanted if wanted is not None else 1):
            return "SuccessCriteriaMet", *REACHED
        return None

    @staticmethod
    def _matches(rule: dict[str, Any], done: set[int]) -> bool:
        wanted: set[int] = set()
        for part in filter(None, str(rule.get("succeededIndexes", "")).split(",")):
            low, _, high = part.partition("-")
            wanted |= set(range(int(low), int(high or low) + 1))
        hit = done & wanted if wanted else done
        return len(hit) >= rule.get("succeededCount", len(wanted) or 1)

    def _too_long(self, job: Object, status: Object) -> bool:
        seconds, start = job["spec"].get("activeDeadlineSeconds"), status.get("startTime")
        if seconds is None or start is None or job["spec"].get("suspend"):
            return False
        left = seconds - (datetime.now(UTC) - read_stamp(start)).total_seconds()
        if left > 0:
            self.look_at(key_of(job), left + 0.01)
        return left <= 0

    def _suspend(self, job: Object, status: Object) -> None:
        if not is_true({"status": status}, "Suspended"):
            _announce(status, "Suspended", True, "JobSuspended", "Job suspended")
            emit(self.store, JOB, job, "Suspended", "Job suspended")
        status.pop("startTime", None)

    def _resume(self, job: Object, status: Object) -> None:
        if is_true({"status": status}, "Suspended"):
            _announce(status, "Suspended", False, "JobResumed", "Job resumed")
            emit(self.store, JOB, job, "Resumed", "Job resumed")
        status.setdefault("startTime", stamp())

    def _create_missing(self, job: Object, status: Object, pods: list[Object]) -> None:
        spec = job["spec"]
        waits = [
            pod for pod in pods if not ended(pod) and (not deleting(pod) or spec["podReplacementPolicy"] == "Failed")
        ]
        succeeded = status.get("succeeded", 0) + len(
            [pod for pod in pods if pod["status"].get("phase") == "Succeeded" and pod["metadata"].get("finalizers")]
        )
        fresh = [pod for pod in pods if pod["status"].get("phase") == "Failed" and pod["metadata"].get("finalizers")]
        if fresh:
            return
        wanted = spec.get("completions")
        room = spec["parallelism"] if wanted is None else min(spec["parallelism"], wanted - succeeded)
        taken = {int(pod["metadata"]["annotations"][INDEX]) for pod in waits if INDEX in _annotations(pod)}
        free = [index for index in range(wanted or 0) if index not in taken | self._indexes(status)]
        for place in range(max(room - len(waits), 0)):
            self._create_pod(job, free[place] if spec["completionMode"] == "Indexed" else None)

    def _create_pod(self, job: Object, index: int | None) -> None:
        pod = copied(job["spec"]["template"])
        metadata = pod.setdefault("metadata", {})
        base = job["metadata"]["name"] + ("-" if index is None else f"-{index}-")
        metadata |= {"name": base[:58] + shaping.random_suffix(), "generateName": base}
        metadata |= {"namespace": job["metadata"]["namespace"], "finalizers": [TRACKING], "generation": 1}
        metadata["ownerReferences"] = [owner_reference(JOB, job)]
        if index is not None:
            metadata.setdefault("annotations", {})[INDEX] = str(index)
            metadata.setdefault("labels", {})[INDEX] = str(index)
            for container in pod["spec"]["containers"]:
                container.setdefault("env", []).append({"name": "JOB_COMPLETION_INDEX", "value": str(index)})
        shaping.defaulted(POD, pod)
        if full := self._quota(job):
            message = f'Error creating: pods "{base}" is forbidden: exceeded quota: {full}'
            emit(self.store, JOB, job, "FailedCreate", message, "Warning")
            self.look_at(key_of(job), self.backoff_seconds)
            return
        made = self.store.create(POD, pod)
        emit(self.store, JOB, job, "SuccessfulCreate", f"Created pod: {made['metadata']['name']}")

    def _quota(self, job: Object) -> str:
        """The ResourceQuota that has no room for one more pod."""
        namespace = job["metadata"]["namespace"]
        for quota in self.store.all(QUOTA, namespace):
            hard = quota["spec"]["hard"].get("count/pods")
            if hard is not None and len(self.store.all(POD, namespace)) >= int(hard):
                return str(quota["metadata"]["name"])
        return ""

    def _untrack(self, pods: list[Object]) -> None:
        for pod in pods:
            now = self.store.get(POD, *key_of(pod))
            if now is not None and TRACKING in (now["metadata"].get("finalizers") or ()):
                freed = copied(now)
                freed["metadata"]["finalizers"].remove(TRACKING)
                if not freed["metadata"]["finalizers"]:
                    del freed["metadata"]["finalizers"]
                stored(self.store, POD, freed)

    def _end(self, job: Object, status: Object, verdict: Verdict) -> None:
        kind, reason, message = verdict
        _announce(status, "Complete" if kind == "SuccessCriteriaMet" else "Failed", True, reason, message)
        if kind == "SuccessCriteriaMet":
            status["completionTime"] = stamp()
            emit(self.store, JOB, job, "Completed", "Job completed")
        else:
            emit(self.store, JOB, job, reason, message, "Warning")

    def _expire(self, job: Object) -> None:
        seconds = job["spec"].get("ttlSecondsAfterFinished")
        if seconds is None:
            return
        end = condition(job["status"]["conditions"], "Complete") or condition(job["status"]["conditions"], "Failed")
        left = seconds - (datetime.now(UTC) - read_stamp((end or {})["lastTransitionTime"])).total_seconds()
        if left > 0:
            self.look_at(key_of(job), left + 0.01)
        else:
            delete(self.store, JOB, job, "Foreground")


def _annotations(pod: Object) -> dict[str, str]:
    return pod["metadata"].get("annotations") or {}
