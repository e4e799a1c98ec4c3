"""What the server makes of an object that is created or changed: defaults, names, and what it refuses as invalid.

One rule: only what a client can trip over is checked; the rest of a spec is stored as it came. Schemas reach as deep as
`spec` and `spec.template.spec` of a Job, and one level deep for custom kinds.
"""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Iterator
from typing import Any

from tests.kubernetes.server.kinds import JOB, POD, POLICY, PYTORCHJOB, WORKLOAD, Resource
from tests.kubernetes.server.refusing import invalid
from tests.kubernetes.server.storage import Object

Cause = tuple[str, str, str]

SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
BAD_NAME = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    f"end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{SUBDOMAIN}')"
)
BAD_LABEL = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
RANDOM = "bcdfghjklmnpqrstvwxz2456789"

POD_FIELDS = frozenset(
    [
        *("activeDeadlineSeconds", "affinity", "automountServiceAccountToken", "containers", "dnsConfig"),
        *("dnsPolicy", "enableServiceLinks", "ephemeralContainers", "hostAliases", "hostIPC", "hostNetwork"),
        *("hostPID", "hostUsers", "hostname", "imagePullSecrets", "initContainers", "nodeName", "nodeSelector"),
        *("os", "overhead", "preemptionPolicy", "priority", "priorityClassName", "readinessGates"),
        *("resourceClaims", "resources", "restartPolicy", "runtimeClassName", "schedulerName"),
        *("schedulingGates", "securityContext", "serviceAccount", "serviceAccountName", "setHostnameAsFQDN"),
        *("shareProcessNamespace", "subdomain", "terminationGracePeriodSeconds", "tolerations"),
        *("topologySpreadConstraints", "volumes"),
    ]
)
CONTAINER_FIELDS = frozenset(
    [
        *("args", "command", "env", "envFrom", "image", "imagePullPolicy", "lifecycle", "livenessProbe"),
        *("name", "ports", "readinessProbe", "resizePolicy", "resources", "restartPolicy"),
        *("restartPolicyRules", "securityContext", "startupProbe", "stdin", "stdinOnce"),
        *("terminationMessagePath", "terminationMessagePolicy", "tty", "volumeDevices", "volumeMounts"),
        *("workingDir",),
    ]
)


def random_suffix() -> str:
    return "".join(random.choices(RANDOM, k=5))


def new_uid() -> str:
    return str(uuid.uuid4())


def named(found: Object) -> None:
    """Give an object that has only a generateName its name: 58 characters of it and five of chance."""
    metadata = found["metadata"]
    if not metadata.get("name") and metadata.get("generateName"):
        metadata["name"] = metadata["generateName"][:58] + random_suffix()


def pod_spec_of(resource: Resource, found: Object) -> dict[str, Any]:
    spec = found.get("spec") or {}
    return spec if resource is POD else (spec.get("template") or {}).get("spec") or {}


def unknown_fields(resource: Resource, found: Object) -> list[str]:
    """The paths that the schema does not have."""
    spec = found.get("spec")
    if not isinstance(spec, dict):
        return []
    unknown = [f"spec.{name}" for name in spec if resource.spec_fields and name not in resource.spec_fields]
    if resource in (JOB, POD):
        inner = pod_spec_of(resource, found)
        path = "spec" if resource is POD else "spec.template.spec"
        unknown += [f"{path}.{name}" for name in inner if name not in POD_FIELDS]
        for index, container in enumerate(inner.get("containers") or ()):
            unknown += [f"{path}.containers[{index}].{name}" for name in container if name not in CONTAINER_FIELDS]
    return unknown


def pruned(resource: Resource, found: Object) -> None:
    """Drop the unknown fields, as a server does that has warned of them."""
    for path in unknown_fields(resource, found):
        parts = re.findall(r"[^.\[\]]+", path)
        inner: Any = found
        for part in parts[:-1]:
            inner = inner[int(part)] if part.isdecimal() else inner[part]
        inner.pop(parts[-1], None)


def _pod_defaults(spec: dict[str, Any]) -> None:
    for container in spec.get("containers") or ():
        container.setdefault("resources", {})
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        container.setdefault("imagePullPolicy", "IfNotPresent" if ":" in container.get("image", "") else "Always")
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")


def _job_defaults(found: Object) -> None:
    spec = found["spec"]
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    for name, value in (("parallelism", 1), ("backoffLimit", 6), ("manualSelector", False), ("suspend", False)):
        spec.setdefault(name, value)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("podReplacementPolicy", "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed")
    uid, name = found["metadata"]["uid"], found["metadata"]["name"]
    spec.setdefault("selector", {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}})
    template = spec.setdefault("template", {})
    labels = template.setdefault("metadata", {}).setdefault("labels", {})
    for label, value in (("controller-uid", uid), ("job-name", name)):
        labels[f"batch.kubernetes.io/{label}"] = value
        labels[label] = value
    inner = template.setdefault("spec", {})
    inner.setdefault("restartPolicy", "")
    _pod_defaults(inner)


