"""The object that a Start creates: gated and tagged whatever the user wrote."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yaml

from dispatch_core.adapters.contract import Launch
from dispatch_core.adapters.kubernetes import kinds
from dispatch_core.adapters.kubernetes.checking import problems
from dispatch_core.adapters.kubernetes.cluster import KubernetesCluster
from dispatch_core.adapters.kubernetes.kinds import JOB, JOBSET, PYTORCHJOB, SORTS, TRAINJOB, annotation, dig, label
from dispatch_core.adapters.kubernetes.manifest import body_of, secret_body, whole
from dispatch_core.names import object_name, read_name
from dispatch_core.plan import Secret, Spec

UID = "0f3a9c21b7d4e865"
OWNER = {"metadata": {"name": f"dispatch-{UID}", "uid": "the-owner"}}
EVERY = KubernetesCluster(name="kube", kinds=tuple(SORTS), image="registry.example/trainer:1")
KUEUE = KubernetesCluster(
    name="kube", image="registry.example/trainer:1", kueue=True, queue="team", held_queue="parked"
)


def launch(spec: Spec, *, attempt: int = 1) -> Launch:
    name = object_name(UID, 2, attempt)
    return Launch(key="nightly/train é", uid=UID, submission=2, attempt=attempt, name=name, spec=spec)


def spec_of(kind: str, **more: Any) -> Spec:
    runtime = {"runtime": "torch-distributed"} if kind == TRAINJOB.kind else {}
    return Spec(command=("python", "-m", "trainer"), options={"kind": kind, "nodes": 2, **runtime}, **more)


@pytest.mark.promise("G1")
@pytest.mark.promise("G4")
@pytest.mark.parametrize("sort", SORTS.values(), ids=SORTS)
def test_every_kind_is_made_gated_and_tagged(sort: kinds.Sort) -> None:
    spec = spec_of(sort.kind, memory_bytes=2**30, time_limit_seconds=3600.0)
    assert problems(spec, EVERY) == []
    made, body = body_of(launch(spec), EVERY, OWNER)
    assert made is sort
    assert body["apiVersion"] == sort.api
    assert dig(body, *sort.suspend) is True
    assert read_name(body["metadata"]["name"]) == (UID, 2, 1)
    assert (label(body, kinds.UID), label(body, kinds.SUBMISSION), label(body, kinds.ATTEMPT)) == (UID, "2", "1")
    assert annotation(body, kinds.KEY) == "nightly/train é"
    assert (annotation(body, kinds.GATE), annotation(body, kinds.HOLD)) == (kinds.CLOSED, kinds.NO_HOLD)
    assert [owner["uid"] for owner in body["metadata"]["ownerReferences"]] == ["the-owner"]
    assert str(body).count("'activeDeadlineSeconds': 3600") == 1


def test_the_cluster_does_not_retry_inside_the_object() -> None:
    _, body = body_of(launch(spec_of(JOB.kind)), EVERY, OWNER)
    assert (body["spec"]["backoffLimit"], body["spec"]["podReplacementPolicy"]) == (0, "Failed")
    assert body["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    assert "ttlSecondsAfterFinished" not in body["spec"]


def test_the_same_attempt_is_the_same_object() -> None:
    first, second = (body_of(launch(spec_of(JOB.kind)), EVERY, OWNER)[1] for _ in range(2))
    assert first == second
    other = body_of(launch(Spec(command=("false",))), EVERY, OWNER)[1]
    assert annotation(first, kinds.MADE_FROM) != annotation(other, kinds.MADE_FROM)


def test_values_are_not_expanded() -> None:
    spec = Spec(command=("sh", "-c", "echo $(id) $$ $HOME"), environment={"A": "$(DISPATCH_KEY)"})
    _, body = body_of(launch(spec), EVERY, OWNER)
    (container,) = body["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["-c", whole("echo $(id) $$ $HOME")]
    assert {"name": "A", "value": "$$(DISPATCH_KEY)"} in container["env"]


def test_a_secret_is_named_and_not_in_the_object() -> None:
    spec = Spec(command=("true",), secret_environment={"TOKEN": Secret(source="variable", name="token")})
    told = launch(spec)
    _, body = body_of(told, EVERY, OWNER)
    (container,) = body["spec"]["template"]["spec"]["containers"]
    reference = {"secretKeyRef": {"name": told.name, "key": "TOKEN"}}
    assert {"name": "TOKEN", "valueFrom": reference} in container["env"]
    secret = secret_body(told, {"TOKEN": "hunter2"}, OWNER)
    assert "hunter2" in str(secret)
    assert secret["metadata"]["name"] == told.name
    assert secret["metadata"]["ownerReferences"]


@pytest.mark.promise("G10")
def test_under_kueue_the_gate_is_kueues() -> None:
    _, body = body_of(launch(spec_of(JOB.kind)), KUEUE, OWNER)
    assert (label(body, kinds.QUEUE_NAME), annotation(body, kinds.GATED_BY)) == ("team", kinds.KUEUE_GATE)
    assert body["spec"]["suspend"] is True
    assert len(kinds.KUEUE_GATE) <= 63


def test_an_old_kueue_gets_the_held_queue() -> None:
    _, body = body_of(launch(Spec(command=("true",), queue="mine")), KUEUE, OWNER, parked=True)
    assert (label(body, kinds.QUEUE_NAME), annotation(body, kinds.QUEUE)) == ("parked", "mine")
    assert not annotation(body, kinds.GATED_BY)


MANIFEST: dict[str, Any] = {
    "apiVersion": JOBSET.api,
    "kind": JOBSET.kind,
    "metadata": {
        "labels": {"team": "a", kinds.UID: "mine"},
        "annotations": {kinds.GATE: kinds.OPEN, kinds.QUEUE: "x", kinds.PROGRESS: "output"},
    },
    "spec": {
        "replicatedJobs": [
            {
                "name": "workers",
                "replicas": 4,
                "template": {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "x"}]}}}},
            }
        ],
    },
}


def with_manifest(manifest: object) -> Spec:
    return Spec(command=("train",), options={"manifest": yaml.safe_dump(manifest)})


@pytest.mark.promise("G1")
def test_a_manifest_cannot_open_the_gate_or_change_a_tag() -> None:
    spec = with_manifest(MANIFEST)
    assert problems(spec, EVERY) == []
    sort, body = body_of(launch(spec), EVERY, OWNER)
    assert sort is JOBSET
    assert (label(body, kinds.UID), label(body, "team"), annotation(body, kinds.GATE)) == (UID, "a", kinds.CLOSED)
    assert (annotation(body, kinds.QUEUE), annotation(body, kinds.PROGRESS)) == ("", "")
    assert body["spec"]["suspend"] is True
    template = body["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    assert template["spec"]["containers"][0]["command"] == ["train"]
    assert template["metadata"]["labels"][kinds.UID] == UID


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"spec": {**MANIFEST["spec"], "suspend": False}}, "gate"),
        ({"spec": {**MANIFEST["spec"], "ttlSecondsAfterFinished": 5}}, "end would be removed"),
        ({"metadata": {"name": "mine"}}, "names every object"),
        ({"kind": "Deployment"}, "kind is none of"),
        ({"apiVersion": "batch/v1"}, "apiVersion"),
        ({"spec": {"replicatedJobs": []}}, "no container"),
        ({"metadata": {"labels": {kinds.QUEUE_NAME: "team"}}}, "Kueue would start it"),
        ({"metadata": {"labels": {"kueue.x-k8s.io/prebuilt-workload-name": "w"}}}, "Kueue would start it"),
    ],
)
def test_what_a_manifest_must_not_say_is_refused(change: dict[str, Any], told: str) -> None:
    ((path, text),) = problems(with_manifest(MANIFEST | change), EVERY)
    assert path == ("spec", "options", "manifest")
    assert told in text


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        (Spec(command=("x",), options={"shape": 1}), ("spec", "options", "shape")),
        (Spec(command=("x",), options={"nodes": "two"}), ("spec", "options", "nodes")),
        (Spec(command=("x",), options={"kind": "Deployment"}), ("spec", "options", "kind")),
        (Spec(command=("x",), queue="team"), ("spec", "queue")),
        (Spec(command=("x",), signal_before_limit="USR1"), ("spec", "signal_before_limit")),
        (Spec(command=("x",), working_directory="here"), ("spec", "working_directory")),
        (Spec(command=("x",), options={"kind": TRAINJOB.kind}), ("spec", "options", "runtime")),
        (Spec(command=("x",), options={"node_selector": ("gpu",)}), ("spec", "options", "node_selector")),
    ],
)
def test_what_cannot_be_launched_is_told(spec: Spec, path: tuple[str, ...]) -> None:
    assert [at for at, _ in problems(spec, EVERY)] == [path]


def test_pytorch_has_a_master_and_workers() -> None:
    _, body = body_of(launch(spec_of(PYTORCHJOB.kind)), EVERY, OWNER)
    replicas = body["spec"]["pytorchReplicaSpecs"]
    assert {role: replica["replicas"] for role, replica in replicas.items()} == {"Master": 1, "Worker": 1}
    names = {dig(replica, "template", "spec", "containers")[0]["name"] for replica in replicas.values()}
    assert names == {"pytorch"}


def places(told: object, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document."""
    yield at
    for name, value in told.items() if isinstance(told, dict) else enumerate(told if isinstance(told, list) else ()):
        yield from places(value, (*at, name))


