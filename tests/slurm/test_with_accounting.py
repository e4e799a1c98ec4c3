"""Clusters that keep accounts, and give jobs to accounts that they know only: refusals, and what the doctor says."""

from __future__ import annotations

import pytest

from dispatch_core.adapters.conformance.rig import Case
from dispatch_core.adapters.slurm import doctor
from dispatch_core.plan import Spec
from dispatch_core.record import Answer
from tests.slurm.cluster import Cluster
from tests.slurm.configuration import Options
from tests.slurm.rig import folder_of, slurm_rig
from tests.slurm.test_doctor import Broken, bad, found, said, settings

OPTIONS = Options(nodes=1, message_timeout=2, extra=("AccountingStorageEnforce=associations",))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "QUIET_SECONDS", 0.5)
    monkeypatch.setattr(doctor, "PATIENCE_SECONDS", 20.0)


@pytest.fixture(scope="module")
def physics(whole_accounting_cluster: Cluster) -> Cluster:
    """Root may use one account."""
    for words in ("account physics", "user root account=physics"):
        whole_accounting_cluster.command("sacctmgr", "-iQ", "add", *words.split(), check=True)
    whole_accounting_cluster.wait_until(
        lambda: "physics" in whole_accounting_cluster.command("scontrol", "show", "assoc_mgr").stdout, "the account"
    )
    return whole_accounting_cluster


async def test_an_account_that_is_not_known_is_refused_in_slurms_words(physics: Cluster) -> None:
    async with slurm_rig(physics) as rig:
        case = Case(rig)
        launch = case.launch(Spec(command=("true",), options={"account": "chemistry"}))
        reply = await rig.adapter.start(launch, {}, await case.in_time())
        text = "Batch job submission failed: Invalid account or account/partition combination specified"
        assert (reply.answer, reply.text) == (Answer.REFUSED, text)
        assert (await case.find()).objects == ()
        assert await case.started(Spec(command=("true",), options={"account": "physics"}), attempt=2)


async def test_the_doctor(physics: Cluster) -> None:
    """At last slurmdbd is away."""
    cluster = physics
    cluster.cancel_all()
    folder = folder_of(cluster, "root")
    (folder / "home").mkdir()
    findings = await found(settings(cluster, folder), Broken(cluster, folder))
    assert bad(findings) == [], said(findings)
    assert findings["accounting"].ok
    assert cluster.accounting is not None
    cluster.accounting.kill()
    findings = await found(settings(cluster, folder), Broken(cluster, folder, "sbatch --parsable", "false"))
    assert findings["accounting"].ok is False
    assert "sacct does not answer" in findings["accounting"].text
    assert list((folder / "home").iterdir()) == []
    assert cluster.leftovers() == []
