"""What the README says of Kubernetes, held against the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from dispatch_core.adapters.contract import Launch
from dispatch_core.adapters.kubernetes import manifest
from dispatch_core.adapters.kubernetes.cluster import KubernetesCluster
from dispatch_core.adapters.kubernetes.scheduler import KubernetesScheduler
from dispatch_core.clusters import read_clusters
from dispatch_core.jobfile import read_job
from dispatch_core.names import object_name
from dispatch_core.places import problems_of

TEXT = (Path(__file__).parents[2] / "README.md").read_text()
KUBERNETES = TEXT.partition("\n## Kubernetes\n")[2].partition("\n## ")[0]
CLUSTERS, JOB = re.findall(r"```yaml\n(.*?)```", KUBERNETES, re.S)


def cluster() -> KubernetesCluster:
    (found,) = read_clusters(CLUSTERS, "clusters.yaml").values()
    assert isinstance(found, KubernetesCluster)
    return found


def test_its_job_is_one_that_its_cluster_takes() -> None:
    job = read_job(JOB, "finetune.yaml")
    assert job.scheduler == cluster().name
    assert list(problems_of(cluster(), job.spec)) == []
    launch = Launch(key=job.key, uid="0" * 16, submission=1, attempt=1, name=object_name("0" * 16, 1, 1), spec=job.spec)
    sort, body = manifest.body_of(launch, cluster(), {"metadata": {"name": "owner", "uid": "u"}})
    (container,) = body["spec"]["template"]["spec"]["containers"]
    assert (sort.kind, body["spec"]["completions"], container["resources"]["limits"]) == (
        "Job",
        2,
        {"memory": str(64 * 2**30), "nvidia.com/gpu": "4"},
    )


def first_column(head: str) -> str:
    """The names in the first column of the table with this head."""
    table = KUBERNETES.partition(f"| {head} |")[2].partition("\n\n")[0]
    return "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))


def test_it_has_every_option_and_no_other() -> None:
    named = set(re.findall(r"`([a-z_]+)`", first_column("in `spec`"))) - {"options"}
    assert named - {"command", "time_limit", "memory", "queue", "exclude", "secret_environment"} == set(
        manifest.OPTIONS
    )


def test_it_has_every_field_of_a_cluster() -> None:
    named = set(re.findall(r"`([a-z_]+)`", first_column("field")))
    assert named | {"name"} == {field.removesuffix("_seconds") for field in KubernetesCluster.__struct_fields__}


@pytest.mark.parametrize(("refuses", "proxy", "told"), [(True, 30.0, 34), (False, 30.0, 62), (False, 0.0, 32)])
async def test_its_seconds_are_those_that_are_declared(refuses: bool, proxy: float, told: int) -> None:
    adapter = KubernetesScheduler(replace(cluster(), proxy_seconds=proxy))
    adapter.refuses_late = refuses
    bounds = adapter.bounds
    await adapter.close()
    assert bounds.window_seconds + bounds.call_seconds + bounds.landing_seconds == told
    assert f"{told} s" in KUBERNETES
