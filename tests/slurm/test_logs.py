"""Logs on a real cluster: wherever they go, of one run and not the next, followed over its end; and what is removed."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dispatch_core import places
from dispatch_core.adapters import logs
from dispatch_core.adapters.conformance.payloads import log
from dispatch_core.adapters.conformance.rig import Case, expect_reply
from dispatch_core.adapters.contract import Log, Piece, Target
from dispatch_core.adapters.logs import written
from dispatch_core.adapters.slurm.scheduler import SlurmScheduler
from dispatch_core.adapters.slurm.transport import LocalTransport
from dispatch_core.errors import SchedulerUnavailable
from dispatch_core.plan import Secret, Spec
from dispatch_core.record import Answer, State
from tests.cli.conftest import Cli, cli, empty_store
from tests.slurm.cluster import Cluster
from tests.slurm.rig import SlurmRig, slurm_rig
from tests.slurm.shown import ran, spec_of, until

__all__ = ["cli", "empty_store"]


@pytest.fixture(scope="module", autouse=True)
def _tidy(whole_cluster: Cluster) -> Iterator[None]:
    yield
    whole_cluster.tidy()


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LOOK_SECONDS", 1.0)


@pytest.fixture
async def rig(whole_cluster: Cluster) -> AsyncIterator[SlurmRig]:
    async with slurm_rig(whole_cluster) as rig:
        yield rig


# --- where they go


async def test_paths_with_slurms_patterns(rig: SlurmRig) -> None:
    """Errors apart, and both in one file that both options name."""
    folder = str(rig.folder)
    apart = {"output": f"{folder}/%x of %j on %N.out", "error": f"{folder}/%u-%A-%%-%5j.err"}
    same = dict.fromkeys(("output", "error"), f"{folder}/both-%j")
    script = "echo out; echo err >&2"
    (case, target), (other, shared) = await asyncio.gather(
        ran(rig, spec_of(script, options=apart)), ran(rig, spec_of(script, options=same))
    )
    out, err = [await case.adapter.read_log(target, stream, 0, 1000) for stream in (1, 2)]
    assert (out.data, err.data) == (b"out\n", b"err\n")
    number = target.id.partition(":")[0]
    assert Path(out.path).name == f"{target.name} of {number} on {socket.gethostname().partition('.')[0]}.out"
    assert Path(err.path).name == f"root-{number}-%-{number.zfill(5)}.err"
    assert await log(case, target) == b"out\nerr\n"
    assert await log(other, shared) == b"out\nerr\n"
    assert (await case.adapter.read_log(shared, 2, 0, 1000)).log is Log.SHARED


async def test_a_file_that_is_shared_by_runs_and_jobs_before(rig: SlurmRig) -> None:
    """What stood in it before the run is not the run's."""
    file = rig.folder / "shared.log"
    file.write_text("of others\n")
    case, target = await ran(rig, spec_of("echo mine", options={"output": str(file)}))
    assert await log(case, target) == b"mine\n"
    assert file.read_text() == "of others\nmine\n"


async def test_the_notes_of_runs_in_other_files_are_no_bound(rig: SlurmRig) -> None:
    """With %N in its path, a run on another node writes into another file."""
    runs, target = rig.folder / "home" / "runs", Target(id="1:dispatch-0123456789abcdef-1-1", name="n", run=1)
    runs.mkdir(parents=True)
    for node, text in (("a", "before, run 1, run 11"), ("b", "run 2")):
        (rig.folder / node).write_text(text)
    for run, node, begin in ((1, "a", 8), (2, "b", 0), (11, "a", 15)):
        (runs / f"n.{run}.out").write_text(f"{rig.folder}/{node}\n{begin}\n/dev/null\n0\n")
    told = {run: await log(Case(rig), msgspec.structs.replace(target, run=run)) for run in (1, 2, 11)}
    assert told == {1: b"run 1, ", 2: b"run 2", 11: b"run 11"}


