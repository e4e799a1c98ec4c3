"""The cluster of a task's job: a name of the clusters file, or a connection that says how it is reached."""

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator, Iterator
from types import ModuleType
from typing import Any

import pytest
from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider import clusters, hook, sites
from airflow_provider.clusters import SlurmSshHook, acluster, cluster, forget, read_connection
from airflow_provider.sites import site
from airflow_provider.trigger import DispatchTrigger
from dispatch_core.adapters.contract import Finding
from dispatch_core.adapters.kubernetes.cluster import KubernetesCluster
from dispatch_core.adapters.slurm.cluster import SlurmCluster, SshHost
from dispatch_core.clusters import LocalCluster
from dispatch_core.errors import BadInput
from tests.airflow.inside.conftest import Deployment, context, deferred, fired, made_again

EXTRA = {
    "key_file": "/keys/alps",
    "known_hosts": "/keys/known",
    "directory": "/work/ann",
    "bin": "/opt/slurm/bin",
    "slurm_conf": "/etc/slurm.conf",
    "poll": "5s",
    "absence": "90",
    "submits_per_second": "0.5",
    "live_jobs": "200",
    "keep": "90d",
    "keep_secrets": "2h",
}
ALPS = SlurmCluster(
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


def connection(extra: Any = None, conn_id: str = "alps", **fields: Any) -> Connection:
    text = extra if isinstance(extra, str) or extra is None else json.dumps(extra)
    return Connection(conn_id=conn_id, **{"conn_type": "slurm_ssh", "extra": text, **fields})


def stood_in(monkeypatch: pytest.MonkeyPatch, room: str, **names: object) -> None:
    """A room of the Slurm adapter that only answers what is asked of it."""
    module = ModuleType(f"dispatch_core.adapters.slurm.{room}")
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.fixture
def alps(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    """A deployment with a connection `alps`, and a clusters file with a cluster `here`."""
    described = {"conn_type": "slurm_ssh", "host": "login", "login": "ann", "port": 2222, "extra": EXTRA}
    monkeypatch.setenv("AIRFLOW_CONN_ALPS", json.dumps(described))
    (deployment.folder / "c.yaml").write_text(f"clusters:\n  here: {{type: local, spool: {deployment.folder}/here}}\n")
    monkeypatch.setenv("DISPATCH_CLUSTERS", str(deployment.folder / "c.yaml"))
    stood_in(monkeypatch, "script", problems=lambda spec: [])
    forget("alps")
    yield deployment
    forget("alps")


def test_the_fields_of_a_connection() -> None:
    assert read_connection(connection(EXTRA, host="login", port=2222, login="ann")) == ALPS
    numbers = {"submits_per_second": 0.5, "live_jobs": 200, "absence": 90}
    assert read_connection(connection({**EXTRA, **numbers}, host="login", port=2222, login="ann")) == ALPS
    assert read_connection(connection({"poll": "", "bin": None}, host="", login="")) == SlurmCluster(name="alps")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"conn_type": "ssh"}, "make it one of type slurm_ssh or kubernetes"),
        ({"conn_id": "local"}, "built in for this machine"),
        ({"host": "h", "password": "hunter2"}, "has a password"),
        ({"extra": "{"}, "is not JSON"),
        ({"extra": {"private_key": "hunter2"}}, "no field 'private_key'"),
        ({"host": "h", "extra": {"key_file": "-----BEGIN PRIVATE KEY-----\nhunter2"}}, "never the key itself"),
        ({"login": "ann"}, "user: there is no host that it is for"),
        ({"extra": {"poll": "soon"}}, "poll: 'soon' is no duration"),
        ({"extra": {"live_jobs": "many"}}, 'live_jobs: a whole number is needed, and this is "many"'),
    ],
)
def test_one_line_for_what_is_wrong(given: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said) as raised:
        read_connection(connection(given.pop("extra", None), **given))
    assert "\n" not in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_a_connection_of_airflows_kubernetes_provider() -> None:
    """With the fields that its form fills in, and ours beside them."""
    extra = {
        "in_cluster": False,
        "kube_config_path": "/keys/kube",
        "kube_config": "",
        "namespace": "training",
        "cluster_context": "gpu",
        "disable_verify_ssl": False,
        "disable_tcp_keepalive": True,
        "xcom_sidecar_container_image": "alpine",
        "kinds": ["Job", "JobSet"],
        "kueue": True,
        "queue": "team",
        "poll": "5s",
    }
    assert read_connection(connection(extra, conn_id="pods", conn_type="kubernetes")) == KubernetesCluster(
        name="pods",
        namespace="training",
        kubeconfig="/keys/kube",
        context="gpu",
        kinds=("Job", "JobSet"),
        kueue=True,
        queue="team",
        poll_seconds=5.0,
    )
    inside = connection({"in_cluster": True}, conn_id="pods", conn_type="kubernetes")
    assert read_connection(inside) == KubernetesCluster(name="pods")


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"kube_config": "users: hunter2"}, "has a kubeconfig in it"),
        ({"disable_verify_ssl": True}, "does not verify the API server"),
        ({"in_cluster": True, "kube_config_path": "/keys/kube"}, "leave one of them out"),
        ({"kube_config_path": "users: hunter2\n"}, "kubeconfig"),
        ({"token": "hunter2"}, "no field 'token'"),
        ({"kinds": ["Pod"]}, "'Pod' is not one of Job"),
    ],
)
def test_one_line_for_what_is_wrong_with_one_of_kubernetes(extra: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said) as raised:
        read_connection(connection(extra, conn_type="kubernetes"))
    assert "\n" not in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_a_cluster_is_a_connection_or_a_name_of_the_file(alps: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    here = LocalCluster(name="here", spool=f"{alps.folder}/here")
    assert cluster("alps", "alps") == asyncio.run(acluster("alps", "alps")) == ALPS
    assert cluster("here", None) == asyncio.run(acluster("here", "alps")) == here
    monkeypatch.delenv("AIRFLOW_CONN_ALPS")
    assert cluster("alps", "alps") == ALPS, "it is looked up once"
    forget("alps")
    for name, conn_id, said in [("alps", "alps", "AIRFLOW_CONN_ALPS="), ("moon", None, "c.yaml has local, here")]:
        with pytest.raises(BadInput, match=said):
            cluster(name, conn_id)
        with pytest.raises(BadInput, match=said):
            asyncio.run(acluster(name, conn_id))


@pytest.mark.parametrize("options", [{"scheduler_conn_id": "alps"}, {"scheduler": "here"}], ids=["connection", "file"])
def test_a_job_runs_on_the_cluster_that_its_task_names(alps: Deployment, options: dict[str, Any]) -> None:
    raised = deferred(alps.operator(**options), context())
    trigger = made_again(raised.trigger)
    assert trigger.scheduler_conn_id == options.get("scheduler_conn_id")
    asyncio.run(fired(trigger))
    (record,) = alps.records()
    assert (record.scheduler,) == tuple(options.values())
    assert record.settled
    assert [opened.name for opened in alps.opened] == [record.scheduler]
    assert alps.read_lines() == ["1 1 start"]
    assert sites._shared == {}


def test_where_a_key_lies_is_in_no_record_trigger_or_log(
    alps: Deployment, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(DispatchTrigger, "_tell", lambda self, text: told.append(text))
    with caplog.at_level(logging.DEBUG):
        raised = deferred(alps.operator(scheduler_conn_id="alps"), context())
        asyncio.run(fired(made_again(raised.trigger)))
    assert "/keys/alps" not in repr(alps.records()) + repr(raised.trigger.serialize()) + caplog.text + repr(told)
    assert told


def test_what_the_cluster_cannot_launch_is_refused_by_the_worker(
    alps: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    stood_in(monkeypatch, "script", problems=lambda spec: [(("spec", "queue"), "no such name")])
    with pytest.raises(AirflowFailException, match=r"task train: spec\.queue: no such name"):
        alps.operator(scheduler_conn_id="alps").execute(context())
    with pytest.raises(BadInput, match="no cluster is named 'moon'"):
        alps.operator(scheduler="moon").execute(context())
    assert alps.records() == []


async def test_two_stores_on_one_cluster_share_it(alps: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    described = {"conn_type": "dispatch", "extra": {"url": alps.url, "spool": "/elsewhere"}}
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps(described))
    hook.forget("other")
    async with site("dispatch_default") as one, site("other") as two:
        assert await one.adapter("alps", "alps") is await two.adapter("alps", "alps")
        assert await one.adapter("here", "alps") is await one.adapter("here")
        assert [opened.name for opened in alps.opened] == ["alps", "here"]
    assert sites._shared == {}
    hook.forget("other")


async def test_a_cluster_that_is_not_defined_ends_no_trigger(alps: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked up again, and the job goes on once somebody has defined it."""
    monkeypatch.setattr("airflow_provider.trigger.AGAIN_SECONDS", (0.1,))
    described = clusters.read_connection
    down, asked = True, 0

    def read(connection: Connection) -> SlurmCluster:
        nonlocal asked
        asked += 1
        if down:
            raise BadInput("its key file is away")
        return described(connection)

    raised = await asyncio.to_thread(deferred, alps.operator(scheduler_conn_id="alps"), context())
    forget("alps")
    monkeypatch.setattr(clusters, "read_connection", read)
    work = asyncio.create_task(fired(made_again(raised.trigger)))
    async with asyncio.timeout(15):
        while asked < 3:
            await asyncio.sleep(0.05)
    down = False
    await asyncio.wait_for(work, 30)
    assert (await asyncio.to_thread(alps.records))[0].settled


def test_a_connection_can_be_tested(alps: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    findings = [Finding(name="reach", ok=True, text="it answers"), Finding(name="time", ok=None, text="2 s apart")]

    async def examine(found: SlurmCluster) -> AsyncIterator[Finding]:
        assert found == ALPS
        for finding in findings:
            yield finding

    stood_in(monkeypatch, "doctor", examine=examine)
    assert SlurmSshHook("alps").get_conn() == ALPS
    fine, _ = SlurmSshHook("alps").test_connection()
    assert fine
    findings.append(Finding(name="hold", ok=False, text="a held job started"))
    assert SlurmSshHook("alps").test_connection() == (False, "hold: a held job started")
    monkeypatch.setenv("AIRFLOW_CONN_ALPS", json.dumps({"conn_type": "ssh"}))
    fine, said = SlurmSshHook("alps").test_connection()
    assert not fine
    assert "make it one of type slurm_ssh or kubernetes" in said
