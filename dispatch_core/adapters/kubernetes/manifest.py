"""The object that a Start creates, from a spec: built from its options, or the user's own manifest, then stamped.

One rule: nothing that a user writes can open the gate, change a tag or make more than one object: tags, gate and
suspend bit are set last, and what dispatch sets itself is refused in one line. Values travel as they are: `$` is
doubled, since Kubernetes would else expand `$(NAME)` in them. Pure.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
import yaml

from dispatch_core.adapters.contract import Launch
from dispatch_core.adapters.kubernetes import kinds
from dispatch_core.adapters.kubernetes.cluster import KubernetesCluster
from dispatch_core.adapters.kubernetes.kinds import JOB, JOBSET, PYTORCHJOB, SORTS, TRAINJOB, Json, Sort, dig
from dispatch_core.plan import Spec

Body = dict[str, Any]

PATTERN = "progress_pattern"
OPTIONS: Mapping[str, tuple[type, ...]] = {
    "kind": (str,),
    "image": (str,),
    "nodes": (int,),
    "cpus": (int, float, str),
    "gpus": (int,),
    "gpu_resource": (str,),
    "service_account": (str,),
    "priority_class": (str,),
    "image_pull_secrets": (tuple,),
    "node_selector": (tuple,),
    "grace_seconds": (int,),
    "runtime": (str,),
    "manifest": (str,),
    PATTERN: (str,),
}
"""Options of a spec, each with its types. `manifest` is the object as YAML, instead of most of the others."""
CONTAINER = {PYTORCHJOB.kind: "pytorch"}
MAIN = "main"


def body_of(launch: Launch, cluster: KubernetesCluster, owner: Json, *, parked: bool = False) -> tuple[Sort, Body]:
    """The object that an attempt makes, gated. `owner`: the object that is deleted when no create is wanted any more;
    `parked`: it waits in the held queue, where Kueue has no admission gate."""
    spec = launch.spec
    written = written_in(str(spec.options["manifest"])) if "manifest" in spec.options else _built(spec, cluster)
    sort = SORTS[written["kind"]]
    _with_command(sort, written, launch)
    if spec.time_limit_seconds is not None:
        _with_limit(sort, written, int(spec.time_limit_seconds))
    made_from = hashlib.sha256(msgspec.json.encode(written, order="deterministic")).hexdigest()[:32]
    _stamp(sort, written, launch, made_from)
    written["metadata"]["ownerReferences"] = [
        {"apiVersion": kinds.OWNER.api, "kind": kinds.OWNER.kind, "name": owner["metadata"]["name"]}
        | {"uid": owner["metadata"]["uid"]}
    ]
    if cluster.kueue:
        _with_queue(written, spec.queue or cluster.queue or "", cluster.held_queue if parked else None)
    return sort, written


def written_in(text: str) -> Any:
    """What a manifest says; a null says nothing, as on the server. Raises yaml.YAMLError, and RecursionError."""
    return _without_nulls(yaml.safe_load(text))


def _without_nulls(told: Any) -> Any:
    if isinstance(told, dict):
        return {name: _without_nulls(value) for name, value in told.items() if value is not None}
    return [_without_nulls(value) for value in told] if isinstance(told, list) else told


def _built(spec: Spec, cluster: KubernetesCluster) -> Body:
    kind, nodes = str(spec.options.get("kind", JOB.kind)), int(str(spec.options.get("nodes", 1)))
    image = spec.options.get("image", cluster.image)
    if kind == TRAINJOB.kind:
        trainer: Body = {"numNodes": nodes, **({"image": image} if image else {})}
        if resources := _resources(spec):
            trainer["resourcesPerNode"] = resources
        runtime = {"apiGroup": TRAINJOB.group, "kind": "ClusterTrainingRuntime", "name": spec.options["runtime"]}
        return {"apiVersion": TRAINJOB.api, "kind": kind, "spec": {"runtimeRef": runtime, "trainer": trainer}}
    container = {"name": CONTAINER.get(kind, MAIN), "image": image, "resources": _resources(spec)}
    template = {"spec": _pod(spec) | {"containers": [container]}}
    job = {"parallelism": nodes, "completions": nodes, "backoffLimit": 0, "podReplacementPolicy": "Failed"}
    job |= {"completionMode": "Indexed"} if nodes > 1 else {}
    if kind == JOBSET.kind:
        replicated = [{"name": MAIN, "replicas": 1, "template": {"spec": {**job, "template": template}}}]
        return {"apiVersion": JOBSET.api, "kind": kind, "spec": {"replicatedJobs": replicated}}
    if kind == PYTORCHJOB.kind:
        counts = {"Master": 1, "Worker": nodes - 1}
        replicas = {
            role: {"replicas": count, "restartPolicy": "Never", "template": copy.deepcopy(template)}
            for role, count in counts.items()
            if count
        }
        policy = {"cleanPodPolicy": "Running", "backoffLimit": 0}  # what hangs then ends; what has ended keeps its log
        spec_of = {"runPolicy": policy, "pytorchReplicaSpecs": replicas}
        return {"apiVersion": PYTORCHJOB.api, "kind": kind, "spec": spec_of}
    return {"apiVersion": JOB.api, "kind": kind, "spec": {**job, "template": template}}


def words(spec: Spec, name: str) -> tuple[str, ...]:
    value = spec.options.get(name, ())
    return value if isinstance(value, tuple) else (str(value),)


def _pod(spec: Spec) -> Body:
    """The pod's spec, without its container."""
    options = spec.options
    pod: Body = {"restartPolicy": "Never"}
    if "service_account" in options:
        pod["serviceAccountName"] = options["service_account"]
    if "priority_class" in options:
        pod["priorityClassName"] = options["priority_class"]
    if "grace_seconds" in options:
        pod["terminationGracePeriodSeconds"] = options["grace_seconds"]
    if secrets := words(spec, "image_pull_secrets"):
        pod["imagePullSecrets"] = [{"name": name} for name in secrets]
    if labels := words(spec, "node_selector"):
        pod["nodeSelector"] = dict(word.split("=", 1) for word in labels)
    if spec.exclude:
        term = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": list(spec.exclude)}
        needed = {"nodeSelectorTerms": [{"matchExpressions": [term]}]}
        pod["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": needed}}
    return pod


