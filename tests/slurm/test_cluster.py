"""The Slurm cluster of the tests does what they rely on."""

import asyncio
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.slurm.cluster import MEMORY, PATH, Cluster, running, why_not
from tests.slurm.configuration import Options

SOON = 20.0
LEAVES = "setsid sh -c 'trap \"\" TERM HUP; echo $$ >apart; sleep 600' & sleep 600"
"""A job with a program that has left its step, and writes its pid down."""


def submit(cluster: Cluster, script: str, *options: str, user: str = "hpc") -> str:
    done = cluster.command("sbatch", "--parsable", *options, "--wrap", script, user=user, check=True)
    return done.stdout.strip()


def reaches(cluster: Cluster, id: str, state: str) -> None:
    cluster.wait_until(lambda: cluster.job(id).state == state, f"job {id} to be {state}", SOON)


def apart(cluster: Cluster) -> int:
    """The pid that a program of LEAVES has written."""
    file = cluster.work / "apart"
    cluster.wait_until(lambda: file.exists() and file.read_text(), "a program to leave its step", SOON)
    pid = int(file.read_text())
    file.unlink()
    return pid


def test_a_job_runs_as_the_user_who_submitted_it(cluster: Cluster) -> None:
    mine, foreign = submit(cluster, "id -un; exit 3"), submit(cluster, "id -un", "--comment=a|b", user="other")
    reaches(cluster, mine, "FAILED")
    reaches(cluster, foreign, "COMPLETED")
    assert (cluster.work / f"slurm-{mine}.out").read_text() == "hpc\n"
    assert (cluster.work / f"slurm-{foreign}.out").read_text() == "other\n"
    assert cluster.job(mine).exit == 3 << 8
    assert cluster.job(foreign).comment == "a|b"
    assert cluster.leftovers() == []


def test_a_released_job_starts_within_seconds(cluster: Cluster) -> None:
    held = submit(cluster, "sleep 600", "--hold")
    assert (cluster.job(held).state, cluster.job(held).priority) == ("PENDING", 0)
    began = time.monotonic()
    cluster.command("scontrol", "release", held, user="hpc", check=True)
    reaches(cluster, held, "RUNNING")
    assert time.monotonic() - began < 5


async def test_a_silent_controller_reads_a_call_when_it_goes_on(cluster: Cluster) -> None:
    cluster.controller.stop()
    late = asyncio.create_task(asyncio.to_thread(submit, cluster, "true", "--hold"))
    await asyncio.sleep(2)
    assert not late.done()
    cluster.controller.go_on()
    id = await late
    assert [job.id for job in cluster.leftovers()] == [id]


def test_a_controller_that_dies_keeps_what_it_has_saved(cluster: Cluster) -> None:
    runs = submit(cluster, "sleep 600")
    reaches(cluster, runs, "RUNNING")
    held = submit(cluster, "true", "--hold", "--job-name=quiet")
    cluster.wait_until(lambda: cluster.saved("quiet"), "the queue to be saved", SOON)
    cluster.controller.kill()
    assert not cluster.controller.alive
    cluster.controller.start()
    cluster.wait_until_up()
    assert {job.id: job.state for job in cluster.leftovers()} == {held: "PENDING", runs: "RUNNING"}


@pytest.mark.parametrize("power", ["stays", "fails"])
def test_a_node_dies_and_comes_back(cluster: Cluster, power: str) -> None:
    """A job whose node is said to be down has ended for the queue; its step lives on, unless the power failed."""
    id = submit(cluster, LEAVES, "--no-requeue")
    reaches(cluster, id, "RUNNING")
    node = cluster.nodes[cluster.job(id).nodes]
    (step,) = node.steps()
    assert apart(cluster) in cluster.strays()
    node.kill() if power == "stays" else node.kill_all()
    cluster.set_node(node.name, "down")
    reaches(cluster, id, "NODE_FAIL")
    assert node.steps() == ([step] if power == "stays" else [])
    assert len(cluster.strays()) >= 4 if power == "stays" else cluster.strays() == []
    node.start()
    cluster.wait_until(lambda: cluster.node_states()[node.name] == "idle", f"{node.name} to be idle", SOON)
    cluster.wait_until(lambda: node.steps() == [], "its step to end", SOON)


def test_after_a_test_all_is_as_before(cluster: Cluster) -> None:
    stubborn = submit(cluster, f"trap '' TERM; {LEAVES}; while :; do sleep 1; done")
    reaches(cluster, stubborn, "RUNNING")
    submit(cluster, "true", "--hold", user="other")
    cluster.set_node("n2", "drain")
    cluster.nodes["n3"].kill()
    cluster.set_node("n3", "down")
    cluster.controller.stop()
    cluster.tidy()
    assert cluster.leftovers() == []
    assert cluster.strays() == []
    assert cluster.node_states() == {"n1": "idle", "n2": "idle", "n3": "idle"}


