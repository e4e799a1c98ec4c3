"""What shows that a run gets on: in listings, and for a rule that asks for it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime

import pytest

from dispatch_core.adapters.conformance.rig import Case, expect_reply
from dispatch_core.adapters.contract import Target
from dispatch_core.adapters.slurm import progress
from dispatch_core.client import Client
from dispatch_core.plan import Action, Plan, Rule, Spec, When
from dispatch_core.record import Answer, State
from dispatch_core.stores.memory import MemoryStore
from dispatch_core.supervisor import Supervisor
from tests.slurm.cluster import Cluster
from tests.slurm.rig import SlurmRig, slurm_rig
from tests.slurm.shown import spec_of, until, watched


@pytest.fixture(scope="module", autouse=True)
def _tidy(whole_cluster: Cluster) -> Iterator[None]:
    yield
    whole_cluster.tidy()


@pytest.fixture
async def rig(whole_cluster: Cluster) -> AsyncIterator[SlurmRig]:
    async with slurm_rig(whole_cluster) as rig:
        yield rig


async def running(rig: SlurmRig, spec: Spec) -> tuple[Case, Target]:
    case = Case(rig)
    launch = watched(case, spec)
    reply = await rig.adapter.start(launch, {}, await case.in_time())
    expect_reply(reply, Answer.DONE)
    target = Target(id=reply.text, name=launch.name, run=1)
    assert (await case.seen(target.id)).progress is None, "what does not run makes no progress"
    await case.open(target)
    await case.until(target, State.RUNNING)
    return case, target


async def beginning(rig: SlurmRig, case: Case, target: Target) -> float:
    """The progress that is told first. Slurm shows a run as running before its script has noted where it writes."""

    async def told() -> bool:
        return (await case.seen(target.id)).progress is not None

    await until(rig, told, "the run's first progress")
    return await progress_of(case, target)


async def progress_of(case: Case, target: Target) -> float:
    """As seconds since 1970."""
    at = (await case.seen(target.id)).progress
    assert at is not None
    return at.timestamp()


async def moves(rig: SlurmRig, case: Case, target: Target, since: float) -> float:
    async def later() -> bool:
        return await progress_of(case, target) > since

    await until(rig, later, "progress")
    return await progress_of(case, target)


def go(rig: SlurmRig, number: int) -> None:
    (rig.folder / f"step-{number}").touch()


def steps(rig: SlurmRig, *commands: str) -> str:
    """A script that does one command after the other, each once `go` says so."""
    return "\n".join(
        f"while [ ! -e {rig.folder}/step-{number} ]; do sleep 0.05; done; {command}"
        for number, command in enumerate((*commands, "exit 0"), start=1)
    )


async def test_the_output_shows_progress_where_a_rule_asks(rig: SlurmRig) -> None:
    case, target = await running(rig, spec_of(steps(rig, "echo more")))
    began = await beginning(rig, case, target)
    assert abs(began - time.time()) < 30
    await asyncio.sleep(1.2)
    assert await progress_of(case, target) <= began + 1.1, "it is the time that it began, as Slurm tells it"
    before = time.time()
    go(rig, 1)
    at = await moves(rig, case, target, began + 1.1)
    assert before - 1 < at < time.time() + 1
    go(rig, 2)
    await case.until(target, State.ENDED)
    assert (await case.seen(target.id)).progress is None


async def test_nothing_is_looked_at_where_nobody_asks(rig: SlurmRig) -> None:
    case = Case(rig)
    target = await case.started(rig.payload(case.line, waits=True))
    await case.open(target)
    await case.until(target, State.RUNNING)
    assert (await case.seen(target.id)).progress is None
    await rig.go(case.line)


async def test_a_file_shows_progress(rig: SlurmRig) -> None:
    file = rig.folder / "a check point"
    case, target = await running(
        rig, spec_of(steps(rig, f"echo x > '{file}'", "echo no"), options={"progress_file": str(file)})
    )
    began = await beginning(rig, case, target)
    await asyncio.sleep(max(0.0, began + 2 - time.time()))
    go(rig, 1)
    written = await moves(rig, case, target, began + 1.1)
    os.utime(file, (began - 1000, began - 1000))
    assert abs(await progress_of(case, target) - began) <= 1.1, "a file of before the run shows no progress"
    later = max(time.time(), written) + 3
    os.utime(file, (later, later))
    assert abs(await progress_of(case, target) - later) < 0.1
    go(rig, 2)
    assert abs(await progress_of(case, target) - later) < 0.1
    file.unlink()
    assert abs(await progress_of(case, target) - began) <= 1.1
    go(rig, 3)


async def test_a_file_that_cannot_be_seen_tells_nothing(rig: SlurmRig) -> None:
    case, target = await running(
        rig, spec_of(steps(rig), options={"progress_file": str(rig.folder / "nowhere" / "file")})
    )
    assert (await case.seen(target.id)).progress is None
    go(rig, 1)


async def test_matching_lines_show_progress(rig: SlurmRig) -> None:
    """In both streams, ended by a line's end or by a carriage return, however much else is written."""
    script = steps(
        rig,
        "echo epoch 1",
        "echo nothing; seq 100000",
        "printf 'epo' >&2",
        r"printf 'ch 22\r' >&2",
        "seq 100000; echo epoch 3; seq 3000",
    )
    options = {"progress_pattern": "^epoch [0-9]{1,2}$", "error": str(rig.folder / "err of %j")}
    case, target = await running(rig, spec_of(script, options=options))
    began = await beginning(rig, case, target)
    await asyncio.sleep(max(0.0, began + 2 - time.time()))
    at = await matched(rig, case, target, 1, began + 1.5)
    assert await still(rig, case, target, 2, at)
    assert await still(rig, case, target, 3, at)
    at = await matched(rig, case, target, 4, at)
    at = await matched(rig, case, target, 5, at)
    kept = list((rig.folder / "home" / "progress").glob(f"{target.name}*"))
    assert len(kept) == 2, kept
    go(rig, 6)


