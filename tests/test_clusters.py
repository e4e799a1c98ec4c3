"""The clusters file: what it says, one line for what is wrong with it, and what opening and judging ask of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dispatch_core import places
from dispatch_core.adapters.slurm.cluster import SlurmCluster, SshHost
from dispatch_core.clusters import Clusters, LocalCluster, UnknownCluster, load_clusters, read_clusters, read_slurm
from dispatch_core.errors import BadInput
from dispatch_core.plan import Spec

WHOLE = """\
clusters:
  alps:
    type: slurm
    host: login.alps.example
    port: 2222
    user: ann
    key_file: ~/.ssh/id_ed25519
    known_hosts: /etc/ssh/known_hosts
    directory: ~/runs
    bin: /opt/slurm/bin
    slurm_conf: /etc/slurm/slurm.conf
    poll: 3s
    absence: 2m
    submits_per_second: 0.5
    live_jobs: 1000
    keep: 90d
    keep_secrets: 2h
  near: {type: slurm}
  here:
    type: local
    spool: /var/lib/dispatch/spool
    slots: 4
"""


def test_a_whole_file_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert read_clusters(WHOLE, "c.yaml") == {
        "alps": SlurmCluster(
            name="alps",
            ssh=SshHost(
                host="login.alps.example",
                port=2222,
                user="ann",
                key_file="/home/ann/.ssh/id_ed25519",
                known_hosts="/etc/ssh/known_hosts",
            ),
            directory="~/runs",
            bin="/opt/slurm/bin",
            slurm_conf="/etc/slurm/slurm.conf",
            poll_seconds=3.0,
            absence_seconds=120.0,
            submits_per_second=0.5,
            live_jobs=1000,
            keep_seconds=90 * 86400.0,
            keep_secrets_seconds=7200.0,
        ),
        "near": SlurmCluster(name="near"),
        "here": LocalCluster(name="here", spool="/var/lib/dispatch/spool", slots=4),
    }


def test_the_example_is_read() -> None:
    example = Path(__file__).parents[1] / "examples" / "clusters.yaml"
    alps = load_clusters(example, needed=True).find("alps")
    assert isinstance(alps, SlurmCluster)
    assert alps.ssh is not None
    assert (alps.ssh.host, alps.live_jobs) == ("login.alps.example", 1000)


def test_an_engine_gives_the_same_fields() -> None:
    fields: dict[str, Any] = {"host": "h", "poll": 5, "live_jobs": 3}
    cluster = read_slurm("alps", fields, "the block 'alps'")
    assert cluster == SlurmCluster(name="alps", ssh=SshHost(host="h"), poll_seconds=5.0, live_jobs=3)
    with pytest.raises(BadInput, match=r"^the block 'alps'.port: it is the number 0; it goes from 1 to 65535$"):
        read_slurm("alps", {"host": "h", "port": 0}, "the block 'alps'")


def slurm(text: str) -> str:
    return f"clusters:\n  a:\n    type: slurm\n    host: h\n    {text}\n"


MISTAKES = {
    "empty": ("", "1: it is empty; a clusters file has clusters: with a mapping of their names"),
    "no clusters": ("jobs: {}\n", "1: jobs: there is no such field; there are clusters"),
    "nothing in it": ("clusters:\n", "1: clusters: it has no value; give it one, or leave it out"),
    "a list": (
        "clusters: [a]\n",
        "1: clusters: it is a list; write a mapping of names, each with a type and more",
    ),
    "a name alone": (
        "clusters:\n  a:\n",
        "2: clusters.a: it is nothing; write a mapping, like {type: slurm, host: login.example}",
    ),
    "no type": ("clusters:\n  a: {host: h}\n", "2: clusters.a: type is missing; add it: slurm, kubernetes or local"),
    "another type": (
        "clusters:\n  a: {type: pbs}\n",
        '2: clusters.a.type: "pbs" is not known here; write one of slurm, kubernetes, local',
    ),
    "the name that is built in": (
        "clusters:\n  local: {type: slurm}\n",
        "2: clusters.local: this name is built in, for the user's own spool on this machine; choose another one",
    ),
    "a name that is none": (
        "clusters:\n  -a: {type: slurm}\n",
        "2: clusters.-a: a name is 1 to 63 letters, digits, and after the first also . _ -; change it",
    ),
    "twice": (
        "clusters:\n  a: {type: slurm}\n  a: {type: slurm}\n",
        "3: clusters: a is given twice, first in line 2; keep one of them",
    ),
    "a stranger": (slurm("hosts: h"), "5: clusters.a.hosts: there is no such field; did you mean host?"),
    "a secret": (
        slurm("password: hunter2"),
        "5: clusters.a.password: there is no such field; there are type, host, port, user, key_file, known_hosts,"
        " directory, bin, slurm_conf, poll, absence, submits_per_second, live_jobs, keep, keep_secrets",
    ),
    "a key in place of its path": (
        slurm('key_file: "-----BEGIN OPENSSH PRIVATE KEY-----\\nhunter2"'),
        "5: clusters.a.key_file: it is no path; write where the private key lies, never the key itself",
    ),
    "a host with more": (
        'clusters:\n  a: {type: slurm, host: "ann:hunter2@h"}\n',
        "2: clusters.a.host: it is more than a host; give its user and port as user: and port:",
    ),
    "a host that ssh would take for an option": (
        "clusters:\n  a: {type: slurm, host: -oProxyCommand=x}\n",
        '2: clusters.a.host: "-oProxyCommand=x" holds a space or begins with -; write the bare name',
    ),
    "a user for no host": (
        "clusters:\n  a:\n    type: slurm\n    user: ann\n",
        "4: clusters.a.user: there is no host that it is for; add host, or leave user out",
    ),
    "a port as text": (slurm('port: "22"'), '5: clusters.a.port: a whole number is needed, and this is "22"'),
    "a port too far": (slurm("port: 70000"), "5: clusters.a.port: it is the number 70000; it goes from 1 to 65535"),
    "a relative key": (
        slurm("key_file: id_ed25519"),
        "5: clusters.a.key_file: the path is not absolute, and a supervisor may run anywhere; begin it with / or ~/",
    ),
    "a relative folder": (
        slurm("directory: runs"),
        '5: clusters.a.directory: "runs" is not absolute; write the path on the cluster, beginning with / or ~/',
    ),
    "a relative bin": (
        slurm("bin: ~/slurm"),
        '5: clusters.a.bin: "~/slurm" is not absolute; write the path on the cluster, beginning with /',
    ),
    "a poll that never rests": (slurm("poll: 0s"), '5: clusters.a.poll: it is "0s"; it goes from 100ms to 15s'),
    "an absence too short": (
        slurm("absence: 2s"),
        "5: clusters.a.absence: absence is shorter than poll, the time between two listings; raise it",
    ),
    "no submits": (
        slurm("submits_per_second: 0"),
        "5: clusters.a.submits_per_second: it is the number 0; it goes from 0.01 to 1000",
    ),
    "no live jobs": (slurm("live_jobs: 0"), "5: clusters.a.live_jobs: it is the number 0; it goes from 1 to 1000000"),
    "logs kept too short": (slurm("keep: 30m"), '5: clusters.a.keep: it is "30m"; it goes from 1h to 3650d'),
    "secrets kept too short": (
        slurm("keep_secrets: 1m"),
        '5: clusters.a.keep_secrets: it is "1m"; it goes from 20m to 3650d',
    ),
    "a local one without a spool": (
        "clusters:\n  a: {type: local}\n",
        "2: clusters.a: spool is missing; add it",
    ),
    "a local one with a host": (
        "clusters:\n  a: {type: local, spool: /s, host: h}\n",
        "2: clusters.a.host: there is no such field; there are type, spool, slots",
    ),
    "no slots": (
        "clusters:\n  a: {type: local, spool: /s, slots: 0}\n",
        "2: clusters.a.slots: it is the number 0; it goes from 1 to 100000",
    ),
}


@pytest.mark.parametrize(("text", "line"), MISTAKES.values(), ids=MISTAKES)
def test_each_mistake_gets_its_line(text: str, line: str) -> None:
    with pytest.raises(BadInput) as raised:
        read_clusters(text, "c.yaml")
    assert str(raised.value) == f"c.yaml:{line}"
    assert "hunter2" not in str(raised.value)


def test_a_file_that_is_not_there_says_nothing_unless_it_is_needed(tmp_path: Path) -> None:
    file = tmp_path / "clusters.yaml"
    assert load_clusters(file, needed=False).named == {}
    with pytest.raises(BadInput, match=r"clusters.yaml: the clusters file is not there; check the path"):
        load_clusters(file, needed=True)
    file.write_bytes(b"clusters:\n  \xff\n")
    with pytest.raises(BadInput, match=r"clusters.yaml:2: it is not UTF-8 text"):
        load_clusters(file, needed=False)
    with pytest.raises(BadInput, match="it cannot be read: Is a directory"):
        load_clusters(tmp_path, needed=False)


def test_an_unknown_name_is_told_with_the_file_and_the_names_there_are(tmp_path: Path) -> None:
    with pytest.raises(UnknownCluster) as raised:
        Clusters(Path("/c.yaml"), read_clusters(WHOLE, ""), there=True).find("alpz")
    told = "no cluster is named 'alpz'; /c.yaml has local, alps, near, here: add it there, or name one that there is"
    assert str(raised.value) == told
    with pytest.raises(UnknownCluster, match=r"there is local, and no file /c\.yaml: add it there"):
        Clusters(Path("/c.yaml"), {}, there=False).find("alps")


def test_where_the_file_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DISPATCH_HOME", str(tmp_path))
    monkeypatch.delenv("DISPATCH_CLUSTERS", raising=False)
    assert places.clusters().file == tmp_path / "clusters.yaml"
    for name in ("told", "given"):
        (tmp_path / name).write_text(f"clusters:\n  {name}: {{type: slurm}}\n")
    monkeypatch.setenv("DISPATCH_CLUSTERS", str(tmp_path / "told"))
    assert list(places.clusters().named) == ["told"]
    assert list(places.clusters(tmp_path / "given").named) == ["given"]
    monkeypatch.setenv("DISPATCH_CLUSTERS", str(tmp_path / "none"))
    with pytest.raises(BadInput):
        places.find_cluster("told")
    assert places.find_cluster("local") == LocalCluster(name="local", spool=str(tmp_path / "spool"))


async def test_a_local_cluster_has_its_own_spool(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    (tmp_path / "c.yaml").write_text(f"clusters:\n  here: {{type: local, spool: {spool}, slots: 1}}\n")
    await places.open_scheduler("here", tmp_path / "other", tmp_path / "c.yaml").close()
    assert spool.is_dir()
    assert not (tmp_path / "other").exists()
    ((path, _),) = places.problems_on("here", Spec(command=("true",), queue="gpu"), tmp_path / "c.yaml")
    assert path == ("spec", "queue")


def stood_in(monkeypatch: pytest.MonkeyPatch, room: str, **names: object) -> None:
    """A room of the Slurm adapter that only answers what is asked of it."""
    name = f"dispatch_core.adapters.slurm.{room}"
    module = ModuleType(name)
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, name, module)


def test_a_slurm_cluster_is_opened_and_judged_as_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(WHOLE)
    problem = (("spec", "options", "gres"), "no")
    stood_in(monkeypatch, "scheduler", open_slurm=lambda cluster: cluster)
    stood_in(monkeypatch, "script", problems=lambda spec: [problem])
    opened: Any = places.open_scheduler("near", file=tmp_path / "c.yaml")
    assert opened == SlurmCluster(name="near")
    assert places.problems_on("near", Spec(command=("true",)), tmp_path / "c.yaml") == [problem]


def test_paths_begin_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    (cluster,) = read_clusters("clusters:\n  a: {type: local, spool: ~/spool}\n", "").values()
    assert isinstance(cluster, LocalCluster)
    assert cluster.spool == os.path.expanduser("~/spool") == "/home/ann/spool"


def test_the_readmes_clusters_are_some() -> None:
    blocks = (Path(__file__).parents[1] / "README.md").read_text().split("```")
    text = next(block.removeprefix("yaml\n") for block in blocks if block.startswith("yaml\n# clusters.yaml"))
    found = Clusters(Path("/home/ann/.local/share/dispatch/clusters.yaml"), read_clusters(text, "README"), there=True)
    with pytest.raises(UnknownCluster) as raised:
        found.find("alp")
    assert f"```\nnightly.yaml:2: scheduler: {raised.value}\n```" in "```".join(blocks)


def test_the_readme_has_every_field() -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text().partition("\n## Clusters\n")[2].partition("\n## ")[0]
    for kind in ("{type: slurm, nothing: 1}", "{type: local, nothing: 1}"):
        with pytest.raises(BadInput) as raised:
            read_clusters(f"clusters:\n  a: {kind}\n", "c.yaml")
        fields = str(raised.value).partition("there are type, ")[2].split(", ")
        assert fields != [""]
        assert [field for field in fields if f"`{field}`" not in text] == []
