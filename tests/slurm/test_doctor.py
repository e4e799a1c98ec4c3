"""The doctor on real clusters, and what it says of configurations that are not these."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dispatch_core.adapters.contract import Finding
from dispatch_core.adapters.slurm import doctor
from dispatch_core.adapters.slurm.cluster import SlurmCluster, SshHost
from dispatch_core.adapters.slurm.configured import of_configuration
from dispatch_core.adapters.slurm.reading import Configuration, configuration
from dispatch_core.adapters.slurm.scheduler import SlurmScheduler
from dispatch_core.adapters.slurm.ssh import SshTransport
from dispatch_core.adapters.slurm.transport import Finished, LocalTransport, Lost, Transport
from dispatch_core.errors import SchedulerUnavailable
from tests.slurm.cluster import Cluster
from tests.slurm.configuration import Options
from tests.slurm.rig import folder_of
from tests.slurm.sshd import USER, Sshd

OPTIONS = Options(nodes=1, message_timeout=2)


@pytest.fixture(scope="module", autouse=True)
def _quick(whole_cluster: Cluster) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(doctor, "QUIET_SECONDS", 0.5)
        patched.setattr(doctor, "PATIENCE_SECONDS", 20.0)
        patched.setattr(doctor, "SEEN_SECONDS", 1)
        yield
    whole_cluster.tidy()


@pytest.fixture
def folder(whole_cluster: Cluster) -> Path:
    return folder_of(whole_cluster, "root")


def settings(cluster: Cluster, folder: Path) -> SlurmCluster:
    return SlurmCluster(
        name="test", directory=str(folder / "home"), slurm_conf=str(cluster.conf), poll_seconds=0.2, absence_seconds=5.0
    )


async def found(cluster: SlurmCluster, transport: Transport) -> dict[str, Finding]:
    """The findings by name; a name that comes twice is its last."""
    return {finding.name: finding async for finding in doctor.examine_over(cluster, transport)}


def said(findings: dict[str, Finding]) -> str:
    return "\n".join(f"{one.ok} {one.name}: {one.text}" for one in findings.values())


def bad(findings: dict[str, Finding]) -> list[str]:
    return [name for name, one in findings.items() if one.ok is False]


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def nothing_is_left(cluster: Cluster, folder: Path) -> None:
    assert cluster.leftovers() == []
    assert names(folder) == set()


class Broken:
    """A transport whose scripts are changed, or lost, where a test says so."""

    def __init__(self, cluster: Cluster, folder: Path, broken: str = "", instead: str = "") -> None:
        self._inner = LocalTransport(cluster.env | {"HOME": str(folder)})
        self._broken, self._instead = broken, instead
        self.lost = 0

    async def run(self, script: str, seconds: float) -> Finished:
        if self._broken and self._broken in script:
            if not self._instead:
                self.lost += 1
                raise Lost("the line was cut")
            script = script.replace(self._broken, self._instead)
        return await self._inner.run(script, seconds)

    async def close(self) -> None:
        await self._inner.close()


async def test_all_is_well(whole_cluster: Cluster, folder: Path) -> None:
    findings = await found(settings(whole_cluster, folder), Broken(whole_cluster, folder))
    assert bad(findings) == [], said(findings)
    names = ["reach", "clock", "queue", "version", "MinJobAge", "calls", "JobRequeue", "PriorityType", "PrivateData"]
    names += ["job_submit", "accounting", "directory", "submit", "gate", "hold", "run", "nodes", "requeue"]
    assert list(findings) == names
    assert findings["accounting"].ok is None
    assert "is lost, and its job waits for a person" in findings["accounting"].text
    assert findings["version"].text == "Slurm 22.05.8, cluster test"
    assert "is settled after 51 s at most: MessageTimeout 2 s, munge's ttl 20 s" in findings["calls"].text
    assert findings["run"].text == "/bin/true ran on n1"
    assert all(len(finding.text) < 160 and "\n" not in finding.text for finding in findings.values())
    nothing_is_left(whole_cluster, folder)


async def test_an_ordinary_user_over_ssh(whole_cluster: Cluster, whole_sshd: Sshd) -> None:
    folder = folder_of(whole_cluster, USER)
    findings = await found(settings(whole_cluster, folder), SshTransport(whole_sshd.host()))
    assert bad(findings) == [], said(findings)
    assert findings["reach"].text.startswith(f"{USER}@")
    nothing_is_left(whole_cluster, folder)


async def test_a_folder_that_was_there_stays_as_it_was(whole_cluster: Cluster, folder: Path) -> None:
    (folder / "home" / "logs").mkdir(parents=True)
    (folder / "home" / "logs" / "mine").touch()
    assert bad(await found(settings(whole_cluster, folder), Broken(whole_cluster, folder))) == []
    assert names(folder) == {"home", "home/logs", "home/logs/mine"}


@pytest.mark.parametrize(
    ("broken", "instead", "name", "words"),
    [
        ("sbatch --parsable --hold", "sbatch --parsable", "gate", "dispatch is not safe here"),
        ("sbatch --parsable", "sbatch --parsable --partition=nosuch", "submit", "invalid partition specified: nosuch"),
        ("StartTime=2038-01-01", "Comment=none", "hold", "a held job would start when its gate opens"),
        pytest.param(*("StartTime=now", "Comment=none", "hold", "a held job would stay held"), marks=pytest.mark.long),
        ("scontrol requeuehold", "scontrol requeue", "requeue", "use no rule that requeues here"),
        ('done) >"$dispatch_directory/runs', 'done) >"/dev/null', "nodes", "is not seen from here"),
    ],
    ids=lambda told: told[:40],
)
async def test_what_does_not_work_is_told(
    whole_cluster: Cluster,
    folder: Path,
    broken: str,
    instead: str,
    name: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "PATIENCE_SECONDS", 3.0 if name == "hold" else 20.0)
    findings = await found(settings(whole_cluster, folder), Broken(whole_cluster, folder, broken, instead))
    assert bad(findings) == [name], said(findings)
    assert words in findings[name].text
    nothing_is_left(whole_cluster, folder)


async def test_a_host_that_is_not_there() -> None:
    class Nowhere:
        async def run(self, script: str, seconds: float) -> Finished:
            raise SchedulerUnavailable("login1: connection refused")

        async def close(self) -> None:
            pass

    findings = await found(SlurmCluster(name="x", ssh=SshHost(host="login1")), Nowhere())
    assert [(one.name, one.ok, one.text) for one in findings.values()] == [
        ("reach", False, "it does not answer: login1: connection refused")
    ]


async def test_commands_that_are_not_found(whole_cluster: Cluster, folder: Path) -> None:
    transport = LocalTransport({"PATH": "/nonexistent:/bin", "HOME": str(folder)})
    findings = await found(
        settings(whole_cluster, folder), Prefixed(transport, "command() { case $2 in s*) return 1;; esac; }\n")
    )
    assert bad(findings) == ["commands"]
    assert findings["commands"].text.startswith("these are not found: sbatch, squeue, scontrol")
    assert findings["commands"].text.endswith("write the folder of Slurm's commands as bin")


class Prefixed:
    def __init__(self, inner: Transport, before: str) -> None:
        self._inner, self._before = inner, before

    async def run(self, script: str, seconds: float) -> Finished:
        return await self._inner.run(self._before + script, seconds)

    async def close(self) -> None:
        await self._inner.close()


async def test_a_directory_that_cannot_be_written(whole_cluster: Cluster, folder: Path) -> None:
    (folder / "home").write_text("a file")
    findings = await found(settings(whole_cluster, folder), Broken(whole_cluster, folder))
    assert bad(findings) == ["directory"]
    assert findings["directory"].text.endswith(": nothing can be submitted")
    assert "submit" not in findings


async def test_a_start_without_an_answer(whole_cluster: Cluster, folder: Path) -> None:
    """It may land late: its name is told."""
    transport = Broken(whole_cluster, folder, "sbatch --parsable")
    findings = await found(settings(whole_cluster, folder), transport)
    assert transport.lost == 1
    assert bad(findings) == ["submit", "left"]
    assert "may land late; its gate is shut; look for it: scancel --name=dispatch-" in findings["left"].text
    nothing_is_left(whole_cluster, folder)


async def test_a_connection_that_breaks_later(whole_cluster: Cluster, folder: Path) -> None:
    """The job is cancelled once the way is there again; here it is at once."""
    transport = Broken(whole_cluster, folder, "StartTime=2038")
    findings = await found(settings(whole_cluster, folder), transport)
    assert transport.lost >= 1
    assert findings["hold"].ok is False
    nothing_is_left(whole_cluster, folder)


async def test_who_leaves_early_leaves_nothing(whole_cluster: Cluster, folder: Path) -> None:
    async with contextlib.aclosing(
        doctor.examine_over(settings(whole_cluster, folder), Broken(whole_cluster, folder))
    ) as findings:
        async for finding in findings:
            if finding.name == "hold":
                break
    nothing_is_left(whole_cluster, folder)


async def test_who_is_interrupted_leaves_nothing(whole_cluster: Cluster, folder: Path) -> None:
    submitted = asyncio.Event()

    async def look() -> None:
        async for finding in doctor.examine_over(settings(whole_cluster, folder), Broken(whole_cluster, folder)):
            if finding.name == "gate":
                submitted.set()

    looking = asyncio.create_task(look())
    await submitted.wait()
    looking.cancel()
    await asyncio.wait([looking])
    nothing_is_left(whole_cluster, folder)


# --- configurations


def of(**told: str) -> dict[str, Finding]:
    text = "\n".join(f"{name:<24} = {value}" for name, value in told.items())
    cluster = SlurmCluster(name="x")
    adapter = SlurmScheduler(cluster, LocalTransport({}))
    adapter.configuration = configuration(text)
    return {one.name: one for one in of_configuration(cluster, adapter.configuration, adapter.bounds)}


def test_what_a_configuration_costs() -> None:
    assert of(MinJobAge="2 sec")["MinJobAge"].ok is False
    assert "poll_seconds" in of(MinJobAge="2 sec")["MinJobAge"].text
    assert of(MinJobAge="2 sec", AccountingStorageType="accounting_storage/slurmdbd")["MinJobAge"].ok is None
    assert of(MinJobAge="300 sec")["MinJobAge"].ok
    assert of(MinJobAge="0 sec")["MinJobAge"].text == "ended jobs stay in the queue"
    assert (
        "347 s at most: MessageTimeout 10 s, munge's ttl 300 s, as it is unsaid"
        in of(MessageTimeout="10 sec")["calls"].text
    )
    assert of(MessageTimeout="100 sec", AuthInfo="ttl=600")["calls"].ok is None
    assert of(PrivateData="accounts,jobs")["PrivateData"].ok is None
    assert of(PrivateData="none")["PrivateData"].ok
    assert of(JobSubmitPlugins="lua")["job_submit"].ok is None
    assert of(JobSubmitPlugins="(null)")["job_submit"].ok
    assert of(PriorityType="priority/basic")["PriorityType"].ok is None
    assert of(PriorityType="priority/multifactor")["PriorityType"].ok


def test_nothing_is_taken_for_granted() -> None:
    assert all(finding.ok is not False for finding in of().values())
    assert msgspec.json.decode(msgspec.json.encode(Finding(name="a", ok=None, text="b"))) == {
        "name": "a",
        "ok": None,
        "text": "b",
    }
    assert Configuration().accounting is False