async def matched(rig: SlurmRig, case: Case, target: Target, step: int, since: float) -> float:
    before = time.time()
    go(rig, step)
    at = await moves(rig, case, target, since)
    assert before - 1 < at < time.time() + 1
    return at


async def still(rig: SlurmRig, case: Case, target: Target, step: int, at: float) -> bool:
    go(rig, step)
    await asyncio.sleep(0.5)
    return await progress_of(case, target) == at


async def test_a_pattern_that_is_none_is_refused(rig: SlurmRig) -> None:
    case = Case(rig)
    launch = case.launch(Spec(command=("true",), options={"progress_pattern": "a(b"}))
    reply = await rig.adapter.start(launch, {}, await case.in_time())
    assert (reply.answer, (await case.find()).objects) == (Answer.REFUSED, ())
    assert reply.text.startswith("progress_pattern: ")
    assert "Unmatched (" in reply.text


async def test_both_ways_are_one_too_many(rig: SlurmRig) -> None:
    both = {"progress_pattern": "a", "progress_file": "/a"}
    ((path, text),) = rig.adapter.problems(Spec(command=("true",), options=both))
    assert path == ("spec", "options", "progress_pattern")
    assert "not both" in text


async def test_the_cost_does_not_grow_with_the_runs(rig: SlurmRig) -> None:
    """More patterns than one listing reads: those that it leaves out tell nothing, and have their turn."""
    many = progress.READ_AT_ONCE + 5
    case, _ = await running(rig, spec_of(steps(rig, "echo epoch"), options={"progress_pattern": "epoch"}))
    before = rig.adapter.commands
    await case.find()
    assert rig.adapter.commands == before + 1
    go(rig, 2)
    turns = [range(turn * progress.READ_AT_ONCE, (turn + 1) * progress.READ_AT_ONCE) for turn in range(many)]
    assert {number % many for turn in turns for number in turn} == set(range(many))


async def test_a_run_that_stops_writing_is_launched_again_by_the_rule(rig: SlurmRig) -> None:
    quiet = Rule(name="silent", when=When(no_progress_for_seconds=4.0), do=Action.RESUBMIT, budget=1)
    script = "echo begun; [ $DISPATCH_SUBMISSION = 1 ] || exit 0; sleep 600"
    store = MemoryStore()
    record = await Client(store).submit("k", spec_of(script), Plan(rules=(quiet,)), scheduler="test")
    supervising = asyncio.create_task(Supervisor(store, rig.adapter).run("k", record.uid))

    async def has_come_out() -> bool:
        return (await store.read("k")).outcome is not None

    await until(rig, has_come_out, "its outcome")
    supervising.cancel()
    await asyncio.wait([supervising])
    record = await store.read("k")
    assert record.outcome is not None
    assert record.outcome.result == "succeeded"
    assert len(record.submissions) == 2
    lines = [line for change in await store.history("k") for line in change.lines]
    assert any(line.endswith("(before its end), by silent") for line in lines), lines


def test_what_cannot_be_read_tells_nothing() -> None:
    gap = progress.GAP
    at = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [f"n{gap}1{gap}at{gap}?{gap}", "half a row", f"n{gap}x{gap}at{gap}-{gap}", f"m{gap}2{gap}at{gap}-{gap}"]
    rows.append(f"o{gap}1{gap}output{gap}/a{gap}/b")
    text = f"{at.timestamp():.6f}{gap}/a\n99999999999999999999{gap}/b\n{gap}\n" + "\n".join(rows)
    assert progress.read(text) == {("m", 2): None, ("o", 1): at}
