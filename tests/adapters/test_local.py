"""What only the local scheduler has: runners, slots, time limits, leftovers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from dispatch_core.adapters.conformance.rig import Case, later
from dispatch_core.adapters.contract import Target
from dispatch_core.adapters.local import calls
from dispatch_core.adapters.local import spool as places
from dispatch_core.adapters.local.leftovers import Marks
from dispatch_core.adapters.local.look import look
from dispatch_core.adapters.local.runner import OutOfMemory
from dispatch_core.plan import Cause, End, Secret, Spec
from dispatch_core.record import Answer, State
from tests.adapters.local import LocalRig, at_work_in, local_rig, soon


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[LocalRig]:
    async with local_rig(tmp_path) as made:
        yield made


def shell(rig: LocalRig, script: str) -> Spec:
    """A payload that writes its lines to "$1"."""
    return Spec(command=("sh", "-c", script, "sh", str(rig.folder / "lines")))


def python(rig: LocalRig, script: str) -> Spec:
    """A payload in which `say` writes a line, and `child` starts the same script with an argument."""
    begin = """
import os, signal, subprocess, sys, time
def say(text):
    with open(sys.argv[1], "a") as file:
        file.write(f"{text}\\n")
def child(**how):
    return subprocess.Popen([sys.executable, "-I", "-S", "-c", CODE, *sys.argv[1:], "child"], **how)
child_of = sys.argv[2:]
"""
    code = begin + script
    whole = f"CODE = {f'CODE = None{chr(10)}{code}'!r}\n{code}"
    return Spec(command=(sys.executable, "-I", "-S", "-c", whole, str(rig.folder / "lines")))


def run_folder(rig: LocalRig, target: Target) -> Path:
    return rig.spool / "objects" / target.id / "runs" / str(target.run)


def runner_of(rig: LocalRig, target: Target) -> int:
    """The pid of a run's runner, as it wrote it at the launch."""
    told = places.read_json(str(run_folder(rig, target) / places.LAUNCHED))
    assert told is not None
    return int(told["runner"])


def lives(pid: int) -> bool:
    """Whether it is there and has not ended."""
    with contextlib.suppress(OSError):
        return told_of(pid)[0] != "Z"
    return False


def told_of(pid: int) -> list[str]:
    """Its state, parent, group, session."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]


@contextlib.contextmanager
def beside(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program that has nothing to do with any run."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as started:
        try:
            yield started
        finally:
            started.kill()


async def pids(rig: LocalRig, many: int) -> list[int]:
    """The pids that payloads have written, once there are so many."""
    async for _ in rig.patiently():
        lines = await rig.lines()
        if len(lines) >= many:
            return [int(line) for line in lines]
    raise AssertionError(await rig.lines())


async def ended(case: Case, target: Target) -> End:
    end = (await case.until(target, State.ENDED)).end
    assert end is not None
    return end


async def opened(rig: LocalRig, spec: Spec) -> tuple[Case, Target]:
    case = Case(rig)
    target = await case.started(spec)
    await case.open(target)
    return case, target


# Runners


async def test_a_runner_killed_in_mid_run_is_a_node_failure(rig: LocalRig) -> None:
    case, target = await opened(rig, shell(rig, 'echo $$ >> "$1"; exec sleep 1000'))
    (payload,) = await pids(rig, 1)
    os.kill(runner_of(rig, target), signal.SIGKILL)
    end = await ended(case, target)
    assert (end.cause, end.message) == (Cause.NODE_FAILURE, "its runner was ended while it ran")
    assert not lives(payload)


async def test_a_payload_dies_with_its_runner_though_nobody_looks(rig: LocalRig) -> None:
    case, target = await opened(rig, shell(rig, 'echo $$ >> "$1"; exec sleep 1000'))
    (payload,) = await pids(rig, 1)
    os.kill(runner_of(rig, target), signal.SIGKILL)
    async for _ in rig.patiently():
        if not lives(payload):
            break
    assert not lives(payload)
    assert (await ended(case, target)).cause is Cause.NODE_FAILURE


@pytest.mark.case("T7")
async def test_a_runner_killed_while_it_waits_is_replaced(rig: LocalRig) -> None:
    case = Case(rig)
    target = await case.started()
    await case.adapter.hold(target, await case.in_time())
    await case.open(target)
    runner = run_folder(rig, target) / places.RUNNER
    async for _ in rig.patiently():
        if runner.exists() and places.is_held(str(runner)):
            break
    (pid,) = [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if opens(pid, runner)]
    os.kill(pid, signal.SIGKILL)
    await case.stays(target, State.HELD)
    await case.adapter.release(target, await case.in_time())
    assert (await ended(case, target)).cause is Cause.COMPLETED
    await case.ran(1)


def opens(pid: int, path: Path) -> bool:
    with contextlib.suppress(OSError):
        return any(os.readlink(f"/proc/{pid}/fd/{number}") == str(path) for number in os.listdir(f"/proc/{pid}/fd"))
    return False


@pytest.mark.promise("P4")
async def test_a_second_runner_gives_up_whenever_it_comes(rig: LocalRig) -> None:
    """Two who bring up the same missing runner: the second may be a moment or an hour late."""
    case = Case(rig)
    target = await case.started(rig.payload(case.line, waits=True))

    async def again() -> None:
        await asyncio.to_thread(calls.spawn, str(rig.spool / "objects" / target.id), 1)
        async for _ in rig.patiently():
            if len(at_work_in(rig.spool)) <= (3 if (await case.seen(target.id)).state is State.RUNNING else 1):
                return
        raise AssertionError("the second runner stays")

    await case.adapter.hold(target, soon())
    await case.open(target)
    await again()
    await case.adapter.release(target, soon())
    await case.until(target, State.RUNNING)
    await case.ran(1)
    await again()
    await rig.go(case.line)
    await ended(case, target)
    await again()
    await case.stays(target, State.ENDED, runs=1)


@pytest.mark.promise("R1")
@pytest.mark.case("T11")
async def test_a_run_outlives_whoever_opened_it(rig: LocalRig) -> None:
    case = Case(rig)
    target = await case.started(rig.payload(case.line, waits=True))
    script = """
