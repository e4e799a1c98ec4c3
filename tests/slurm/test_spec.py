"""What of a spec reaches Slurm, what Slurm refuses and in which words, and what is refused before it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest

from dispatch_core.adapters.conformance.payloads import log
from dispatch_core.adapters.conformance.rig import Case
from dispatch_core.adapters.contract import Target
from dispatch_core.adapters.slurm import guard, script
from dispatch_core.plan import Cause, Spec
from dispatch_core.record import Answer, Reply, State
from tests.slurm.cluster import Cluster
from tests.slurm.configuration import Options
from tests.slurm.rig import SlurmRig, slurm_rig
from tests.slurm.shown import job_of, ran, spec_of, until

OPTIONS = Options(
    extra=(
        "EnforcePartLimits=ALL",
        "PartitionName=short Nodes=ALL MaxTime=5",
        "PartitionName=tight Nodes=ALL MaxMemPerNode=500",
        "PartitionName=secret Nodes=ALL Hidden=YES",
        "PartitionName=closed Nodes=ALL State=INACTIVE",
        "PartitionName=theirs Nodes=ALL AllowGroups=nogroup",
    )
)
TRUE = ("true",)


@pytest.fixture(scope="module", autouse=True)
def _tidy(whole_cluster: Cluster) -> Iterator[None]:
    whole_cluster.command("scontrol", "update", "NodeName=n2", "AvailableFeatures=fast,big", check=True)
    whole_cluster.command("scontrol", "update", "NodeName=n2", "ActiveFeatures=fast,big", check=True)
    yield
    whole_cluster.tidy()


@pytest.fixture(scope="module", autouse=True)
def signalled(whole_cluster: Cluster, _tidy: None) -> tuple[Case, Target]:
    """Slurm looks at time limits now and then only, so this one runs beside the others."""
    payload = "import signal, sys; signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7)); signal.pause()"
    spec = Spec(
        command=("/usr/bin/python3", "-c", payload),
        time_limit_seconds=60.0,
        signal_before_limit="USR1",
        signal_before_limit_seconds=59.0,
    )

    async def opened() -> tuple[Case, Target]:
        async with slurm_rig(whole_cluster) as rig:
            case = Case(rig)
            target = await case.started(spec)
            await case.open(target)
            return case, target

    return asyncio.run(opened())


@pytest.fixture
async def rig(whole_cluster: Cluster) -> AsyncIterator[SlurmRig]:
    async with slurm_rig(whole_cluster) as rig:
        yield rig


async def reply_to(rig: SlurmRig, spec: Spec) -> tuple[Case, Reply]:
    case = Case(rig)
    return case, await rig.adapter.start(case.launch(spec), {}, await case.in_time())


async def shown(rig: SlurmRig, spec: Spec) -> dict[str, str]:
    """What scontrol shows of the gated job."""
    assert rig.adapter.problems(spec) == []
    _, reply = await reply_to(rig, spec)
    assert reply.answer is Answer.DONE, reply
    told = rig.cluster.command("scontrol", "-o", "show", "job", reply.text.partition(":")[0], check=True).stdout
    return dict(word.split("=", 1) for word in told.split() if "=" in word)


# --- what Slurm refuses


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"queue": "nosuch"}, "invalid partition specified: nosuch"),
        ({"queue": "closed"}, "partition not available"),
        ({"queue": "short", "time_limit_seconds": 3600.0}, "time limit"),
        ({"queue": "tight", "memory_bytes": 10**9}, "Memory required by task is not available"),
        ({"options": {"nodes": 9}}, "Node count specification invalid"),
        ({"options": {"nodes": 1, "cpus_per_task": 64}}, "More processors requested than permitted"),
        ({"options": {"constraint": "nosuch"}}, "Invalid feature specification"),
        ({"options": {"gres": "gpu:1"}}, "Invalid generic resource (gres) specification"),
        ({"options": {"reservation": "nosuch"}}, "Requested reservation is invalid"),
        ({"options": {"sbatch": ("--nodelist=nosuch",)}}, "Invalid node name specified"),
        ({"options": {"sbatch": ("--licenses=foo:1",)}}, "Invalid license specification"),
        ({"exclude": ("n1", "nosuch")}, "Invalid node name specified"),
    ],
    ids=lambda told: str(told)[:60],
)
async def test_a_refusal_is_in_slurms_words(rig: SlurmRig, told: Mapping[str, Any], words: str) -> None:
    case, reply = await reply_to(rig, Spec(command=TRUE, **told))
    assert reply.answer is Answer.REFUSED, reply
    assert words.lower() in reply.text.lower(), reply.text
    assert "sbatch: " not in reply.text
    assert (await case.find()).objects == ()


async def test_what_no_node_can_run_is_told_when_it_is_opened(rig: SlurmRig) -> None:
    """Slurm takes a held job that it would refuse else, and holds it once more when its turn comes."""
    case = Case(rig)
    target = await case.started(Spec(command=TRUE, memory_bytes=10**12))
    await case.open(target)

    async def is_held_again() -> bool:
        return job_of(rig, target).reason == "BadConstraints"

    await until(rig, is_held_again, "BadConstraints")
    reply = await rig.adapter.open(target, await case.in_time())
    assert reply.answer is Answer.REFUSED
    assert reply.text.startswith("no node can run job ")


async def test_another_users_partition(whole_cluster: Cluster) -> None:
    """Root may use any; an ordinary user is told."""
    done = whole_cluster.command("sbatch", "-p", "theirs", "--wrap=true", user="hpc")
    text = guard.line(done.stderr)
    assert guard.is_refusal(str(done.returncode), text)
    assert "not permitted to use this partition" in text


# --- what arrives


async def test_every_field_arrives(rig: SlurmRig) -> None:
    spec = Spec(
        command=TRUE,
        queue="urgent",
        working_directory=str(rig.folder),
        time_limit_seconds=90061.0,
        signal_before_limit="USR2",
        signal_before_limit_seconds=120.0,
        memory_bytes=300 * 2**20 + 1,
        exclude=("n1",),
        options={
            "nodes": 2,
            "tasks": 4,
            "tasks_per_node": 2,
            "cpus_per_task": 1,
            "output": f"{rig.folder}/%j.out",
            "error": f"{rig.folder}/%x.err",
            "sbatch": ("--exclusive", "--mail-type=END", "--mail-user=nobody@example.org"),
        },
    )
    told = await shown(rig, spec)
    number = told["JobId"]
    wanted = {
        "Partition": "urgent",
        "WorkDir": str(rig.folder),
        "TimeLimit": "1-01:02:00",
        "MinMemoryNode": "301M",
        "ExcNodeList": "n1",
        "NumNodes": "2-2",
        "NumTasks": "4",
        "CPUs/Task": "1",
        "NtasksPerN:B:S:C": "2:0:*:*",
        "StdOut": f"{rig.folder}/{number}.out",
        "StdErr": f"{rig.folder}/{told['JobName']}.err",
        "OverSubscribe": "NO",
        "MailUser": "nobody@example.org",
        "MailType": "END",
        "Requeue": "1",
        "Priority": "0",
    }
    assert {name: told.get(name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ({"constraint": "fast&big"}, "Features", "fast&big"),
        ({"memory_per_cpu": "50M", "tasks": 2}, "MinMemoryCPU", "50M"),
        ({"sbatch": "--contiguous"}, "Contiguous", "1"),
        ({"sbatch": ("--nodelist=n3",)}, "ReqNodeList", "n3"),
        ({"qos": "any"}, "Requeue", "1"),
        ({"account": "any"}, "Account", "any"),
    ],
    ids=lambda told: str(told),
)
async def test_an_option_arrives(rig: SlurmRig, options: dict[str, Any], name: str, value: str) -> None:
    assert (await shown(rig, Spec(command=TRUE, options=options)))[name] == value


async def test_a_constraint_chooses_the_node(rig: SlurmRig) -> None:
    case, target = await ran(rig, spec_of("echo $SLURMD_NODENAME", options={"constraint": "fast"}))
    assert await log(case, target) == b"n2\n"
    assert (await case.seen(target.id)).nodes == ("n2",)


async def test_a_hidden_partitions_jobs_are_seen_and_stopped(rig: SlurmRig) -> None:
    case = Case(rig)
    target = await case.started(spec_of("sleep 600", queue="secret"))
    await case.open(target)
    await case.until(target, State.RUNNING)
    assert (await rig.adapter.stop_job((target.name,), await case.in_time())).answer is Answer.DONE
    assert (await case.until(target, State.ENDED)).end is not None


KEYS = (
    "a 'quoted' \"twice\" key, with commas, = and #",
    "é ü 漢字 🚀 50% 25%25",
    "-starts --with=dashes",
    "two\nlines\tand \x1f and \u200b and \\n",
    "$HOME `id` $(id) | ; & > <",
    "x" * 250,
)


@pytest.mark.parametrize("key", KEYS, ids=range(len(KEYS)))
async def test_a_key_comes_back(rig: SlurmRig, key: str) -> None:
    case = Case(rig, key=key)
    target = await case.started(Spec(command=TRUE))
    seen = await case.seen(target.id)
    assert (seen.key, seen.name, seen.state) == (key, target.name, State.GATED)
    assert rig.cluster.command("squeue", "-h", "-n", target.name, "-o", "%k", check=True).stdout.count("\n") == 1


async def test_awkward_paths(rig: SlurmRig) -> None:
    folder = rig.folder / 'it\'s a "folder" with é, $HOME and ;'
    folder.mkdir()
    spec = spec_of("pwd", working_directory=str(folder), options={"output": f"{folder}/-out 'of' %j"})
    case, target = await ran(rig, spec)
    assert (await log(case, target)).decode() == f"{folder}\n"


async def test_a_working_directory_that_is_gone_ends_the_run(rig: SlurmRig) -> None:
    case, target = await ran(rig, spec_of("echo no", working_directory=str(rig.folder / "gone")))
    end = (await case.seen(target.id)).end
    assert end is not None
    assert end.cause is Cause.EXIT
    assert b"no\n" not in await log(case, target)


# --- batch scripts


def written(rig: SlurmRig, text: str) -> Spec:
    file = rig.folder / "the script's name.sh"
    file.write_text(text)
    return Spec(command=(str(file), "one", "two 'three'"), options={"batch_script": True})


async def test_a_batch_script_keeps_its_lines(rig: SlurmRig) -> None:
    text = """#!/bin/bash -e
