"""Named clusters on the command line: the list, a job that names one, the janitor over several, and the doctor."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType

import pytest

from dispatch_core.adapters.contract import Finding
from dispatch_core.adapters.slurm.cluster import SlurmCluster
from dispatch_core.errors import SchedulerUnavailable
from tests.cli.conftest import Cli


def given(cli: Cli, more: str = "") -> Path:
    """A clusters file in the data directory: `here`, a spool on this machine, and `alps`, a Slurm cluster."""
    file = cli.home / "clusters.yaml"
    here = f"  here: {{type: local, spool: {cli.folder}/here, slots: 2}}\n"
    file.write_text(f"clusters:\n{here}  alps: {{type: slurm, host: login.alps.example, user: ann}}\n{more}")
    return file


def on(cli: Cli, scheduler: str, key: str = "k", script: str = "true", more: str = "") -> str:
    """A job file for a cluster."""
    file = Path(cli.job(key, script, extra=more))
    file.write_text(file.read_text().replace("scheduler: local", f"scheduler: {scheduler}"))
    return str(file)


def stood_in(monkeypatch: pytest.MonkeyPatch, room: str, **names: object) -> None:
    """A room of the Slurm adapter that only answers what is asked of it."""
    module = ModuleType(f"dispatch_core.adapters.slurm.{room}")
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_clusters_are_listed(cli: Cli) -> None:
    assert [each["name"] for each in cli("clusters", "-o", "json").json] == ["local"]
    given(cli, "  near: {type: slurm}\n")
    lines = [line.split() for line in cli("clusters").out.splitlines()]
    assert lines == [
        ["NAME", "TYPE", "WHERE"],
        ["local", "local", f"{cli.home}/spool"],
        ["here", "local", f"{cli.folder}/here"],
        ["alps", "slurm", "ann@login.alps.example"],
        ["near", "slurm", "this", "machine"],
    ]
    told = {each["name"]: each for each in cli("clusters", "-o", "json").json}
    assert told["here"] == {"name": "here", "type": "local", "spool": f"{cli.folder}/here", "slots": 2}
    assert told["alps"]["type"] == "slurm"
    assert told["alps"]["ssh"]["host"] == "login.alps.example"


def test_a_file_is_named_on_the_command_line(cli: Cli) -> None:
    file = given(cli).rename(cli.folder / "mine.yaml")
    ran = cli("submit", on(cli, "here"), "--clusters", str(file))
    assert ran.code == 0
    assert ran.err == f"nobody supervises it yet: dispatch supervise k --clusters {file}\n"
    assert cli("clusters", "--clusters", str(cli.folder / "none.yaml")).code == 2
    assert cli("supervise", "k", "--clusters", str(file)).code == 0


def test_a_job_is_judged_by_the_cluster_that_it_names(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    given(cli)
    judged = []
    stood_in(monkeypatch, "script", problems=lambda spec: judged.append(spec) or [(("spec", "queue"), "no such name")])
    assert cli("check", on(cli, "here")).out == f"{cli.folder}/job.yaml: job 'k' on here is fine; 0 rules\n"
    ran = cli("check", on(cli, "here", more="  queue: gpu\n"))
    assert (
        ran.err == f"dispatch: {cli.folder}/job.yaml:5: spec.queue: the local scheduler has no queues; leave it out\n"
    )
    ran = cli("check", on(cli, "alps", more="  queue: 'a b'\n"))
    assert ran.err == f"dispatch: {cli.folder}/job.yaml:5: spec.queue: no such name\n"
    assert len(judged) == 1


def test_a_name_that_no_cluster_has_is_told_at_its_line(cli: Cli) -> None:
    file = given(cli)
    for command in ("check", "submit", "run"):
        ran = cli(command, on(cli, "alp"))
        assert ran.code == 2
        assert ran.err == (
            f"dispatch: {cli.folder}/job.yaml:2: scheduler: no cluster is named 'alp'; {file} has local, here, alps:"
            " add it there, or name one that there is\n"
        )


def test_a_mistake_in_the_clusters_file_has_a_line_of_its_own(cli: Cli) -> None:
    file = given(cli, "  far: {type: slrum}\n")
    ran = cli("check", on(cli, "here"))
    assert (ran.code, ran.err) == (
        2,
        f'dispatch: {file}:4: clusters.far.type: "slrum" is not known here; did you mean slurm?\n',
    )
    assert cli("run", on(cli, "local")).code == 0


def test_a_job_runs_on_the_cluster_that_it_names(cli: Cli) -> None:
    given(cli)
    assert cli("run", on(cli, "here", script="echo hello")).code == 0
    assert cli.read("k").scheduler == "here"
    assert (cli.folder / "here" / "objects").is_dir()
    assert not (cli.home / "spool").exists()
    assert cli("logs", "k").out == "hello\n"
    assert cli("explain", "k").code == 0


def test_the_janitor_opens_each_jobs_own_cluster(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is undefined by now and one that cannot be opened are told of once, and end nothing for the others."""
    given(cli, "  gone: {type: slurm}\n")
    opened = []

    def open_slurm(cluster: SlurmCluster) -> None:
        opened.append(cluster.name)
        raise SchedulerUnavailable("login.alps.example does not answer")

    stood_in(monkeypatch, "script", problems=lambda spec: [])
    stood_in(monkeypatch, "scheduler", open_slurm=open_slurm)
    for name in ("local", "here", "alps", "gone"):
        assert cli("submit", on(cli, name, key=name)).code == 0
    file = given(cli)
    ran = cli("supervise", "--once", "-o", "json")
    assert ran.code == 0
    assert ran.json == {"supervised": ["here", "local"], "unsettled": ["alps", "gone"]}
    told = [line for line in ran.err.splitlines() if "cannot be opened" in line]
    assert told == [
        "dispatch: cluster alps cannot be opened, and its jobs are left alone: login.alps.example does not answer",
        "dispatch: cluster gone cannot be opened, and its jobs are left alone: no cluster is named 'gone';"
        f" {file} has local, here, alps: add it there, or name one that there is",
    ]
    assert len(opened) > 1, "it is tried again"
    assert cli.read("here").settled
    assert cli.read("local").settled