@pytest.mark.parametrize("lines", range(4))
async def test_a_note_that_is_not_whole_is_none(rig: SlurmRig, lines: int) -> None:
    runs, target = rig.folder / "home" / "runs", Target(id="1:dispatch-0123456789abcdef-1-1", name="n", run=1)
    runs.mkdir(parents=True)
    (rig.folder / "out").write_text("text")
    note = (f"{rig.folder}/out\n", "0\n", f"{rig.folder}/out\n", "0\n")
    (runs / "n.1.out").write_text("".join(note[:lines]))
    adapter = Case(rig).adapter
    assert [(await adapter.read_log(target, stream, 0, 10)).log for stream in (1, 2)] == [Log.NOT_BEGUN] * 2


# --- followed


async def test_it_is_followed_as_it_is_written(rig: SlurmRig) -> None:
    case = Case(rig)
    go = rig.folder / "go-on"
    gated = await case.started(spec_of(f"echo begun; while [ ! -e {go} ]; do sleep 0.1; done; echo done; seq 100000"))
    told: list[str] = []
    pieces = written(case.adapter, case.job, gated, told.append, follow=True, seconds=0.1)
    shown = bytearray()

    async def read() -> None:
        async for piece in pieces:
            shown.extend(piece)

    reading = asyncio.create_task(read())

    async def has_told() -> bool:
        return bool(told)

    await until(rig, has_told, "what is said of a run that has not begun")
    assert told == [f"run 1 of {gated.id} has not begun; there is no log yet"]
    await case.open(gated)

    async def has_begun() -> bool:
        return shown == b"begun\n"

    await until(rig, has_begun, "what it wrote")
    go.touch()
    async with asyncio.timeout(rig.patience_seconds):
        await reading
    assert bytes(shown) == b"begun\ndone\n" + b"".join(b"%d\n" % number for number in range(1, 100_001))
    assert await log(case, gated, last_lines=2) == b"99999\n100000\n"
    assert len(told) == 1


async def test_a_silent_host_does_not_end_what_is_followed(rig: SlurmRig, monkeypatch: pytest.MonkeyPatch) -> None:
    case, target = await ran(rig, spec_of("echo begun"))
    asked, read_log = itertools.count(), case.adapter.read_log

    async def now_and_then(*piece: Any) -> Piece:
        if next(asked) in (3, 4):
            raise SchedulerUnavailable("no answer within 60 s")
        return await read_log(*piece)

    monkeypatch.setattr(case.adapter, "read_log", now_and_then)
    told: list[str] = []
    pieces = written(case.adapter, case.job, target, told.append, follow=True, seconds=0.1)
    assert b"".join([piece async for piece in pieces]) == b"begun\n"
    assert told == ["no answer within 60 s; the log is read again until it answers"]


async def test_a_log_that_was_removed(rig: SlurmRig) -> None:
    case, target = await ran(rig, spec_of("echo hello"))
    path = (await case.adapter.read_log(target, 1, 0, 10)).path
    os.unlink(path)
    told: list[str] = []
    async for piece in written(case.adapter, case.job, target, told.append):
        raise AssertionError(piece)
    assert told == [f"run 1 of {target.id} wrote to {path}, which was removed, or cannot be read from here"]