# a comment

   \t
#SBATCH --ntasks=2 --job-name=mine
#SBATCH -t 7 -J other
#SBATCH --comment="of mine"
    # another
#SBATCH --constraint=fast --no-requeue
set -u
#SBATCH --constraint=nosuch
[[ $# = 2 ]] && printf '%s\\n' "$2" "$SLURM_NTASKS" "$DISPATCH_KEY" "$0"
trap 'echo left' EXIT
"""
    case = Case(rig, key="k")
    target = await case.started(written(rig, text))
    job = rig.cluster.command("scontrol", "-o", "show", "job", target.id.partition(":")[0], check=True).stdout
    for wanted in ("NumTasks=2 ", "TimeLimit=00:07:00 ", "Features=fast ", "Comment=dispatch:k ", "Requeue=1 "):
        assert wanted in job
    assert (await case.seen(target.id)).name == target.name
    await case.open(target)
    await case.until(target, State.ENDED)
    lines = (await log(case, target)).decode().splitlines()
    assert lines[:3] == ["two 'three'", "2", "k"]
    assert lines[-1] == "left"


@pytest.mark.parametrize(
    "line",
    [
        *("--array=0-3", "-a 0-3", "-a0-3", "--arr 0-3", "-Qa 0-3", "-N 1 -a 0-3", '"--array=0-3"', "--ar'ra'y=0-3"),
        *("--begin=now", "-b now", "--nice", "--nice=5", "--ni=5", "--priority=5", "--deadline=now+1day", "--uid=hpc"),
        *("--gid=hpc", "-M other", "--clusters=other", "--wait", "-W", "--test-only", "hetjob", "packjob"),
    ],
)
async def test_a_line_that_breaks_the_gate_is_refused(rig: SlurmRig, line: str) -> None:
    case, reply = await reply_to(rig, written(rig, f"#!/bin/sh\n#SBATCH {line}\ntrue\n"))
    assert reply.answer is Answer.REFUSED, reply
    assert "which would break the gate or the tags; take the line out" in reply.text
    assert (await case.find()).objects == ()


@pytest.mark.parametrize(
    "line", ["-Jname-a", "-p main", "--export=NONE", "--hold", "-H", "--account=a-b", "--dependency=singleton"]
)
async def test_other_lines_are_not(rig: SlurmRig, line: str) -> None:
    case, reply = await reply_to(rig, written(rig, f"#!/bin/sh\n#SBATCH {line}\ntrue\n"))
    assert reply.answer is Answer.DONE, reply
    assert (await case.seen(reply.text)).state is State.GATED


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import this\n", "does not begin with a shell"),
        ("#!/usr/bin/python3\n", "does not begin with a shell"),
        ("#!/bin/tcsh\n", "is not for a POSIX shell"),
        ("#!/usr/bin/env fish\n", "is not for a POSIX shell"),
        ("#!/bin/sh\n#SBATCH -p nosuch\ntrue\n", "invalid partition specified: nosuch"),
        ("#!/bin/sh\n#SBATCH --nosuch\ntrue\n", "unrecognized option"),
        ("#!/bin/sh\r\ntrue\r\n", "DOS line breaks"),
    ],
    ids=repr,
)
async def test_a_script_that_cannot_be_taken_is_refused(rig: SlurmRig, text: str, words: str) -> None:
    _, reply = await reply_to(rig, written(rig, text))
    assert reply.answer is Answer.REFUSED, reply
    assert words in reply.text


async def test_a_script_that_is_not_there_is_refused(rig: SlurmRig) -> None:
    _, reply = await reply_to(rig, Spec(command=(str(rig.folder / "none"),), options={"batch_script": True}))
    assert (reply.answer, reply.text) == (Answer.REFUSED, f"the batch script {rig.folder}/none cannot be read")


# --- what is refused before anything is sent


@pytest.mark.parametrize("name", [*script.SET_HERE])
@pytest.mark.parametrize("form", ["--{}", "--{}=1"])
def test_a_forbidden_option_says_what_to_do(name: str, form: str) -> None:
    ((path, text),) = script.problems(Spec(command=TRUE, options={"sbatch": ("--exclusive", form.format(name))}))
    assert path == ("spec", "options", "sbatch", 1)
    assert text == f"--{name} is not passed on: {script.SET_HERE[name]}"


@pytest.mark.parametrize(
    "word",
    [
        *("-a", "-a0-3", "-H", "-J", "--arr=0-3", "--hol", "--nic=5", "--prio=1", "--job-nam=x", "--comm=x", "--wra=x"),
        *("--array 0-3", "--Array=0-3", "--", "-", "", "true", "script.sh", "--exclusive\n--array=1", "=x", "--excl"),
        *("hetjob", ":", "--begin =now", "--\u00e9", "--exclusive=", "--hold=\x00"),
    ],
)
def test_neither_abbreviations_nor_short_forms_get_through(word: str) -> None:
    ((_, text),) = script.problems(Spec(command=TRUE, options={"sbatch": (word,)}))
    assert "\n" not in text


async def test_many_starts_at_once(rig: SlurmRig) -> None:
    replies = await asyncio.gather(*(reply_to(rig, Spec(command=TRUE)) for _ in range(8)))
    assert {reply.answer for _, reply in replies} == {Answer.DONE}


def test_paths_are_absolute() -> None:
    wrong = Spec(command=("x",), working_directory="a", options={"output": "b", "error": "c", "batch_script": True})
    paths = {path for path, _ in script.problems(wrong)}
    assert paths == {
        ("spec", "working_directory"),
        ("spec", "options", "output"),
        ("spec", "options", "error"),
        ("spec", "command", 0),
    }


async def test_the_signal_before_the_limit_reaches_the_payload(rig: SlurmRig, signalled: tuple[Case, Target]) -> None:
    """Also where the payload is a program and no shell: it is what Slurm started."""
    of_fixture, target = signalled
    case = Case(rig)
    case.job = of_fixture.job
    end = (await case.until(target, State.ENDED)).end
    assert end is not None
    assert (end.cause, end.exit_code) == (Cause.EXIT, 7)
