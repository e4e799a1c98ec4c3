"""What doctor finds of a cluster, and what an administrator is given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from dispatch_core.adapters.kubernetes import policies
from dispatch_core.adapters.kubernetes.cluster import KubernetesCluster
from dispatch_core.adapters.kubernetes.doctor import examine
from dispatch_core.adapters.kubernetes.kinds import PREFIX, SORTS
from dispatch_core.cli.showing import app
from dispatch_core.clusters import read_clusters
from dispatch_core.errors import BadInput
from tests.kubernetes.recorded import exchange
from tests.kubernetes.rig import kubeconfig
from tests.kubernetes.server import ApiServer


async def found(cluster: KubernetesCluster) -> dict[str, bool | None]:
    return {finding.name: finding.ok async for finding in examine(cluster)}


async def test_a_plain_cluster_is_fine_with_notes(tmp_path: Path) -> None:
    async with ApiServer() as server:
        told = await found(KubernetesCluster(name="test", kubeconfig=str(kubeconfig(server.url, tmp_path))))
        assert told == {
            **{"server": True, "jobs": True, "pods": True, "configmaps": True, "create": True},
            **{"deadlines": None, "gate": None, "calls": True},
        }
        assert not [asked for asked in server.requests if asked.verb == "create" and asked.query.get("dryRun") != "All"]


async def test_what_the_role_allows_is_enough_and_less_is_told(tmp_path: Path) -> None:
    cluster = KubernetesCluster(name="test", kubeconfig=str(tmp_path / "kubeconfig"))
    role = next(each for each in policies.roles(cluster) if each["kind"] == "Role")
    async with ApiServer() as server:
        server.access.add("enough", "dispatch", role["rules"], ["default"])
        kubeconfig(server.url, tmp_path, "enough")
        assert False not in (await found(cluster)).values()
        server.access.add("little", "somebody", [], ["default"])
        kubeconfig(server.url, tmp_path, "little")
        assert (await found(cluster)).get("jobs", False) is False


async def test_a_server_that_is_not_there_is_told(tmp_path: Path) -> None:
    cluster = KubernetesCluster(name="test", kubeconfig=str(kubeconfig("http://127.0.0.1:1", tmp_path)))
    assert await found(cluster) == {"server": False}
    nowhere = KubernetesCluster(name="test", kubeconfig=str(tmp_path / "none"))
    assert await found(nowhere) == {"kubeconfig": False}


def test_the_deadline_policy_is_the_recorded_one() -> None:
    """Its expressions are those that a real server compiled and enforced."""
    recorded = exchange("policy-02-deadline-create")["request"]["body"]["spec"]
    ours = policies.policies(KubernetesCluster(name="test"))[0]["spec"]
    assert ours["validations"] == recorded["validations"]
    assert ours["matchConditions"] == recorded["matchConditions"]


@pytest.mark.promise("L1")
def test_a_late_call_is_known_by_what_the_server_says() -> None:
    from dispatch_core.adapters.kubernetes.calls import reply_of
    from dispatch_core.adapters.kubernetes.transport import Answered
    from dispatch_core.record import Answer

    def answer(case: str) -> Answer | None:
        told = exchange(case)["response"]
        reply = reply_of(Answered(told["status"], told["body"]))
        return reply.answer if reply else None

    assert answer("policy-12-deadline-patch-late") is Answer.LATE
    assert answer("policy-10-deadline-create-late") is Answer.LATE
    assert answer("basic-22-jsonpatch-test-failed-annotation") is None
    assert answer("basic-26-jsonpatch-missing-object") is Answer.REFUSED
    assert answer("basic-54-forbidden-patch") is Answer.REFUSED
    assert answer("hookdown-04-patch-500") is Answer.UNKNOWN
    assert answer("basic-64-timeout-504-stored") is Answer.UNKNOWN


CLUSTERS = """
clusters:
  gpu:
    type: kubernetes
    namespace: training
    kubeconfig: /etc/dispatch/kubeconfig
    context: gpu
    kinds: [Job, JobSet]
    kueue: true
    queue: team
    proxy: 0s
"""


def test_a_cluster_is_read_from_the_clusters_file() -> None:
    (cluster,) = read_clusters(CLUSTERS, "clusters.yaml").values()
    assert cluster == KubernetesCluster(
        name="gpu",
        namespace="training",
        kubeconfig="/etc/dispatch/kubeconfig",
        context="gpu",
        kinds=("Job", "JobSet"),
        kueue=True,
        queue="team",
        proxy_seconds=0.0,
    )


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("kinds: [Deployment]", "not one of Job, JobSet"),
        ("namespace: Team_A", "no name of Kubernetes"),
        ("queue: team", "kueue: true"),
        ("kubeconfig: here", "not absolute"),
        ("poll: 1m", "100ms to 15s"),
        ("colour: red", "no such field"),
    ],
)
def test_what_is_wrong_with_it_is_one_line(wrong: str, told: str) -> None:
    with pytest.raises(BadInput, match=told) as raised:
        read_clusters(f"clusters:\n  a:\n    type: kubernetes\n    {wrong}\n", "clusters.yaml")
    assert str(raised.value).startswith("clusters.yaml:4: clusters.a.")


def test_doctor_prints_what_can_be_applied(tmp_path: Path) -> None:
    (tmp_path / "clusters.yaml").write_text(CLUSTERS)
    ran = CliRunner().invoke(app, ["doctor", "gpu", "--policies", "--clusters", str(tmp_path / "clusters.yaml")])
    assert ran.exit_code in (0, None), ran.output
    documents = list(yaml.safe_load_all(ran.output))
    kinds = [document["kind"] for document in documents]
    assert kinds.count("ValidatingAdmissionPolicy") == kinds.count("ValidatingAdmissionPolicyBinding") == 2
    assert "Role" in kinds
    resources = [rule["resources"][0] for rule in documents[0]["spec"]["matchConstraints"]["resourceRules"]]
    assert resources == ["jobs", "jobsets", "workloads"]
    assert PREFIX in json.dumps(documents)
    assert set(SORTS) > {"Job", "JobSet"}
