"""The cluster of a job: the machine of the flow, a name in the clusters file, a block, or the name of a saved one."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from prefect.blocks.core import Block
from pydantic import ValidationError

from dispatch_core import places
from dispatch_core.adapters.kubernetes import cluster as kubernetes
from dispatch_core.adapters.local.scheduler import LocalScheduler
from dispatch_core.adapters.slurm import cluster as adapter
from dispatch_core.adapters.slurm.cluster import SshHost
from dispatch_core.clusters import Cluster, LocalCluster
from dispatch_core.errors import BadInput
from dispatch_core.stores.sql import open_store
from prefect_collection.blocks import ClusterBlock, DispatchStore, KubernetesCluster, SlurmCluster
from prefect_collection.connections import cluster_of
from prefect_collection.tasks import dispatch_job

FIELDS: dict[str, Any] = {
    "host": "login",
    "port": 2222,
    "user": "ann",
    "key_file": "/keys/alps",
    "known_hosts": "/keys/known",
    "directory": "/work/ann",
    "bin": "/opt/slurm/bin",
    "slurm_conf": "/etc/slurm.conf",
    "poll": "5s",
    "absence": 90,
    "submits_per_second": 0.5,
    "live_jobs": 200,
    "keep": "90d",
    "keep_secrets": 7200,
}
ALPS = adapter.SlurmCluster(
    name="alps",
    ssh=SshHost(host="login", port=2222, user="ann", key_file="/keys/alps", known_hosts="/keys/known"),
    directory="/work/ann",
    bin="/opt/slurm/bin",
    slurm_conf="/etc/slurm.conf",
    poll_seconds=5.0,
    absence_seconds=90.0,
    submits_per_second=0.5,
    live_jobs=200,
    keep_seconds=90 * 86400.0,
    keep_secrets_seconds=7200.0,
)

POD_FIELDS: dict[str, Any] = {
    "namespace": "training",
    "kubeconfig": "/keys/kube",
    "context": "gpu",
    "kinds": ["Job", "JobSet"],
    "kueue": True,
    "queue": "team",
    "held_queue": "held",
    "image": "train:7",
    "poll": "5s",
    "absence": 90,
    "keep": "7d",
    "proxy": "0s",
}
PODS = kubernetes.KubernetesCluster(
    name="pods",
    namespace="training",
    kubeconfig="/keys/kube",
    context="gpu",
    kinds=("Job", "JobSet"),
    kueue=True,
    queue="team",
    held_queue="held",
    image="train:7",
    poll_seconds=5.0,
    absence_seconds=90.0,
    keep_seconds=7 * 86400.0,
    proxy_seconds=0.0,
)


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clusters file with a cluster `here`."""
    made = tmp_path / "c.yaml"
    made.write_text(f"clusters:\n  here: {{type: local, spool: {tmp_path}/here}}\n")
    monkeypatch.setenv("DISPATCH_CLUSTERS", str(made))
    return made


def saved(monkeypatch: pytest.MonkeyPatch, **blocks: ClusterBlock) -> None:
    """These blocks, under these names, as a server would have them."""

    async def aload(kind: type[ClusterBlock], name: str) -> ClusterBlock:
        if not isinstance(blocks.get(name), kind):
            raise ValueError(f"Unable to find block document named {name}")
        blocks[name]._block_document_name = name
        return blocks[name]

    for kind in (SlurmCluster, KubernetesCluster):
        monkeypatch.setattr(kind, "aload", classmethod(aload))


def test_the_block_is_what_a_clusters_file_would_say() -> None:
    assert SlurmCluster(name="alps", **FIELDS).described() == ALPS
    assert SlurmCluster(name="near", host="").described() == adapter.SlurmCluster(name="near")
    assert issubclass(SlurmCluster, Block)
    assert SlurmCluster.get_block_type_slug() == "dispatch-slurm-cluster"
    assert SlurmCluster.get_description()
    assert "SlurmCluster" in (SlurmCluster.get_code_example() or "")


def test_so_is_one_of_kubernetes() -> None:
    assert KubernetesCluster(name="pods", **POD_FIELDS).described() == PODS
    assert KubernetesCluster(name="near", image="").described() == kubernetes.KubernetesCluster(name="near")
    assert KubernetesCluster.get_block_type_slug() == "dispatch-kubernetes-cluster"