def _resources(spec: Spec) -> Body:
    requests: Body = {}
    limits: Body = {}
    if "cpus" in spec.options:
        requests["cpu"] = str(spec.options["cpus"])
    if spec.memory_bytes is not None:
        requests["memory"] = limits["memory"] = str(spec.memory_bytes)
    if spec.options.get("gpus"):
        limits[str(spec.options.get("gpu_resource", "nvidia.com/gpu"))] = str(spec.options["gpus"])
    return {name: rows for name, rows in (("requests", requests), ("limits", limits)) if rows}


def _templates(sort: Sort, written: Json) -> list[Body]:
    """The pod templates of an object."""
    spec = written.get("spec") or {}
    if sort is JOBSET:
        return [dig(job, "template", "spec", "template") or {} for job in spec.get("replicatedJobs") or ()]
    if sort is PYTORCHJOB:
        return [replica.get("template") or {} for replica in (spec.get("pytorchReplicaSpecs") or {}).values()]
    return [spec["template"]] if isinstance(spec.get("template"), dict) else []


def containers(sort: Sort, written: Json) -> list[Body]:
    """The containers that the command runs in: of each template the one named so, else the first."""
    found = []
    for template in _templates(sort, written):
        rows = dig(template, "spec", "containers") or []
        named = [row for row in rows if row.get("name") == CONTAINER.get(sort.kind, MAIN)]
        found += [*named, *rows][:1]
    return found


def whole(text: str) -> str:
    """A value that Kubernetes hands on as it is.

    >>> whole("$(id) costs $5")
    '$$(id) costs $$5'
    """
    return text.replace("$", "$$")


def _with_command(sort: Sort, written: Body, launch: Launch) -> None:
    spec = launch.spec
    told: Body = {"command": [whole(spec.command[0])], "args": [whole(part) for part in spec.command[1:]]}
    environment = _environment(sort, launch)
    if sort is TRAINJOB:
        trainer = written["spec"].setdefault("trainer", {})
        trainer |= told | {"env": [*(trainer.get("env") or ()), *environment]}
        return
    for container in containers(sort, written):
        container |= copy.deepcopy(told) | {"env": [*(container.get("env") or ()), *copy.deepcopy(environment)]}
        if spec.working_directory is not None:
            container["workingDir"] = spec.working_directory


def _environment(sort: Sort, launch: Launch) -> list[Body]:
    spec = launch.spec
    told = {
        "KEY": launch.key,
        "SUBMISSION": str(launch.submission),
        "ATTEMPT": str(launch.attempt),
        "RUN": "1",
        "PREVIOUS_CAUSE": launch.previous_cause,
    }
    rows: list[Body] = [{"name": f"DISPATCH_{name}", "value": whole(value)} for name, value in told.items()]
    where = f"metadata.labels['{sort.uid_label}']"
    from_label = {"valueFrom": {"fieldRef": {"fieldPath": where}}} if sort.uid_label else {"value": launch.name}
    rows.append({"name": "DISPATCH_OBJECT", **from_label})
    rows += [{"name": name, "value": whole(value)} for name, value in sorted(spec.environment.items())]
    for name in sorted(spec.secret_environment):
        rows.append({"name": name, "valueFrom": {"secretKeyRef": {"name": launch.name, "key": name}}})
    return rows