def test_on_the_command_line(whole_cluster: Cluster, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is supervised from elsewhere is followed to its end, and its second launch told."""
    rigged: dict[str, Any] = {}

    async def settings() -> None:
        async with slurm_rig(whole_cluster) as made:
            rigged.update(settings=made.settings, folder=made.folder)

    asyncio.run(settings())
    transport = {**whole_cluster.env, "HOME": str(rigged["folder"])}

    def opened(*_: object) -> SlurmScheduler:
        return SlurmScheduler(rigged["settings"], LocalTransport(transport))

    monkeypatch.setattr(places, "open_cluster", opened)
    cli("submit", cli.job("k", "echo begun; sleep 3; echo done"))
    record = cli.read("k")

    async def launched() -> None:
        from dispatch_core.stores.sql import open_store
        from dispatch_core.supervisor import Supervisor

        store, adapter = open_store(cli.url), opened()
        supervising = asyncio.create_task(Supervisor(store, adapter).run("k", record.uid))
        while not any(object.state is State.RUNNING for object in (await store.read("k")).objects):
            await asyncio.sleep(0.1)
        supervising.cancel()
        await asyncio.wait([supervising])
        await adapter.close()
        await store.close()

    asyncio.run(launched())
    shown = cli("logs", "k", "--follow")
    assert (shown.code, shown.out, shown.err) == (0, "begun\ndone\n", "")
    assert cli("logs", "k", "--tail", "1").out == "done\n"


# --- what is removed


OLD = 40 * 86400.0


def names(folder: Path) -> set[str]:
    return {f"{path.parent.name}/{path.name}" for path in folder.glob("*/*")}


def age(files: set[str], folder: Path, seconds: float) -> None:
    for name in files:
        os.utime(folder / name, (time.time() - seconds,) * 2)


async def with_secret(case: Case, spec: Spec) -> Target:
    spec = msgspec.structs.replace(spec, secret_environment={"TOKEN": Secret(source="variable", name="token")})
    return await case.started(spec, secrets={"TOKEN": "x"})


async def test_old_files_go_and_those_of_the_queue_stay(rig: SlurmRig) -> None:
    home, case = rig.folder / "home", Case(rig)
    gated = await with_secret(case, spec_of("true"))
    await case.adapter.hold(gated, await case.in_time())
    ended = Case(rig)
    target = await with_secret(ended, spec_of("true"))
    await ended.open(target)
    await ended.until(target, State.ENDED)
    gone = "dispatch-00000000deadbeef-1-1"
    lost = {f"secrets/{gone}", f"progress/{gone}", f"progress/{gone}.1", f"runs/{gone}.1.out", f"runs/{gone}.1.end"}
    lost |= {f"logs/{gone}.out"}
    kept = {"logs/of a user.out", "secrets/mine", f"logs/{gone} copy", f"runs/x{gone}"}
    (home / "progress").mkdir(exist_ok=True)
    (home / "starts" / gone).mkdir()
    for name in lost | kept:
        (home / name).write_text("")
    lost |= {f"starts/{gone}"}
    known = names(home) - lost
    assert f"starts/{gated.name}" in known
    await rig.adapter.everything()
    assert names(home) == known | lost, "what is new was removed"
    await again(rig, lost | known, home, 2 * 3600.0)
    left = {name for name in lost if name.startswith(("runs", "logs", "starts"))}
    assert names(home) == known | left, "only secrets and progress of what has left the queue go after an hour"
    await again(rig, left | known, home, OLD)
    assert names(home) == known
    await case.open(gated)
    expect_reply(await case.adapter.release(gated, await case.in_time()), Answer.DONE)
    shown = await case.until(gated, State.ENDED)
    assert shown.end is not None
    assert shown.end.exit_code == 0, "the secret of a job in the queue was removed"


async def again(rig: SlurmRig, files: set[str], home: Path, seconds: float) -> None:
    """Another connection, as it has not removed anything yet."""
    age(files, home, seconds)
    other = SlurmScheduler(rig.settings, LocalTransport(rig.cluster.env | {"HOME": str(rig.folder)}))
    try:
        await other.everything()
        await other.everything()  # the first one did not know yet which cluster this is
    finally:
        await other.close()


async def test_nothing_goes_while_the_queue_is_unknown_or_the_folder_is_of_two_clusters(rig: SlurmRig) -> None:
    home = rig.folder / "home"
    await Case(rig).started(spec_of("true"))
    (home / "secrets" / "dispatch-00000000deadbeef-1-1").write_text("")
    secret = {"secrets/dispatch-00000000deadbeef-1-1"}
    assert (home / "cluster").read_text() == "test\n"
    real = rig.settings
    rig.settings = msgspec.structs.replace(real, bin=str(rig.folder / "bin"))
    (rig.folder / "bin").mkdir()
    squeue = rig.folder / "bin" / "squeue"
    squeue.write_text("#!/bin/sh\necho half a queue\nexit 1\n")
    squeue.chmod(0o755)
    with pytest.raises(Exception, match="half a queue"):
        await again(rig, secret, home, OLD)
    assert secret <= names(home)
    rig.settings = real
    (home / "cluster").write_text("another\n")
    await Case(rig).started(spec_of("true"))
    assert (home / "cluster").read_text() == "several\n"
    await again(rig, secret, home, OLD)
    assert secret <= names(home)
