"""What a cluster's administrator can install so that the API server itself keeps gate and deadline, and what dispatch
must be allowed to do there.

One rule: the policies are asked for by doing, with a dry run that a cluster without them accepts: what is declared of a
call's bound rests on what the server refused, not on what somebody says is installed. Pure, but for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from dispatch_core.adapters.kubernetes import kinds
from dispatch_core.adapters.kubernetes.cluster import KubernetesCluster
from dispatch_core.adapters.kubernetes.kinds import (
    DEADLINE,
    FENCE,
    GATE,
    HOLD,
    JOB,
    JOBSET,
    MANAGER,
    PYTORCHJOB,
    SORTS,
    STOPPED,
    TRAINJOB,
    UID,
    WORKLOAD,
    Sort,
)

LATE_MESSAGE = "call started after its deadline"
SHUT_MESSAGE = "the gate is closed or the job is held or stopped: it must stay suspended"
TAGS_MESSAGE = "dispatch's tags must stay as they are"

DEADLINE_POLICY, GATE_POLICY = "dispatch-deadline", "dispatch-gate"
ADMISSION = "admissionregistration.k8s.io/v1"


def _told(object: str, name: str) -> str:
    """CEL for an annotation, '' where there is none."""
    return f"{object}.metadata.?annotations[?'{name}'].orValue('')"


def _label(object: str) -> str:
    return f"{object}.metadata.?labels[?'{UID}'].orValue('')"


_DEADLINE = f"timestamp(object.metadata.annotations['{DEADLINE}'])"
_SUSPENDED = "(object.spec.?suspend.orValue(false) || object.spec.?runPolicy.?suspend.orValue(false))"
_OPEN = f"{_told('object', GATE)} == 'open' && {_told('object', HOLD)} == 'none' && {_told('object', STOPPED)} != 'yes'"
_UNCHANGED = " && ".join(f"{_told('object', name)} == {_told('oldObject', name)}" for name in (GATE, HOLD, STOPPED))


def policies(cluster: KubernetesCluster) -> list[dict[str, Any]]:
    """Both policies and their bindings. The first refuses a call that starts after its deadline, by the time that the
    server itself notes; the second an unsuspend of what is gated, held or stopped, and a change of dispatch's tags,
    with which it could be evaded."""
    sorts = [SORTS[kind] for kind in cluster.kinds]
    late = [
        _validation(f"oldObject != null || timestamp(object.metadata.creationTimestamp) <= {_DEADLINE}", LATE_MESSAGE),
        _validation(
            f"oldObject == null || object.metadata.managedFields.filter(m, m.manager == '{MANAGER}' && m.operation =="
            f" 'Update').all(m, timestamp(m.time) <= {_DEADLINE})",
            LATE_MESSAGE,
        ),
    ]
    shut = [
        _validation(f"{_SUSPENDED} || ({_OPEN})", SHUT_MESSAGE),
        _validation(f"oldObject == null || {_label('object')} == {_label('oldObject')}", TAGS_MESSAGE),
        _validation(
            f"oldObject == null || ({_UNCHANGED}) || {_told('object', FENCE)} != {_told('oldObject', FENCE)}",
            TAGS_MESSAGE,
        ),
        _validation(
            f"oldObject == null || {_told('oldObject', STOPPED)} != 'yes' || {_told('object', STOPPED)} == 'yes'",
            TAGS_MESSAGE,
        ),
    ]
    ours = f"{_label('object')} != '' || (oldObject != null && {_label('oldObject')} != '')"
    told = f"has(object.metadata.annotations) && '{DEADLINE}' in object.metadata.annotations"
    with_workloads = [*sorts, WORKLOAD] if cluster.kueue else sorts
    return [
        *_policy(DEADLINE_POLICY, with_workloads, late, told),
        *_policy(GATE_POLICY, sorts, shut, ours),
    ]


def _validation(expression: str, message: str) -> dict[str, str]:
    return {"expression": expression, "message": message}


def _policy(name: str, sorts: Sequence[Sort], validations: list[dict[str, str]], ours: str) -> list[dict[str, Any]]:
    rules = [
        {"apiGroups": [s.group], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": [s.plural]}
        for s in sorts
    ]
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": rules},
        "matchConditions": [{"name": "ours", "expression": ours}],
        "validations": validations,
    }
    binding = {"policyName": name, "validationActions": ["Deny"]}
    return [
        {"apiVersion": ADMISSION, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec},
        {
            "apiVersion": ADMISSION,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": binding,
        },
    ]


def roles(cluster: KubernetesCluster) -> list[dict[str, Any]]:
    """The least that dispatch needs in its namespace, as a Role for a ServiceAccount of one's own."""
    rules = [
        _rule(SORTS[kind].group, SORTS[kind].plural, "create", "get", "list", "watch", "patch", "delete")
        for kind in cluster.kinds
    ]
    rules += [
        _rule("", "configmaps", "create", "get", "list", "delete"),
        _rule("", "secrets", "create", "delete"),
        _rule("", "pods", "get", "list"),
        _rule("", "pods/log", "get"),
        _rule("", "events", "list"),
    ]
    rules += [_rule(WORKLOAD.group, WORKLOAD.plural, "get", "list", "patch")] if cluster.kueue else []
    metadata = {"name": "dispatch", "namespace": cluster.namespace}
    api = "rbac.authorization.k8s.io/v1"
    subject = {"kind": "ServiceAccount", "name": "dispatch", "namespace": cluster.namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "dispatch"}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": api, "kind": "Role", "metadata": metadata, "rules": rules},
        {"apiVersion": api, "kind": "RoleBinding", "metadata": metadata, "subjects": [subject], "roleRef": reference},
    ]