def test_the_block_is_called_by_its_field_or_by_what_it_is_saved_under() -> None:
    block = SlurmCluster(host="login")
    with pytest.raises(BadInput, match="has no name"):
        block.described()
    block._block_document_name = "saved"
    assert block.described().name == "saved"
    named = SlurmCluster(name="alps", host="login")
    named._block_document_name = "saved"
    assert named.described().name == "alps"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "local"}, "built in"),
        ({"host": "h", "port": 0}, "port: it is the number 0"),
        ({"user": "ann"}, "there is no host that it is for"),
        ({"host": "h", "poll": "soon"}, "is no duration"),
        ({"host": "h", "key_file": "-----BEGIN PRIVATE KEY----- hunter2"}, "never the key itself"),
        ({"host": "h", "private_key": "hunter2"}, "there is no field 'private_key'"),
        ({"host": "h", "live_jobs": "hunter2"}, "live_jobs"),
    ],
)
def test_a_wrong_block_cannot_be_made(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said) as raised:
        SlurmCluster(**fields)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kinds": ["Pod"]}, "'Pod' is not one of Job"),
        ({"queue": "team"}, "write kueue: true beside it"),
        ({"kubeconfig": "apiVersion: v1\nusers: hunter2"}, "kubeconfig"),
        ({"token": "hunter2"}, "there is no field 'token'"),
    ],
)
def test_a_wrong_block_of_kubernetes_cannot_be_made(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said) as raised:
        KubernetesCluster(**fields)
    assert "hunter2" not in str(raised.value)


async def test_a_cluster_is_given_in_four_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(
        monkeypatch,
        alps=SlurmCluster(**FIELDS),
        here=SlurmCluster(host="another"),
        pods=KubernetesCluster(**POD_FIELDS),
    )
    assert await cluster_of("local", tmp_path) == LocalCluster(name="local", spool=str(tmp_path))
    assert await cluster_of("here") == LocalCluster(name="here", spool=f"{tmp_path}/here")
    assert await cluster_of("alps") == ALPS
    assert await cluster_of("pods") == PODS
    assert await cluster_of(SlurmCluster(name="alps", **FIELDS)) == ALPS
    with pytest.raises(
        BadInput,
        match=r"c\.yaml has local, here: .*; nor is a Dispatch Slurm Cluster or Dispatch Kubernetes Cluster block",
    ):
        await cluster_of("moon")


async def test_a_mistake_in_the_clusters_file_is_told_before_a_block_is_looked_for(file: Path) -> None:
    await asyncio.to_thread(file.write_text, "clusters: {here: {type: locl}}\n")
    with pytest.raises(BadInput, match=r"c\.yaml:1: clusters\.here\.type"):
        await cluster_of("alps")


@pytest.mark.parametrize(
    "scheduler", ["here", "alps", SlurmCluster(name="alps", **FIELDS)], ids=["file", "name", "block"]
)
async def test_a_job_runs_on_the_cluster_that_its_task_is_given(
    folder: Path, monkeypatch: pytest.MonkeyPatch, scheduler: SlurmCluster | str
) -> None:
    """A local scheduler of its own stands in for one that Slurm would run."""
    saved(monkeypatch, alps=SlurmCluster(**FIELDS))
    opened: list[Cluster] = []

    def open_cluster(cluster: Cluster) -> LocalScheduler:
        opened.append(cluster)
        return LocalScheduler(folder / cluster.name)

    monkeypatch.setattr(places, "open_cluster", open_cluster)
    block = DispatchStore(url=f"sqlite:///{folder / 'jobs.db'}", spool=folder / "spool")
    given = {"store": block, "scheduler": scheduler, "across_runs": True, "settle_seconds": 0.1}
    result = await asyncio.wait_for(dispatch_job.fn("train", ["true"], **given), 60)
    assert result.outcome == "succeeded"
    store = open_store(f"sqlite:///{folder / 'jobs.db'}")
    record = await store.read("train")
    await store.close()
    assert record.scheduler == ("here" if scheduler == "here" else "alps")
    assert [cluster.name for cluster in opened] == [record.scheduler]
    assert "/keys/alps" not in repr(record)