def test_accounting_shows_a_job(accounting_cluster: Cluster) -> None:
    id = submit(accounting_cluster, "exit 2", "--comment=mark")
    asking = ("sacct", "-nPX", "-j", id, "-o", "State,ExitCode,User,Comment")

    def shown() -> str:
        return accounting_cluster.command(*asking, user="hpc", check=True).stdout.strip()

    accounting_cluster.wait_until(lambda: shown() == "FAILED|2:0|hpc|mark", "its accounting", SOON)


def test_accounting_may_die_and_come_back(accounting_cluster: Cluster) -> None:
    daemon = accounting_cluster.accounting
    assert daemon is not None
    daemon.kill()
    assert accounting_cluster.command("sacct", "-nPX").returncode != 0
    id = submit(accounting_cluster, "true")
    reaches(accounting_cluster, id, "COMPLETED")
    daemon.start()
    asking = ("sacct", "-nPX", "-j", id, "-o", "State")
    accounting_cluster.wait_until(
        lambda: accounting_cluster.command(*asking).stdout == "COMPLETED\n", "its accounting", 40.0
    )


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_nothing_is_left_of_a_cluster() -> None:
    if reason := why_not():
        pytest.skip(reason)
    with running(Options(nodes=1)) as cluster:
        submit(cluster, LEAVES)
        left = apart(cluster)
        cluster.controller.stop()
        pids = cluster.pids()
        assert left in pids
        assert len(pids) >= 8
    assert alive(pids) == []
    assert not cluster.folder.exists()


def test_a_call_that_is_read_too_late_does_nothing() -> None:
    if reason := why_not():
        pytest.skip(reason)
    with running(Options(nodes=1, credential_ttl=3)) as cluster:
        cluster.controller.stop()
        with ThreadPoolExecutor() as pool:
            late = pool.submit(cluster.command, "sbatch", "--hold", "--wrap", "true", user="hpc")
            time.sleep(6)
            cluster.controller.go_on()
            assert late.result().returncode != 0
        assert cluster.jobs() == []


def test_a_job_that_takes_too_much_memory() -> None:
    """Only the job whose own script was hit is OUT_OF_MEMORY; where a step of it was, its script says how it ended."""
    options = Options(nodes=1, memory_limits=True)
    if reason := why_not(options):
        pytest.skip(reason)
    takes = "python3 -c 'x = bytearray(300 << 20)'"
    with running(options) as cluster:
        itself = submit(cluster, f"exec {takes}", "--mem=50")
        step = submit(cluster, f"srun {takes}; exit 4", "--mem=50")
        reaches(cluster, itself, "OUT_OF_MEMORY")
        reaches(cluster, step, "FAILED")
        assert cluster.job(itself).reason == "OutOfMemory"
        assert cluster.job(itself).exit == 253
        assert cluster.job(step).exit == 4 << 8
        groups = [MEMORY / f"slurm_{name}" for name in cluster.names]
        assert all(group.exists() for group in groups)
    assert not any(group.exists() for group in groups)


STARTED = """
import os, signal
from tests.slurm.cluster import running
from tests.slurm.configuration import Options
with running(Options(nodes=1)) as cluster:
    print(cluster.folder, *cluster.pids(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_is_left_when_the_tests_are_killed() -> None:
    if reason := why_not():
        pytest.skip(reason)
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", STARTED], cwd=root, capture_output=True, text=True, timeout=60)
    folder, *numbers = done.stdout.split()
    assert len(numbers) >= 5, done.stderr
    until = time.monotonic() + SOON
    while (left := alive([int(number) for number in numbers])) or Path(folder).exists():
        assert time.monotonic() < until, left
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("path", "user", "reason"),
    [
        ("/nowhere", 0, "apt-get install slurmctld slurmd slurm-client munge slurmdbd mariadb-server-core"),
        (PATH, 1000, "root only"),
    ],
)
def test_a_machine_without_slurm_says_so(monkeypatch: pytest.MonkeyPatch, path: str, user: int, reason: str) -> None:
    if user and (missing := why_not()):
        pytest.skip(missing)
    monkeypatch.setattr("tests.slurm.cluster.PATH", path)
    monkeypatch.setattr("os.geteuid", lambda: user)
    assert reason in (why_not(Options(accounting=True)) or "")