def _rule(group: str, plural: str, *verbs: str) -> dict[str, list[str]]:
    return {"apiGroups": [group], "resources": [plural], "verbs": list(verbs)}


def printed(cluster: KubernetesCluster) -> str:
    """All of it, for `kubectl apply -f -`."""
    return yaml.safe_dump_all([*policies(cluster), *roles(cluster)], sort_keys=False, width=1000)


# --- probes


def probe_body(name: str, annotations: dict[str, str], labels: dict[str, str], *, suspend: bool) -> dict[str, Any]:
    """A Job for a dry run: it is never stored."""
    container = {"name": "main", "image": "probe.invalid/none"}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    metadata = {"name": name, "annotations": annotations, "labels": labels}
    spec = {"suspend": suspend, "backoffLimit": 0, "template": template}
    return {"apiVersion": kinds.JOB.api, "kind": kinds.JOB.kind, "metadata": metadata, "spec": spec}


def late_probe(sort: Sort) -> dict[str, Any]:
    """A create whose deadline is long past: refused where the first policy is enforced for this kind."""
    return _bare(sort, "dispatch-probe-deadline", {DEADLINE: "2000-01-01T00:00:00Z"}, suspend=True)


def _bare(sort: Sort, name: str, annotations: dict[str, str], *, suspend: bool) -> dict[str, Any]:
    """The least object of a kind that a server takes."""
    body = probe_body(name, annotations, {}, suspend=suspend)
    template = body["spec"]["template"]
    runtime = {"apiGroup": TRAINJOB.group, "kind": "ClusterTrainingRuntime", "name": "dispatch-probe"}
    job = {"name": "main", "replicas": 1, "template": {"spec": {"template": template}}}
    master = {"replicas": 1, "restartPolicy": "Never", "template": template}
    specs: dict[Sort, dict[str, Any]] = {
        JOB: body["spec"],
        JOBSET: {"suspend": suspend, "replicatedJobs": [job]},
        TRAINJOB: {"suspend": suspend, "runtimeRef": runtime},
        PYTORCHJOB: {"runPolicy": {"suspend": suspend}, "pytorchReplicaSpecs": {"Master": master}},
    }
    return body | {"apiVersion": sort.api, "kind": sort.kind, "spec": specs[sort]}


def shut_probe(uid: str) -> dict[str, Any]:
    """A create of ours that would run at once: refused where the second policy is enforced."""
    tags = {GATE: kinds.CLOSED, HOLD: kinds.NO_HOLD, STOPPED: kinds.NO, FENCE: "1"}
    return probe_body("dispatch-probe-gate", tags, {UID: uid}, suspend=False)


def kueue_probe(queue: str) -> dict[str, Any]:
    """A create with an admission gate of no valid name: refused by a Kueue that knows admission gates, accepted by one
    that would start the job at once."""
    told = {kinds.GATED_BY: "not a gate"}
    return probe_body("dispatch-probe-admission-gate", told, {kinds.QUEUE_NAME: queue}, suspend=True)


def plain_probe(sort: Sort) -> dict[str, Any]:
    """A create of what would run at once, and names no queue: a Kueue that takes it all the same suspends it, or gives
    it a queue."""
    return _bare(sort, "dispatch-probe-plain", {}, suspend=False)


def is_taken(sort: Sort, shown: kinds.Json) -> bool:
    """Whether Kueue would start what that probe asked for, whatever its suspend bit says."""
    return kinds.dig(shown, *sort.suspend) is True or bool(kinds.label(shown, kinds.QUEUE_NAME))
