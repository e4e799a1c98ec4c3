"""What a cluster cannot launch of a spec, told without asking it.

One rule: what passes can be built: a manifest is, for a trial, and what is said of one that cannot is one line. Pure.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator, Mapping

import yaml

from dispatch_core.adapters.contract import Launch
from dispatch_core.adapters.kubernetes.cluster import KubernetesCluster
from dispatch_core.adapters.kubernetes.kinds import JOB, SORTS, TRAINJOB, Json, Sort, dig
from dispatch_core.adapters.kubernetes.manifest import MAIN, OPTIONS, PATTERN, body_of, containers, words, written_in
from dispatch_core.names import object_name
from dispatch_core.plan import Spec

Problem = tuple[tuple[str | int, ...], str]

BESIDE_MANIFEST = ("manifest", PATTERN)
NOT_IN_MANIFEST: Mapping[tuple[str, ...], str] = {
    ("metadata", "name"): "dispatch names every object by itself",
    ("metadata", "generateName"): "dispatch names every object by itself",
    ("metadata", "namespace"): "the namespace is the cluster's, as the clusters file has it",
    ("metadata", "ownerReferences"): "the owner is dispatch's fence",
    ("spec", "ttlSecondsAfterFinished"): "the end would be removed with the object",
    ("spec", "managedBy"): "nothing would run it",
    ("spec", "suspend"): "it is dispatch's gate",
    ("spec", "runPolicy", "suspend"): "it is dispatch's gate",
    ("spec", "runPolicy", "ttlSecondsAfterFinished"): "the end would be removed with the object",
    ("status",): "it is the cluster's",
}
"""What a manifest must not say, and why."""
OF_KUEUE = ("kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/prebuilt-workload-name")
"""Labels with which Kueue would start an object by itself."""


def problems(spec: Spec, cluster: KubernetesCluster) -> list[Problem]:
    """What this cluster cannot launch of a spec, without asking it."""
    return [*_field_problems(spec, cluster), *_option_problems(spec, cluster)]


def _field_problems(spec: Spec, cluster: KubernetesCluster) -> Iterator[Problem]:
    if spec.signal_before_limit is not None:
        yield ("spec", "signal_before_limit"), "Kubernetes sends no signal before a time limit; leave it out"
    if spec.working_directory is not None and not os.path.isabs(spec.working_directory):
        yield ("spec", "working_directory"), "it is not absolute; a container has no directory to start from"
    if spec.time_limit_seconds is not None and spec.time_limit_seconds < 1:
        yield ("spec", "time_limit_seconds"), "Kubernetes counts whole seconds, and this is less than one"
    if spec.queue is not None and not cluster.kueue:
        yield ("spec", "queue"), f"{cluster.name} has no queues; write kueue: true in the clusters file if it has Kueue"
    if cluster.kueue and spec.queue is None and cluster.queue is None:
        yield ("spec", "queue"), f"jobs on {cluster.name} go through Kueue; name a LocalQueue"


def _option_problems(spec: Spec, cluster: KubernetesCluster) -> Iterator[Problem]:
    at: tuple[str | int, ...] = ("spec", "options")
    for name, value in spec.options.items():
        if name not in OPTIONS:
            yield (*at, name), f"Kubernetes jobs have no option {name!r}; there are {', '.join(OPTIONS)}"
        elif not isinstance(value, OPTIONS[name]) or isinstance(value, bool):
            yield (*at, name), f"it is {value!r}, which is not what {name} takes"
        elif "manifest" in spec.options and name not in BESIDE_MANIFEST:
            yield (*at, name), "write it into the manifest"
    if why := _pattern_problem(str(spec.options.get(PATTERN, ".*"))):
        yield (*at, PATTERN), why
    if "manifest" in spec.options:
        yield from (((*at, "manifest"), text) for text in _manifest_problems(spec, cluster))
    else:
        yield from ((at + path, text) for path, text in _kind_problems(spec, cluster))


def _kind_problems(spec: Spec, cluster: KubernetesCluster) -> Iterator[Problem]:
    kind = str(spec.options.get("kind", JOB.kind))
    if kind not in cluster.kinds:
        yield ("kind",), f"{cluster.name} takes {', '.join(cluster.kinds)}; add {kind} to its kinds, if it has it"
    if kind == TRAINJOB.kind and "runtime" not in spec.options:
        yield ("runtime",), "a TrainJob names its ClusterTrainingRuntime"
    elif kind != TRAINJOB.kind and "image" not in spec.options and cluster.image is None:
        yield ("image",), "name the image to run the command in"
    for word in words(spec, "node_selector"):
        if "=" not in word:
            yield ("node_selector",), f"{word!r} is no label=value"


def _manifest_problems(spec: Spec, cluster: KubernetesCluster) -> Iterator[str]:
    try:
        written = written_in(str(spec.options["manifest"]))
    except yaml.YAMLError as error:
        yield f"it is no YAML: {' '.join(str(error).split())}"
        return
    except RecursionError:
        yield "a part of it contains itself"
        return
    sort = SORTS.get(str(written.get("kind"))) if isinstance(written, dict) else None
    if sort is None or sort.kind not in cluster.kinds:
        yield f"its kind is none of {', '.join(cluster.kinds)}, which {cluster.name} takes"
        return
    try:
        told = [*_content_problems(sort, written)]
        if not told:
            body_of(_trial(spec), cluster, {"metadata": {"name": "", "uid": ""}})
    except (AttributeError, KeyError, TypeError, ValueError):
        told = [f"it is not laid out as a {sort.kind} is: a list, a mapping or a text stands where another belongs"]
    yield from told


def _trial(spec: Spec) -> Launch:
    """What passes here is to be built in a Start without an error."""
    uid = "0" * 16
    return Launch(key="", uid=uid, submission=1, attempt=1, name=object_name(uid, 1, 1), spec=spec)


def _content_problems(sort: Sort, written: Json) -> Iterator[str]:
    if written.get("apiVersion") != sort.api:
        yield f"its apiVersion is {written.get('apiVersion')!r}; a {sort.kind} has {sort.api}"
    for path, why in NOT_IN_MANIFEST.items():
        if dig(written, *path) is not None:
            yield f"{'.'.join(path)} is set: {why}; leave it out"
    for name in OF_KUEUE:
        if dig(written, "metadata", "labels", name) is not None:
            yield f"metadata.labels has {name}: Kueue would start it; name the queue in the spec or the clusters file"
    if sort is not TRAINJOB and not containers(sort, written):
        yield f"there is no container for the command in it, named {MAIN} or the first"


def _pattern_problem(pattern: str) -> str:
    if not pattern or not pattern.isprintable():
        return "write a text that can be printed"
    try:
        re.compile(pattern)
    except re.error as error:
        return f"it is no regular expression: {error}"
    return ""