import asyncio, os, signal, sys
from pathlib import Path
from dispatch_core.adapters.contract import Target
from dispatch_core.adapters.local.scheduler import LocalScheduler, now
from datetime import timedelta
async def main():
    scheduler = LocalScheduler(Path(sys.argv[1]))
    await scheduler.open(Target(id=sys.argv[2], name=sys.argv[3], run=1), now() + timedelta(seconds=60))
    os.killpg(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    arguments = [sys.executable, "-c", script, str(rig.spool), target.id, target.name]
    opener = await asyncio.create_subprocess_exec(*arguments, start_new_session=True)
    assert await opener.wait() == -signal.SIGKILL
    await case.until(target, State.RUNNING)
    await case.ran(1)
    await rig.go(case.line)
    assert (await ended(case, target)).cause is Cause.COMPLETED


async def test_a_runner_has_nobody_who_must_wait_for_it(rig: LocalRig) -> None:
    case, target = await opened(rig, shell(rig, 'echo $$ >> "$1"; exec sleep 1000'))
    await pids(rig, 1)
    runner = runner_of(rig, target)
    assert int(told_of(runner)[1]) != os.getpid()
    assert int(told_of(runner)[3]) not in (os.getsid(0), os.getpid())
    assert os.readlink(f"/proc/{runner}/cwd") == "/"
    await case.adapter.stop(target, await case.in_time())
    assert (await ended(case, target)).cause is Cause.STOPPED_OUTSIDE


async def test_a_pid_that_was_given_away_is_not_believed(rig: LocalRig) -> None:
    """The pid in `launched` belongs to somebody else by now: the run has still failed, and nobody else is hurt."""
    case, target = await opened(rig, shell(rig, 'echo $$ >> "$1"; exec sleep 1000'))
    await pids(rig, 1)
    with beside("sleep", "1000") as stranger:
        runner = runner_of(rig, target)
        places.write_json(str(run_folder(rig, target) / places.LAUNCHED), {"runner": stranger.pid})
        os.kill(runner, signal.SIGKILL)
        assert (await ended(case, target)).cause is Cause.NODE_FAILURE
        assert stranger.poll() is None


def test_a_runner_that_ends_while_it_is_looked_at_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes its end and goes between the look at its end and the look at its flock, in whichever order they are."""
    folder = tmp_path / "0123456789abcdef"
    where = folder / places.RUNS / "1"
    where.mkdir(parents=True)
    places.write_json(str(where / places.LAUNCHED), {"boot": places.boot(), "runner": 1})
    held = places.make_held(str(where / places.RUNNER))
    assert held is not None
    real = places.is_held

    def ending(path: str) -> bool:
        if path.endswith(places.RUNNER) and not (where / places.END).exists():
            places.write_json(str(where / places.END), {"cause": "completed", "exit_code": 0})
            places.drop(held)
        return real(path)

    monkeypatch.setattr(places, "is_held", ending)
    seen = look(str(folder))
    assert (seen.state, seen.failed) == (State.ENDED, False)
    assert seen.end == End(cause=Cause.COMPLETED, exit_code=0)


async def test_a_host_that_was_restarted_is_told_of(rig: LocalRig, monkeypatch: pytest.MonkeyPatch) -> None:
    case, target = await opened(rig, shell(rig, 'echo $$ >> "$1"; exec sleep 1000'))
    await pids(rig, 1)
    monkeypatch.setattr(places, "boot", lambda: "another boot")
    os.kill(runner_of(rig, target), signal.SIGKILL)
    end = await ended(case, target)
    assert (end.cause, end.message) == (Cause.NODE_FAILURE, "the host was restarted while it ran")


# What a payload leaves


async def test_children_that_ignore_a_request_to_end_are_ended(rig: LocalRig) -> None:
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay(os.getpid())\n"
    spec = python(rig, stubborn + "child_of or [child(), child(start_new_session=True)]\ntime.sleep(1000)")
    case, target = await opened(rig, spec)
    alive = await pids(rig, 3)
    await case.adapter.stop(target, await case.in_time())
    assert (await ended(case, target)).cause is Cause.STOPPED_OUTSIDE
    assert [pid for pid in alive if lives(pid)] == []


LEFT = {
    "a daemon": "child(start_new_session=True)",
    "a daemon with other output": "child(start_new_session=True, stdout=-3, stderr=-3)",
    "a daemon without its files and environment": "child(start_new_session=True, stdout=-3, stderr=-3, env={})",
    "a daemon that carries everything": "child(start_new_session=True, close_fds=False)",
}


@pytest.mark.promise("G9")
@pytest.mark.case("T32")
@pytest.mark.parametrize("how", LEFT.values(), ids=LEFT)
async def test_a_run_has_not_ended_while_it_left_something_alive(rig: LocalRig, how: str) -> None:
    """Its cause is known as soon as the payload ends; the leftovers are ended like by a scheduler's epilog."""
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay(os.getpid())\n"
    spec = python(
        rig,
        stubborn + f"child_of and time.sleep(1000)\n{how}\nwhile True:\n"
        "    time.sleep(0.01)\n    if len(open(sys.argv[1]).readlines()) == 2: sys.exit(3)",
    )
    case, target = await opened(rig, spec)
    alive = await pids(rig, 2)
    shown = await case.until(target, State.ENDING)
    while shown.state is State.ENDING:
        assert shown.end is not None
        assert (shown.end.cause, shown.end.exit_code) == (Cause.EXIT, 3)
        refused = await case.adapter.requeue(target, soon())
        assert refused.answer is Answer.REFUSED or not any(map(lives, alive))
        shown = await case.seen(target.id)
        assert shown.state is State.ENDING or not any(map(lives, alive))
    assert shown.run == 2 or shown.state is State.ENDED


@pytest.mark.promise("G9")
@pytest.mark.parametrize(
    "how",
    [
        LEFT["a daemon"],
        LEFT["a daemon with other output"],
        "child(start_new_session=True, close_fds=False, stdout=-3, stderr=-3, env={})",
        "child(start_new_session=True, env={})",
    ],
    ids=["all marks", "its environment", "its files", "its output"],
)
async def test_what_a_killed_runner_left_is_ended_before_the_run_has(rig: LocalRig, how: str) -> None:
    """Each mark by itself will do: Python's own subprocesses, for one, do not inherit the run's `alive` file."""
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay(os.getpid())\n"
    case, target = await opened(rig, python(rig, stubborn + f"child_of or {how}\ntime.sleep(1000)"))
    alive = await pids(rig, 2)
    os.kill(runner_of(rig, target), signal.SIGKILL)
    shown = await case.seen(target.id)
    async for _ in rig.patiently():
        if shown.state is State.ENDED:
            break
        shown = await case.seen(target.id)
    assert not any(map(lives, alive))
    assert shown.end is not None
    assert shown.end.cause is Cause.NODE_FAILURE


async def test_who_reads_along_is_not_taken_for_a_leftover(rig: LocalRig) -> None:
    case, target = await opened(rig, shell(rig, 'echo $$ >> "$1"; exec sleep 1000'))
    (payload,) = await pids(rig, 1)
    folder = run_folder(rig, target)
    with beside("tail", "-f", str(folder / places.STDOUT), str(folder / places.ALIVE)) as reader:
        marks = Marks(str(folder), target.id, target.run)
        assert payload in marks.found()
        assert reader.pid not in marks.found()
        marks.signal([reader.pid], signal.SIGKILL)  # as if its pid had been given away since it was found
        os.kill(runner_of(rig, target), signal.SIGKILL)
        await case.until(target, State.ENDED)
        assert reader.poll() is None


# Slots, limits, ends


async def test_no_more_run_at_a_time_than_there_are_slots(tmp_path: Path) -> None:
    async with local_rig(tmp_path, slots=2) as rig:
        case = Case(rig)
        spec = shell(rig, 'echo +1 >> "$1"; while [ ! -e "$1-go" ]; do sleep 0.02; done; echo -1 >> "$1"')
        targets = [await case.started(spec, attempt) for attempt in range(1, 6)]
        for target in targets:
            await case.open(target)
        await pids(rig, 2)
        await asyncio.sleep(rig.quiet_seconds)
        states = sorted(sighting.state for sighting in (await case.find()).objects)
        assert states == [State.PENDING] * 3 + [State.RUNNING] * 2
        (rig.folder / "lines-go").touch()
        for target in targets:
            assert (await ended(case, target)).cause is Cause.COMPLETED
        changes = [int(line) for line in await rig.lines()]
        assert changes.count(1) == changes.count(-1) == 5
        assert max(sum(changes[:end]) for end in range(11)) == 2


async def test_a_run_that_waits_for_a_slot_is_pending_and_can_be_held_and_stopped(tmp_path: Path) -> None:
    async with local_rig(tmp_path, slots=1) as rig:
        case = Case(rig)
        first = await case.running(attempt=1)
        second, third = await case.started(attempt=2), await case.started(attempt=3)
        await case.open(second)
        await case.open(third)
        await case.until(second, State.PENDING)
        assert (await case.adapter.hold(second, await case.in_time())).answer is Answer.DONE
        assert (await case.adapter.stop(third, await case.in_time())).answer is Answer.DONE
        assert (await case.seen(second.id)).state is State.HELD
        assert (await ended(case, third)).message == "stopped before it began"
        fourth = await case.started(attempt=4)
        await case.adapter.stop(fourth, soon())
        assert (await case.adapter.open(fourth, soon())).answer is Answer.REFUSED
        await rig.go(case.line)
        assert (await ended(case, first)).cause is Cause.COMPLETED
        await case.stays(second, State.HELD, runs=1)
        await case.adapter.release(second, await case.in_time())
        assert (await ended(case, second)).cause is Cause.COMPLETED
        await case.ran(2)


@pytest.mark.promise("G2")
@pytest.mark.parametrize(("mark", "state"), [(places.HOLD, State.HELD), (places.STOP, State.ENDED)])
async def test_a_call_that_lands_right_before_the_launch_is_heeded(tmp_path: Path, mark: str, state: State) -> None:
    """The runner has its slot, saw neither hold nor stop, and waits for the claim that the call has."""
    async with local_rig(tmp_path, slots=1) as rig:
        case, other = Case(rig), Case(rig)
        first = await other.running()
        target = await case.started()
        await case.open(target)
        await case.until(target, State.PENDING)
        with places.claimed(str(rig.spool / "objects" / target.id), seconds=10.0):
            await rig.go(other.line)
            await ended(other, first)
            slot = str(rig.spool / places.SLOTS / "0")
            async for _ in rig.patiently():
                if not at_work_in(run_folder(rig, first)) and places.is_held(slot):
                    break
            await asyncio.sleep(0.2)
            places.write(str(run_folder(rig, target) / mark), b"")
        await case.until(target, state)
        await case.stays(target, state)


async def test_a_time_limit_ends_a_run_that_ignores_it(rig: LocalRig) -> None:
    spec = shell(rig, 'trap "" TERM; echo $$ >> "$1"; while :; do sleep 0.1; done')
    case, target = await opened(rig, msgspec.structs.replace(spec, time_limit_seconds=0.5))
    (payload,) = await pids(rig, 1)
    end = await ended(case, target)
    assert (end.cause, end.signal) == (Cause.TIME_LIMIT, signal.SIGKILL)
    assert end.seconds is not None
    assert end.seconds >= 0.5
    assert not lives(payload)


async def test_a_run_is_signalled_before_its_time_limit(rig: LocalRig) -> None:
    spec = shell(rig, "trap 'echo 1 >> \"$1\"; exit 0' USR1; while :; do sleep 0.05; done")
    limits = {"time_limit_seconds": 60.0, "signal_before_limit": "USR1", "signal_before_limit_seconds": 59.5}
    case, target = await opened(rig, msgspec.structs.replace(spec, **limits))
    assert (await ended(case, target)).cause is Cause.COMPLETED
    assert await rig.lines() == ["1"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (Spec(command=("no-such-program-here",)), "no-such-program-here"),
        (Spec(command=("/etc/passwd",)), "Permission denied"),
        (Spec(command=("true",), working_directory="/no/such/place"), "/no/such/place"),
    ],
)
async def test_what_cannot_be_started_says_why(rig: LocalRig, spec: Spec, message: str) -> None:
    case, target = await opened(rig, spec)
    end = await ended(case, target)
    assert end.cause is Cause.CANNOT_START
    assert message in end.message