def _with_limit(sort: Sort, written: Body, seconds: int) -> None:
    if sort is JOBSET:
        for job in written["spec"]["replicatedJobs"]:
            job["template"]["spec"]["activeDeadlineSeconds"] = seconds
    elif sort is PYTORCHJOB:
        written["spec"].setdefault("runPolicy", {})["activeDeadlineSeconds"] = seconds
    else:
        written["spec"]["activeDeadlineSeconds"] = seconds


def labels_of(launch: Launch) -> dict[str, str]:
    """The labels of all that an attempt makes."""
    return {
        kinds.UID: launch.uid,
        kinds.SUBMISSION: str(launch.submission),
        kinds.ATTEMPT: str(launch.attempt),
        kinds.KEY_HASH: kinds.key_hash(launch.key),
    }


def _stamp(sort: Sort, written: Body, launch: Launch, made_from: str) -> None:
    """Name, tags and the shut gate."""
    metadata = written.setdefault("metadata", {})
    metadata["name"] = launch.name
    metadata["labels"] = {**_others(metadata.get("labels")), **labels_of(launch)}
    tags = {kinds.KEY: launch.key, kinds.GATE: kinds.CLOSED, kinds.HOLD: kinds.NO_HOLD, kinds.STOPPED: kinds.NO}
    tags |= {kinds.FENCE: "1", kinds.MADE_FROM: made_from}
    if watched := _watched(launch):
        tags[kinds.PROGRESS] = watched
    metadata["annotations"] = {**_others(metadata.get("annotations")), **tags}
    for template in _templates(sort, written):
        inner = template.setdefault("metadata", {})
        inner["labels"] = {**(inner.get("labels") or {}), **labels_of(launch)}
    place = written
    for name in sort.suspend[:-1]:
        place = place.setdefault(name, {})
    place[sort.suspend[-1]] = True


def _others(tags: Json | None) -> Body:
    """Those that are not dispatch's own."""
    return {name: value for name, value in (tags or {}).items() if not str(name).startswith(f"{kinds.PREFIX}/")}


def _watched(launch: Launch) -> str:
    """What shows an object's progress, "" where nobody asks: its output, and which lines of it."""
    pattern = launch.spec.options.get(PATTERN)
    return f"{kinds.OUTPUT} {pattern}" if pattern else kinds.OUTPUT if launch.watches_progress else ""


def _with_queue(written: Body, queue: str, held_queue: str | None) -> None:
    metadata = written["metadata"]
    metadata["labels"][kinds.QUEUE_NAME] = held_queue or queue
    if held_queue is None:
        given = metadata["annotations"].get(kinds.GATED_BY)
        metadata["annotations"][kinds.GATED_BY] = ",".join(filter(None, (kinds.KUEUE_GATE, given)))
    else:
        metadata["annotations"][kinds.QUEUE] = queue


WITH_SECRETS = "secrets"
"""What an owner holds where its job has secrets: they are deleted before it."""


def owner_body(uid: str, key: str, secrets: bool) -> Body:
    """The object that owns all that a job makes: what is created once it is deleted, the cluster collects."""
    metadata = {
        "name": owner_name(uid),
        "labels": {kinds.UID: uid, kinds.KEY_HASH: kinds.key_hash(key)},
        "annotations": {kinds.KEY: key},
    }
    data = {WITH_SECRETS: "each has the name of its object"} if secrets else {}
    return {"apiVersion": kinds.OWNER.api, "kind": kinds.OWNER.kind, "metadata": metadata, "data": data}


def owner_name(uid: str) -> str:
    return f"dispatch-{uid}"


def secret_body(launch: Launch, secrets: Mapping[str, str], owner: Json) -> Body:
    """A Secret that only the attempt's own pods name."""
    reference = {"apiVersion": kinds.OWNER.api, "kind": kinds.OWNER.kind, "name": owner["metadata"]["name"]}
    metadata = {
        "name": launch.name,
        "labels": labels_of(launch),
        "ownerReferences": [{**reference, "uid": owner["metadata"]["uid"]}],
    }
    return {
        "apiVersion": kinds.SECRET.api,
        "kind": kinds.SECRET.kind,
        "metadata": metadata,
        "type": "Opaque",
        "stringData": dict(secrets),
    }
