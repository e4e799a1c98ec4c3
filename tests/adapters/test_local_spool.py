"""What can be done to a spool: ended and stalled calls, races, mangled objects, a spool that is none or is gone."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import msgspec
import pytest

from dispatch_core.adapters.conformance.rig import Case, later
from dispatch_core.adapters.contract import Job, Launch, Target
from dispatch_core.adapters.local import calls, listing, scheduler
from dispatch_core.adapters.local import spool as places
from dispatch_core.adapters.local.scheduler import LocalScheduler
from dispatch_core.errors import BadInput, SchedulerUnavailable
from dispatch_core.plan import Cause, Spec
from dispatch_core.record import Answer, Reply, State
from tests.adapters.local import LocalRig, local_rig, soon


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[LocalRig]:
    async with local_rig(tmp_path) as made:
        yield made


class Interrupted:
    """A program that makes calls, see `tests.adapters.interrupted`."""

    def __init__(self, rig: LocalRig, kind: str, made: Sequence[Launch | Target], **how: Any) -> None:
        lines = how.pop("lines", [0] * len(made))
        listed = [{**msgspec.to_builtins(call), "line": line} for call, line in zip(made, lines, strict=True)]
        told = {"root": str(rig.spool), "slots": 64, "kind": kind, "seconds": 60.0, "calls": listed}
        self.rig, self.told = rig, {**told, **how}

    async def __aenter__(self) -> Interrupted:
        self.program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.adapters.interrupted"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert self.program.stdin is not None
        self.program.stdin.write(json.dumps(self.told).encode())
        self.program.stdin.close()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.program.returncode is None:
            os.killpg(self.program.pid, signal.SIGKILL)
            await self.program.wait()

    async def replies(self) -> list[Answer]:
        """The replies of those that lived to have one."""
        output, _ = await self.program.communicate()
        return [Answer(line) for line in output.decode().split()]

    async def stalled(self) -> None:
        """Wait until the one call has stopped."""
        assert self.program.stdout is not None
        async with asyncio.timeout(self.rig.patience_seconds):
            self.pid = int(await self.program.stdout.readline())

    async def resume(self) -> Answer:
        os.kill(self.pid, signal.SIGCONT)
        (reply,) = await self.replies()
        return reply


Made = TypeVar("Made", Launch, Target)


# Calls that end between two lines


async def made(case: Case, number: int) -> Target:
    """A new gated object, without a listing for its deadline."""
    launch = case.launch(case.rig.payload(case.line), number)
    return Target(id=(await case.adapter.start(launch, {}, soon())).text, name=launch.name, run=1)


async def walked(rig: LocalRig, kind: str, make: Callable[[int], Awaitable[Made]]) -> list[Made]:
    """Make a call on one object after the other, each ended one line later than the one before, until calls get
    through to their replies."""
    every: list[Made] = []
    replies: list[Answer] = []
    while not replies:
        lines = range(len(every) + 1, len(every) + 21)
        chunk = [await make(line) for line in lines]
        async with Interrupted(rig, kind, chunk, signal=signal.SIGKILL, lines=lines) as caller:
            replies = await caller.replies()
        every += chunk
    assert set(replies) == {Answer.DONE}
    assert len(every) > 40, "the call has fewer lines than one would think"
    return every


@pytest.mark.promise("P4")
@pytest.mark.case("T7")
async def test_an_opener_killed_between_any_two_lines_leaves_a_run_that_runs_once(rig: LocalRig) -> None:
    case = Case(rig)
    targets = await walked(rig, "open", lambda line: made(case, line))
    gated = {sighting.id for sighting in (await case.find()).objects if sighting.state is State.GATED}
    before, last = [target for target in targets if target.id in gated][:-5], targets[len(gated) - 5 :]
    for target in last:
        assert (await case.adapter.open(target, soon())).answer is Answer.DONE
    for target in last:
        shown = await case.until(target, State.ENDED)
        assert shown.end is not None
        assert shown.end.cause is Cause.COMPLETED
    await case.ran(len(last))
    assert [target for target in targets if target not in last] == before


@pytest.mark.promise("G1")
@pytest.mark.case("T7")
async def test_a_starter_killed_between_any_two_lines_leaves_a_gated_object_or_none(rig: LocalRig) -> None:
    case = Case(rig)

    async def launch(line: int) -> Launch:
        return case.launch(rig.payload(case.line), line)

    launches = await walked(rig, "start", launch)
    shown = (await case.find()).objects
    assert {sighting.state for sighting in shown} == {State.GATED}
    made = {sighting.name for sighting in shown}
    assert len(made) == len(shown)
    assert [launch.name in made for launch in launches] == sorted(launch.name in made for launch in launches)
    assert launches[0].name not in made


@pytest.mark.promise("G7")
@pytest.mark.case("T7")
@pytest.mark.parametrize("kind", ["stop", "hold", "requeue"])
async def test_a_caller_killed_between_any_two_lines_did_all_or_nothing(rig: LocalRig, kind: str) -> None:
    case = Case(rig)

    async def started(line: int) -> Target:
        target = await made(case, line)
        if kind == "requeue":
            await case.adapter.stop(target, soon())
        return target

    targets = await walked(rig, kind, started)
    untouched = (State.ENDED, 1, False) if kind == "requeue" else (State.GATED, 1, False)
    done = {"stop": (State.ENDED, 1, False), "hold": (State.GATED, 1, True), "requeue": (State.GATED, 2, False)}[kind]
    shown = {sighting.id: (sighting.state, sighting.run, sighting.hold) for sighting in (await case.find()).objects}
    states = [shown[target.id] for target in targets]
    first = states.index(done)
    assert states == [untouched] * first + [done] * (len(states) - first)
    assert first > 0


# Races


@pytest.mark.promise("P4")
async def test_twenty_openers_at_once_start_one_run(rig: LocalRig) -> None:
    case = Case(rig)
    target = await case.started()
    async with Interrupted(rig, "open", [target] * 20, at_once=True) as openers:
        assert await openers.replies() == [Answer.DONE] * 20
    shown = await case.until(target, State.ENDED)
    assert shown.run == 1
    await case.stays(target, State.ENDED, runs=1)


@pytest.mark.promise("L1")
async def test_twenty_requeues_at_once_make_one_run(rig: LocalRig) -> None:
    case = Case(rig)
    target = await case.started()
    await case.adapter.stop(target, soon())
    async with Interrupted(rig, "requeue", [target] * 20, at_once=True) as callers:
        assert sorted(await callers.replies()) == [Answer.DONE] + [Answer.REFUSED] * 19
    assert (await case.seen(target.id)).run == 2


async def test_a_claim_is_given_back_though_a_fork_elsewhere_copied_it(tmp_path: Path) -> None:
    """As a program with several threads that forks workers may: a copy of the open file has the flock as well."""
    held = places.make_held(str(tmp_path / "claim"))
    assert held is not None
    copy = os.dup(held)
    assert places.is_held(str(tmp_path / "claim"))
    places.drop(held)
    assert not places.is_held(str(tmp_path / "claim"))
    os.close(copy)


# Calls that stall


@pytest.mark.promise("L1")
@pytest.mark.case("T8")
@pytest.mark.parametrize(("kind", "text"), [("open", "tags = read_tags(folder)"), ("requeue", "acting = True")])
async def test_a_call_that_stalls_blinds_its_own_job_only(rig: LocalRig, kind: str, text: str) -> None:
    """It holds the object's claim: what it does when it wakes cannot be missed by a listing begun meanwhile."""
    case, other = Case(rig), Case(rig)
    target, neighbour = await case.started(), await other.started()
    if kind == "requeue":
        await case.adapter.stop(target, soon())
    async with Interrupted(rig, kind, [target], signal=signal.SIGSTOP, text=text) as stalling:
        await stalling.stalled()
        blind = await rig.adapter.find(case.job)
        assert (blind.complete, blind.objects) == (False, ())
        assert (await other.seen(neighbour.id)).state is State.GATED
        assert not (await rig.adapter.everything()).complete
        busy = await asyncio.gather(case.adapter.stop(target, soon()), case.adapter.open(target, soon()))
        assert [reply.answer for reply in busy] == [Answer.UNKNOWN, Answer.UNKNOWN]
        await other.open(neighbour)
        await other.until(neighbour, State.ENDED)
        assert await stalling.resume() is Answer.DONE
    shown = await case.seen(target.id)
    assert (shown.run, shown.state is State.GATED) == ((2, True) if kind == "requeue" else (1, False))


