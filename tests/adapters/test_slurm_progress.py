"""The shell that looks at the progress of many runs, with a queue that a test says; no Slurm is needed."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import datetime
from pathlib import Path

import pytest

from dispatch_core.adapters.slurm import progress
from dispatch_core.adapters.slurm.reading import FIELDS, GAP
from dispatch_core.adapters.slurm.transport import LocalTransport

MANY = 2 * progress.READ_AT_ONCE + 7


def row(name: str, state: str = "RUNNING", restarts: int = 0) -> str:
    told = {"State": state, "RestartCnt": str(restarts), "Name": name, "JobID": "1"}
    return "".join(f"{told.get(field, 'x')}{GAP}" for field in FIELDS)


def name_of(number: int) -> str:
    return f"dispatch-{number:016x}-1-1"


class Host:
    """A folder as the adapter has it, and runs that are noted in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("progress", "runs", "logs"):
            (folder / name).mkdir()

    def run(self, number: int, kind: str, text: str = "", begin: int = 0, run: int = 1) -> Path:
        name = name_of(number)
        log = self.folder / "logs" / f"{name}.out"
        log.write_text(text)
        (self.folder / "progress" / name).write_text(f"{kind}\n")
        (self.folder / "runs" / f"{name}.{run}.out").write_text(f"{log}\n{begin}\n{log}\n{begin}\n")
        return log

    async def look(self, rows: list[str], turn: int = 0) -> dict[tuple[str, int], datetime | None]:
        (self.folder / "queue").write_text("\n".join(rows))
        script = f"directory={self.folder}; shown=$(cat {self.folder}/queue)\n{progress.body(turn)}"
        transport = LocalTransport({"PATH": os.environ["PATH"]})
        done = await transport.run(script, 60.0)
        await transport.close()
        assert (done.code, done.err) == (0, b"")
        return dict(progress.read(done.out.decode()))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


async def test_every_pattern_has_its_turn(host: Host) -> None:
    rows = [row(name_of(number)) for number in range(MANY)]
    for number in range(MANY):
        host.run(number, "progress_pattern ^step", "step\n")
    seen: set[tuple[str, int]] = set()
    for turn in range(3):
        told = await host.look(rows, turn)
        assert len(told) == progress.READ_AT_ONCE
        seen |= told.keys()
    assert len(seen) == MANY


async def test_many_runs_cost_little(host: Host) -> None:
    rows = []
    for number in range(600):
        host.run(number, "output" if number % 2 else f"progress_file {host.folder}/file")
        rows.append(row(name_of(number)))
    (host.folder / "file").touch()
    began = time.monotonic()
    told = await host.look(rows)
    assert time.monotonic() - began < 5
    assert len(told) == 600
    assert None not in told.values()


async def test_only_what_runs_and_is_ours_is_looked_at(host: Host) -> None:
    for number in range(9):
        host.run(number, "output")
    (host.folder / "progress" / "other").write_text("output\n")
    rows = [row(name_of(1)), row(name_of(2), "PENDING"), row(name_of(3), "COMPLETED"), row(name_of(4), "SUSPENDED")]
    rows += [row("../progress/other"), row("other"), row(f"{name_of(5)} "), row(name_of(77)), "", "x"]
    assert set(await host.look(rows)) == {(name_of(1), 1)}
    assert await host.look([]) == {}


async def test_a_pattern_is_looked_for_in_whole_new_lines(host: Host) -> None:
    log = host.run(1, "progress_pattern ^(step|epoch) [0-9]+$", "step 1\n", begin=7)

    async def now() -> datetime | None:
        return (await host.look([row(name_of(1))]))[name_of(1), 1]

    def add(data: bytes, at: float) -> None:
        with log.open("ab") as file:
            file.write(data)
        os.utime(log, (at, at))

    assert await now() is None, "what stood there before the run is not its own"
    add(b"noise\nste", 1000)
    assert await now() is None
    add(b"p 2", 2000)
    assert await now() is None
    add(b"\n", 3000)
    found = await now()
    assert found is not None
    assert found.timestamp() == 3000
    add(b"\0\xff noise\n", 4000)
    assert await now() == found
    add(b"bar\repoch 9\r", 5000)
    again = await now()
    assert again is not None
    assert again.timestamp() == 5000
    add(b"x" * 200_000, 6000)
    assert await now() == again
    add(b"\nstep 7\n" + b"y" * (progress.LARGEST_READ - 20), 7000)
    assert (await now() or again).timestamp() == 7000
    log.write_bytes(b"step 8\n")
    os.utime(log, (8000, 8000))
    assert (await now() or again).timestamp() == 8000, "a log that was begun anew is read anew"


async def test_what_nobody_looked_at_for_long_counts_as_progress(host: Host) -> None:
    log = host.run(1, "progress_pattern step", "step\n")
    kept = host.folder / "progress" / f"{name_of(1)}.1"

    async def after(at: float, looked: float) -> float:
        """Much is written, nothing of it matches, and the latest look was so long ago."""
        with log.open("ab") as file:
            file.write(b"noise\n" * progress.LARGEST_READ)
        os.utime(log, (at, at))
        os.utime(kept, (time.time() - looked,) * 2)
        found = (await host.look([row(name_of(1))]))[name_of(1), 1]
        assert found is not None
        return found.timestamp()

    os.utime(log, (1000, 1000))
    await host.look([row(name_of(1))])
    assert await after(2000, 3) == 1000
    assert await after(3000, progress.LATE_SECONDS + 30) == 3000
    assert await after(4000, 3) == 3000


async def test_two_that_look_at_once_tell_the_same(host: Host) -> None:
    log = host.run(1, "progress_pattern step", "step\n" * 5000)
    os.utime(log, (1000, 1000))
    told = await asyncio.gather(*(host.look([row(name_of(1))]) for _ in range(4)))
    assert {found[name_of(1), 1].timestamp() for found in told if found[name_of(1), 1]} == {1000.0}
    assert sorted(path.name for path in (host.folder / "progress").iterdir()) == [name_of(1), f"{name_of(1)}.1"]


async def test_a_log_that_is_gone_tells_nothing(host: Host) -> None:
    for number, kind in enumerate(("progress_pattern step", "output"), start=1):
        host.run(number, kind, "step\n").unlink()
    assert await host.look([row(name_of(1)), row(name_of(2))]) == {}
    (host.folder / "runs" / f"{name_of(1)}.1.out").write_text("half")
    (host.folder / "progress" / name_of(2)).write_text("")
    assert await host.look([row(name_of(1)), row(name_of(2))]) == {}