async def test_the_message_is_the_last_line_of_the_standard_error_without_secrets(rig: LocalRig) -> None:
    secret = "s3cret"
    script = 'echo out; echo first >&2; printf "%s is the token %01500d\\n\\n" "$TOKEN" 0 >&2; exit 1'
    case = Case(rig)
    target = await case.started(shell(rig, script), secrets={"TOKEN": secret})
    await case.open(target)
    end = await ended(case, target)
    assert end.message.startswith("*** is the token 000")
    assert len(end.message) == 1000


@pytest.mark.case("T53")
async def test_a_payload_takes_over_a_few_variables_only(rig: LocalRig, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("LANG", "DISPATCH_TOKEN", "AIRFLOW__CORE__FERNET_KEY", "HOME", "TZ")
    for name in names[:4]:
        monkeypatch.setenv(name, "from the supervisor")
    monkeypatch.setenv("HOME", str(rig.folder))
    case = Case(rig)
    spec = msgspec.structs.replace(rig.recital("told", (), names), environment={"TZ": "from the spec"})
    target = await case.started(spec)
    monkeypatch.setenv("LANG", "of whoever opens")
    await case.open(target)
    await ended(case, target)
    told = await rig.recited("told")
    assert told is not None
    assert tuple(told[1].values()) == ("from the supervisor", None, None, str(rig.folder), "from the spec")


async def test_secrets_are_removed_once_they_cannot_be_needed_again(rig: LocalRig) -> None:
    case = Case(rig)
    spec = msgspec.structs.replace(rig.payload(case.line), secret_environment={"T": Secret(source="file", name="t")})
    kept, once = [msgspec.structs.replace(case.launch(spec, n), may_requeue=n == 1) for n in (1, 2)]
    for launch, left in ((kept, True), (once, False)):
        reply = await case.adapter.start(launch, {"T": "bait"}, await case.in_time())
        target = Target(id=reply.text, name=launch.name, run=1)
        secrets = rig.spool / "objects" / target.id / places.SECRETS
        assert (secrets.stat().st_mode & 0o777, secrets.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        await case.open(target)
        await ended(case, target)
        assert secrets.exists() is left
        again = await case.adapter.requeue(target, await case.in_time())
        assert again.answer is (Answer.DONE if left else Answer.REFUSED)


@pytest.mark.promise("G2")
async def test_a_run_that_has_begun_cannot_be_held_and_a_requeue_clears_a_hold(rig: LocalRig) -> None:
    case = Case(rig)
    running = await case.running()
    assert (await case.adapter.hold(running, await case.in_time())).answer is Answer.REFUSED
    assert (await case.adapter.shut(running, await case.in_time())).answer is Answer.REFUSED
    await rig.go(case.line)
    await ended(case, running)
    await case.adapter.requeue(running, await case.in_time())
    second = later(running)
    await case.adapter.hold(second, await case.in_time())
    await case.adapter.stop(second, await case.in_time())
    await case.adapter.requeue(second, await case.in_time())
    shown = await case.seen(running.id)
    assert (shown.run, shown.state, shown.hold) == (3, State.GATED, False)
    assert [(run, end.cause) for run, end in shown.earlier_ends] == [
        (1, Cause.COMPLETED),
        (2, Cause.STOPPED_OUTSIDE),
    ]


@pytest.mark.case("T39")
def test_out_of_memory_is_told_only_where_the_kernel_says_so(tmp_path: Path) -> None:
    memory, events = OutOfMemory(), tmp_path / "memory.events"
    events.write_text("oom 0\noom_kill 4\n")
    memory.path = str(events)
    memory.count = 4
    memory.look()
    assert not memory.is_recent()
    events.write_text("oom 1\noom_kill 5\n")
    memory.look()
    assert memory.is_recent()
    events.unlink()
    memory.look()
    assert memory.is_recent()