@pytest.mark.promise("L1")
@pytest.mark.case("T8")
@pytest.mark.parametrize("kind", ["open", "stop", "hold", "release", "requeue"])
async def test_a_call_that_stalls_beyond_its_deadline_does_nothing(rig: LocalRig, kind: str) -> None:
    case = Case(rig)
    target = await case.started()
    if kind == "release":
        await case.adapter.hold(target, soon())
    if kind == "requeue":
        await case.adapter.stop(target, soon())
    before = await case.seen(target.id)
    stall = {"signal": signal.SIGSTOP, "text": "with spool.claimed(folder, seconds=CLAIM_SECONDS):"}
    async with Interrupted(rig, kind, [target], seconds=0.5, **stall) as stalling:
        await stalling.stalled()
        deadline = soon(0.5)
        async for _ in rig.patiently():
            if (await case.find()).began > deadline:
                break
        assert await stalling.resume() is Answer.LATE
    assert await case.seen(target.id) == before
    await case.stays(target, before.state)


@pytest.mark.promise("S1")
@pytest.mark.case("T8")
async def test_a_start_that_is_carried_out_again_makes_no_second_object(rig: LocalRig) -> None:
    """Neither while the first one is under way, nor after it."""
    case = Case(rig)
    launch = case.launch(rig.payload(case.line))
    stall = {"signal": signal.SIGSTOP, "text": "os.rename(staged, placed)"}
    async with Interrupted(rig, "start", [launch], **stall) as stalling:
        await stalling.stalled()
        assert (await case.adapter.start(launch, {}, soon())).answer is Answer.UNKNOWN
        assert not (await rig.adapter.find(case.job)).complete, "the first one's folder was taken away"
        assert await stalling.resume() is Answer.DONE
    (shown,) = (await case.find()).objects
    assert await case.adapter.start(launch, {}, soon()) == Reply(answer=Answer.DONE, text=shown.id)
    assert (await case.find()).objects == (shown,)
    assert not list((rig.spool / "staging").iterdir())