def defaulted(resource: Resource, found: Object) -> None:
    """What a create adds; the object has its name and its uid."""
    if resource is JOB:
        found.setdefault("spec", {})
        _job_defaults(found)
        found["status"] = {}
    elif resource is POD:
        _pod_defaults(found.setdefault("spec", {}))
        found["status"] = {"phase": "Pending", "qosClass": "Burstable", **(found.get("status") or {})}
    elif resource is POLICY:
        constraints = found["spec"].setdefault("matchConstraints", {})
        constraints |= {"namespaceSelector": {}, "matchPolicy": "Equivalent"} | constraints
        constraints.setdefault("objectSelector", {})
        for rule in constraints.get("resourceRules") or ():
            rule.setdefault("scope", "*")
        found["status"] = {}
    elif resource is WORKLOAD:
        found.setdefault("spec", {}).setdefault("active", True)


def _label_causes(labels: dict[str, Any], field: str) -> Iterator[Cause]:
    for value in labels.values():
        quoted = f'Invalid value: "{value}": '
        if len(str(value)) > 63:
            yield field, "FieldValueInvalid", f"{quoted}must be no more than 63 bytes"
        elif not re.fullmatch(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?", str(value)):
            yield field, "FieldValueInvalid", f"{quoted}{BAD_LABEL}"


def _name_causes(name: str) -> Iterator[Cause]:
    if len(name) > 253 or not re.fullmatch(SUBDOMAIN, name):
        yield "metadata.name", "FieldValueInvalid", f'Invalid value: "{name}": {BAD_NAME}'


def _job_causes(found: Object) -> Iterator[Cause]:
    template = found["spec"]["template"]
    yield from _label_causes((template.get("metadata") or {}).get("labels") or {}, "spec.template.labels")
    if template["spec"].get("restartPolicy") not in ("Never", "OnFailure"):
        message = 'Required value: valid values: "OnFailure", "Never"'
        yield "spec.template.spec.restartPolicy", "FieldValueRequired", message
    if not template["spec"].get("containers"):
        yield "spec.template.spec.containers", "FieldValueRequired", "Required value"


def _custom_causes(resource: Resource, found: Object) -> Iterator[Cause]:
    switch = found.get("spec") or {}
    name = "suspend"
    if resource is WORKLOAD:
        name = "active"
    elif resource is PYTORCHJOB:
        switch = switch.get("runPolicy") or {}
    value = switch.get(name)
    if value is not None and not isinstance(value, bool):
        word = {str: "string", int: "integer"}.get(type(value), "object")
        field = f"spec.runPolicy.{name}" if resource is PYTORCHJOB else f"spec.{name}"
        yield (
            *(field, "FieldValueTypeInvalid"),
            f'Invalid value: "{word}": {field} in body must be of type boolean: "{word}"',
        )
        yield (
            *("<nil>", "FieldValueInvalid"),
            "Invalid value: null: some validation rules were not checked because the object was invalid; "
            "correct the existing errors to complete validation",
        )


def check(resource: Resource, found: Object) -> None:
    """Raises Refused (422) where the object is not valid."""
    metadata = found["metadata"]
    causes = [*_name_causes(metadata["name"]), *_label_causes(metadata.get("labels") or {}, "metadata.labels")]
    if resource is JOB:
        causes += _job_causes(found)
    elif resource.custom:
        causes += _custom_causes(resource, found)
    if causes:
        raise invalid(resource, metadata["name"], causes)


FIXED_IN_A_JOB = ("completions", "selector", "completionMode", "managedBy", "podFailurePolicy", "backoffLimitPerIndex")


def check_change(resource: Resource, before: Object, after: Object) -> None:
    """Raises Refused (422) where a field was changed that must stay."""
    causes: list[Cause] = []
    uid = after["metadata"].get("uid")
    if uid not in (None, before["metadata"]["uid"]):
        causes.append(("metadata.uid", "FieldValueInvalid", f'Invalid value: "{uid}": field is immutable'))
    if resource is JOB:
        for name in FIXED_IN_A_JOB:
            value = after["spec"].get(name)
            if value != before["spec"].get(name):
                causes.append((f"spec.{name}", "FieldValueInvalid", f"Invalid value: {value}: field is immutable"))
    if causes:
        raise invalid(resource, before["metadata"]["name"], causes)