def test_where_the_spool_is_all_there_is_it_must_be_one(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("DISPATCH_HOME", str(cli.home))
    (cli.folder / "file").touch()
    bad = ("--spool", str(cli.folder / "file"))
    assert cli("supervise", "--once", *bad).code == 2
    given(cli).write_text(f"clusters:\n  here: {{type: local, spool: {cli.folder}/here}}\n")
    ran = cli("supervise", "--once", *bad)
    assert ran.code == 0
    assert "cluster local cannot be opened" in ran.err


# --- doctor


def test_the_doctor_of_a_local_cluster(cli: Cli) -> None:
    given(cli)
    assert cli("doctor", "here").out == f"ok    spool: {cli.folder}/here can be used\n"
    ran = cli("doctor", "local", "-o", "json")
    assert (ran.code, ran.json["ok"]) == (0, True)
    assert ran.json["findings"] == [{"name": "spool", "ok": True, "text": f"{cli.home}/spool can be used"}]
    (cli.folder / "file").touch()
    ran = cli("doctor", "local", "--spool", str(cli.folder / "file"))
    assert ran.code == 1
    assert ran.out.startswith(f"bad   spool: the spool {cli.folder}/file ")


def test_the_doctor_of_a_slurm_cluster_tells_each_finding(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    given(cli)
    findings = [
        Finding(name="reach", ok=True, text="it answers"),
        Finding(name="accounting", ok=None, text="slurmdbd is\x1b[31m away"),
    ]

    async def examine(cluster: SlurmCluster) -> AsyncIterator[Finding]:
        assert cluster.name == "alps"
        for finding in findings:
            yield finding

    stood_in(monkeypatch, "doctor", examine=examine)
    ran = cli("doctor", "alps")
    assert (ran.code, ran.out) == (0, "ok    reach: it answers\nnote  accounting: slurmdbd is\\x1b[31m away\n")
    findings.append(Finding(name="hold", ok=False, text="a held job started"))
    ran = cli("doctor", "alps", "-o", "json")
    assert (ran.code, ran.json["cluster"], ran.json["ok"]) == (1, "alps", False)
    assert [finding["ok"] for finding in ran.json["findings"]] == [True, None, False]
    assert cli("doctor", "alps").out.endswith("bad   hold: a held job started\n")


def test_the_doctor_of_no_cluster(cli: Cli) -> None:
    ran = cli("doctor", "alps")
    assert (ran.code, ran.out) == (2, "")
    assert "no cluster is named 'alps'; there is local, and no file" in ran.err