def changed(told: Any, at: tuple[Any, ...], value: object) -> Any:
    if not at:
        return value
    after = copy.copy(told)
    after[at[0]] = changed(told[at[0]], at[1:], value)
    return after


ODD = (None, "text", [1], {"a": 1}, {1: 2})
POD: dict[str, Any] = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "main", "env": []}]}}
SMALL: dict[str, dict[str, Any]] = {
    "Job": {"template": POD},
    "JobSet": {"replicatedJobs": [{"template": {"spec": {"template": POD}}}]},
    "TrainJob": {"runtimeRef": {"name": "x"}, "trainer": {"env": []}},
    "PyTorchJob": {"runPolicy": {}, "pytorchReplicaSpecs": {"Master": {"template": POD}}},
}


@pytest.mark.parametrize("sort", SORTS.values(), ids=SORTS)
def test_whatever_a_manifest_is_like_it_is_built_or_refused(sort: kinds.Sort) -> None:
    """It would end a supervisor, and everyone who takes on the job after it."""
    small = {"apiVersion": sort.api, "kind": sort.kind, "metadata": {"labels": {"a": "b"}}, "spec": SMALL[sort.kind]}
    refused = 0
    for at in places(small):
        for value in ODD:
            spec = with_manifest(changed(small, at, value))
            spec = msgspec.structs.replace(spec, time_limit_seconds=60.0, working_directory="/work")
            told = problems(spec, EVERY)
            refused += bool(told)
            assert all("\n" not in text for _, text in told)
            if not told:
                msgspec.json.encode(body_of(launch(spec), EVERY, OWNER)[1])
    assert refused > 10


def test_a_manifest_that_contains_itself_is_refused() -> None:
    text = f"apiVersion: {JOB.api}\nkind: Job\nspec: &again\n  template: *again\n"
    ((_, told),) = problems(Spec(command=("true",), options={"manifest": text}), EVERY)
    assert "contains itself" in told
