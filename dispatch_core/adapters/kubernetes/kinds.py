"""The kinds of objects that a job can be, and what dispatch writes on them: one table, and the names of tags.

One rule: what differs from kind to kind is a column here, never an `if` elsewhere. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

PREFIX = "dispatch-supervisor.internal"
"""Of labels, annotations and the admission gate. `.internal` is kept for private use, so nobody else can own it."""

UID, SUBMISSION, ATTEMPT, KEY_HASH = (f"{PREFIX}/{name}" for name in ("uid", "submission", "attempt", "key"))
"""Labels."""
KEY, GATE, HOLD, STOPPED, FENCE, DEADLINE, MADE_FROM, QUEUE, PROGRESS = (
    f"{PREFIX}/{name}"
    for name in ("key", "gate", "hold", "stopped", "fence", "call-deadline", "made-from", "queue", "progress")
)
"""Annotations: the job's key; the gate, `closed` or `open`; the hold, `none` or `held`; `no` or `yes`; how many calls
have landed; the latest call's deadline; a hash of the body; the queue to open into; what shows progress."""
OUTPUT = "output"
CLOSED, OPEN, NO_HOLD, HELD, YES, NO = "closed", "open", "none", "held", "yes", "no"

QUEUE_NAME = "kueue.x-k8s.io/queue-name"
GATED_BY = "kueue.x-k8s.io/admission-gated-by"
JOB_UID = "kueue.x-k8s.io/job-uid"
KUEUE_GATE = f"{PREFIX}/gate"
MANAGER = "dispatch-call"
"""The field manager of every call: the policy reads the time that the server notes under it."""

Json = Mapping[str, Any]


class Sort(NamedTuple):
    """One kind of object."""

    kind: str
    group: str
    """"" for the core group."""
    release: str
    """Of its API."""
    plural: str
    suspend: tuple[str, ...] = ()
    """Where its suspend bit is."""
    pod_label: str = ""
    """The label by which its pods name it."""
    uid_label: str = ""
    """The label by which its pods tell its uid; "": none does."""
    pods_are_tagged: bool = True
    """Whether its pods carry the labels that dispatch puts into their template."""

    @property
    def api(self) -> str:
        return f"{self.group}/{self.release}" if self.group else self.release

    def path(self, namespace: str, name: str = "") -> str:
        """Where its objects, or one of them, are."""
        root = f"/apis/{self.api}" if self.group else f"/api/{self.api}"
        return f"{root}/namespaces/{namespace}/{self.plural}" + (f"/{name}" if name else "")


SPEC_SUSPEND = ("spec", "suspend")
JOBSET_NAME, JOBSET_UID = "jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/jobset-uid"

JOB = Sort(
    *("Job", "batch", "v1", "jobs", SPEC_SUSPEND),
    *("batch.kubernetes.io/job-name", "batch.kubernetes.io/controller-uid"),
)
JOBSET = Sort("JobSet", "jobset.x-k8s.io", "v1alpha2", "jobsets", SPEC_SUSPEND, JOBSET_NAME, JOBSET_UID)
TRAINJOB = Sort("TrainJob", "trainer.kubeflow.org", "v1alpha1", "trainjobs", SPEC_SUSPEND, JOBSET_NAME, "", False)
PYTORCHJOB = Sort(
    *("PyTorchJob", "kubeflow.org", "v1", "pytorchjobs", ("spec", "runPolicy", "suspend")),
    "training.kubeflow.org/job-name",
)
SORTS: Mapping[str, Sort] = {sort.kind: sort for sort in (JOB, JOBSET, TRAINJOB, PYTORCHJOB)}

POD = Sort("Pod", "", "v1", "pods")
SECRET = Sort("Secret", "", "v1", "secrets")
OWNER = Sort("ConfigMap", "", "v1", "configmaps")
EVENT = Sort("Event", "", "v1", "events")
WORKLOAD = Sort("Workload", "kueue.x-k8s.io", "v1beta2", "workloads")


def dig(object: Json, *path: str) -> Any:
    """What is at a path; None where any part of it is missing."""
    found: Any = object
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def part(object: Json, *path: str) -> Json:
    """The mapping at a path; {} where there is none."""
    found = dig(object, *path)
    return found if isinstance(found, Mapping) else {}


def rows_of(object: Json, *path: str) -> list[Json]:
    """The mappings in the list at a path."""
    found = dig(object, *path)
    return [row for row in found if isinstance(row, Mapping)] if isinstance(found, (list, tuple)) else []


def annotation(object: Json, name: str) -> str:
    return str(dig(object, "metadata", "annotations", name) or "")


def label(object: Json, name: str) -> str:
    return str(dig(object, "metadata", "labels", name) or "")


def name_of(object: Json) -> str:
    return str(dig(object, "metadata", "name") or "")


def uid_of(object: Json) -> str:
    return str(dig(object, "metadata", "uid") or "")


def key_hash(key: str) -> str:
    """A job key as a label's value, which cannot hold what a key can."""
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def condition(object: Json, name: str) -> Json:
    """The condition of this type, {} where there is none."""
    return next((row for row in rows_of(object, "status", "conditions") if row.get("type") == name), {})


def is_true(object: Json, name: str) -> bool:
    return condition(object, name).get("status") == "True"


def number(told: Any) -> int:
    return told if isinstance(told, int) and not isinstance(told, bool) else 0