@pytest.mark.promise("C4")
@pytest.mark.promise("L1")
async def test_a_start_that_stalls_blinds_its_own_job_only(rig: LocalRig) -> None:
    case, other = Case(rig), Case(rig)
    launch, neighbour = case.launch(rig.payload(case.line)), await other.started()
    stall = {"signal": signal.SIGSTOP, "text": "os.rename(staged, placed)"}
    async with Interrupted(rig, "start", [launch], **stall) as stalling:
        await stalling.stalled()
        blind = await rig.adapter.find(case.job)
        assert (blind.complete, blind.objects) == (False, ())
        assert (await other.seen(neighbour.id)).state is State.GATED
        assert await stalling.resume() is Answer.DONE
    (shown,) = (await case.find()).objects
    assert (shown.name, shown.state) == (launch.name, State.GATED)


# Failing file systems


@pytest.mark.parametrize("kind", ["start", "open", "stop", "hold", "requeue"])
async def test_a_full_disk_before_the_effect_is_a_refusal(
    rig: LocalRig, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(rig)
    target = await case.started()
    if kind == "requeue":
        await case.adapter.stop(target, soon())
    before = await case.find()

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        patched.setattr(os, "mkdir", full)
        if kind == "start":
            reply = await case.adapter.start(case.launch(rig.payload("x"), 2), {}, soon())
        else:
            reply = await getattr(case.adapter, kind)(target, soon())
    assert "No space left on device" in reply.text
    assert reply.answer is (Answer.UNKNOWN if kind == "requeue" else Answer.REFUSED)
    assert (await case.find()).objects == before.objects


@pytest.mark.case("T6")
@pytest.mark.parametrize("kind", ["start", "open", "stop", "hold"])
async def test_an_error_in_the_effect_itself_is_unknown(
    rig: LocalRig, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rename happened, and is told as an error: what is unknown is looked up, and was done."""
    case = Case(rig)
    target = await case.started()
    rename = os.rename

    def failing(before: str, after: str) -> None:
        rename(before, after)
        if str(rig.spool / "objects") in after:
            raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", failing)
        if kind == "start":
            reply = await case.adapter.start(case.launch(rig.payload("x"), 2), {}, soon())
        else:
            reply = await getattr(case.adapter, kind)(target, soon())
    assert reply.answer is Answer.UNKNOWN
    shown = (await case.find()).objects
    assert len(shown) == (2 if kind == "start" else 1)
    if kind == "open":
        await case.until(target, State.ENDED)
        await case.ran(1)


# Mangled objects, and spools that are none


def mangle(folder: Path, how: str) -> None:
    match how:
        case "empty":
            shutil.rmtree(folder)
            folder.mkdir()
        case "a file":
            shutil.rmtree(folder)
            folder.write_text("")
        case "bad tags":
            (folder / places.TAGS).write_text('{"id": 3')
        case "tags of another":
            tags = json.loads((folder / places.TAGS).read_text())
            (folder / places.TAGS).write_text(json.dumps({**tags, "id": "0123456789abcdef"}))
        case "no runs":
            shutil.rmtree(folder / places.RUNS)
        case "no claim":
            (folder / places.CLAIM).unlink()
        case "a run with a strange name":
            (folder / places.RUNS / "1").rename(folder / places.RUNS / "one")


@pytest.mark.parametrize(
    "how",
    ["empty", "a file", "bad tags", "tags of another", "no runs", "no claim", "a run with a strange name"],
)
async def test_a_mangled_object_is_shown_as_nobodys_and_disturbs_no_listing(rig: LocalRig, how: str) -> None:
    case, other = Case(rig), Case(rig)
    target, neighbour = await case.started(), await other.started()
    mangle(rig.spool / "objects" / target.id, how)
    (rig.spool / "objects" / "README").write_text("not an object")
    async with local_rig_again(rig) as again:
        listing = await again.everything()
        assert listing.complete
        shown = {sighting.id: (sighting.name, sighting.state) for sighting in listing.objects}
        assert shown == {target.id: ("", State.UNRECOGNIZED), neighbour.id: (neighbour.name, State.GATED)}
        assert not (await again.find(case.job)).objects
        (known,) = (await again.find(Job(key=case.job.key, uid=case.uid, known=(target.id,)))).objects
        assert known.state is State.UNRECOGNIZED
        assert [sighting.id for sighting in (await again.find(other.job)).objects] == [neighbour.id]
        for call in (again.open, again.stop, again.hold, again.release, again.requeue):
            assert (await call(target, soon())).answer is Answer.REFUSED
        reply = await again.stop_job((target.name, neighbour.name), soon())
        assert reply.answer is (Answer.UNKNOWN if how == "no claim" else Answer.DONE)


async def test_a_run_that_dates_its_output_beyond_all_years_disturbs_no_listing() -> None:
    """A memory file system keeps any time that it is told."""
    with TemporaryDirectory(dir="/dev/shm") as folder:
        async with local_rig(Path(folder)) as rig:
            case = Case(rig)
            target = await case.running()
            assert (await case.seen(target.id)).progress is not None
            for name in (places.STDOUT, places.STDERR):
                os.utime(Path(places.run_folder(str(rig.spool / "objects" / target.id), 1)) / name, (0, 3e11))
            shown = await case.seen(target.id)
            assert (shown.state, shown.progress) == (State.RUNNING, None)
            await rig.go(case.line)
            await case.until(target, State.ENDED)


def local_rig_again(rig: LocalRig) -> Connection:
    return Connection(rig.spool)


class Connection:
    """Another connection to a spool, which closes at the end of a block."""

    def __init__(self, spool: Path, **how: Any) -> None:
        self.scheduler = LocalScheduler(spool, listing_seconds=0.02, **how)

    async def __aenter__(self) -> LocalScheduler:
        return self.scheduler

    async def __aexit__(self, *_: object) -> None:
        await self.scheduler.close()


async def test_an_unreadable_end_is_unrecognized(rig: LocalRig) -> None:
    case = Case(rig)
    target = await case.started()
    await case.open(target)
    await case.until(target, State.ENDED)
    for text in ("{", '{"cause": "no such cause"}', "[]"):
        (rig.spool / "objects" / target.id / "runs" / "1" / places.END).write_text(text)
        shown = await case.seen(target.id)
        assert shown.state is State.ENDED
        assert shown.end is not None
        assert shown.end.cause is Cause.UNRECOGNIZED


async def test_a_spool_that_was_removed_is_unavailable(rig: LocalRig) -> None:
    case = Case(rig)
    running = await case.running(attempt=1)
    waiting = await case.started(attempt=2)
    await case.adapter.hold(waiting, soon())
    await case.open(waiting)
    moved = rig.spool.with_name("moved")
    rig.spool.rename(moved)
    with pytest.raises(SchedulerUnavailable, match="cannot be read"):
        await rig.adapter.find(case.job)
    assert (await case.adapter.start(case.launch(rig.payload("x"), 3), {}, soon())).answer is Answer.REFUSED
    assert (await case.adapter.stop(running, soon())).answer is Answer.REFUSED
    assert (await case.adapter.stop_job((running.name,), soon())).answer is Answer.UNKNOWN
    await case.adapter.watch(case.job, 0.1)
    await rig.go(case.line)
    shutil.rmtree(moved)


async def test_a_spool_must_be_a_directory_of_ones_own_on_this_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    for spool in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/none")):
        with pytest.raises(BadInput, match=f"the spool {spool} "):
            LocalScheduler(spool)
    with pytest.raises(BadInput, match="0 slots"):
        LocalScheduler(tmp_path / "spool", slots=0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: 12345)
        with pytest.raises(BadInput, match="belongs to another user"):
            LocalScheduler(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(scheduler, "_file_system", lambda _: "nfs4")
        with pytest.raises(BadInput, match="is on nfs4"):
            LocalScheduler(tmp_path)
    with monkeypatch.context() as patched:

        def unsupported(*_: object) -> None:
            raise OSError(95, "Operation not supported")

        patched.setattr(fcntl, "flock", unsupported)
        with pytest.raises(BadInput, match="Operation not supported"):
            LocalScheduler(tmp_path)


@pytest.mark.promise("P3")
async def test_only_objects_that_ended_long_ago_are_purged(rig: LocalRig, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(rig)
    running, gated, ended, fresh = [await case.running(attempt=1), *[await case.started(attempt=n) for n in (2, 3, 4)]]
    for target in (ended, fresh):
        await case.adapter.stop(target, soon())
    (rig.spool / "staging" / "cut-off").mkdir()
    old = 10_000_000.0
    for folder, folders, _ in os.walk(rig.spool):
        if fresh.id not in folder:
            os.utime(folder, (old, old))
        assert isinstance(folders, list)
    async with Connection(rig.spool, keep_seconds=3600.0) as again:
        listed = {sighting.id for sighting in (await again.find(case.job)).objects}
        assert listed == {running.id, gated.id, ended.id, fresh.id}, "an object went before it was listed once more"
        left = {sighting.id for sighting in (await again.find(case.job)).objects}
        assert left == {running.id, gated.id, fresh.id}
    assert os.listdir(rig.spool / "staging") == []


async def test_problems_name_what_this_host_cannot_do(rig: LocalRig) -> None:
    assert rig.adapter.problems(Spec(command=("true",), time_limit_seconds=100, signal_before_limit="USR1")) == []
    wrong = Spec(
        command=("true",),
        memory_bytes=1,
        queue="q",
        exclude=("node",),
        working_directory="relative",
        time_limit_seconds=30,
        signal_before_limit="NONE",
        options={"gres": "gpu:1"},
    )
    paths = [path[1:] for path, _ in rig.adapter.problems(wrong)]
    assert paths == [
        ("memory_bytes",),
        ("queue",),
        ("exclude",),
        ("signal_before_limit",),
        ("signal_before_limit_seconds",),
        ("working_directory",),
        ("options", "gres"),
    ]


async def test_a_listing_does_its_chores_a_few_at_a_time(rig: LocalRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as many openers died as one listing brings runners up for: the next ones do the rest."""
    monkeypatch.setattr(listing, "CHORES", 3)
    case = Case(rig)
    targets = [await case.started(attempt=n) for n in range(1, 7)]
    async with Interrupted(rig, "open", targets, signal=signal.SIGKILL, text="self.bring_up(") as openers:
        assert await openers.replies() == []
    for target in targets:
        await case.until(target, State.ENDED)
    await case.ran(6)


async def test_a_stop_of_many_takes_a_bounded_time(rig: LocalRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "STOPPING_SECONDS", -1.0)
    case = Case(rig)
    target = await case.started()
    assert (await case.adapter.stop_job((target.name,), soon())).answer is Answer.UNKNOWN


async def test_a_late_stop_of_a_job_with_no_object_is_late(rig: LocalRig) -> None:
    assert (await rig.adapter.stop_job(("dispatch-0123456789abcdef-1-1",), soon(-1))).answer is Answer.LATE


async def test_a_stop_of_a_job_finds_the_run_it_is_on(rig: LocalRig) -> None:
    case = Case(rig)
    target = await case.started()
    await case.adapter.stop(target, soon())
    await case.adapter.requeue(target, soon())
    await case.adapter.stop_job((target.name,), soon())
    shown = await case.seen(target.id)
    assert (shown.run, shown.state) == (2, State.ENDED)
    await case.adapter.open(later(target), soon())
    await case.stays(target, State.ENDED)
