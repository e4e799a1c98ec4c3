"""Three supervising processes whose clocks are wrong: ten minutes ahead, ten minutes behind, and stepping to and fro.

libfaketime gives each its own wall clock (`apt-get install faketime`); what the kernel measures time spans with is left
as it is, as it is where a real clock is wrong. The scheduler's host has the one clock that deadlines are judged on.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stores.databases import OnPostgres
from tests.twin.chaos import Form, Twin
from tests.twin.supervising import UP
from tests.twin.test_twin import live

TEN_MINUTES = 600
SHORT = Form(jobs=8, seconds=8, slowest=1.0, kinds=("leased", "free"), longest_stop=3, calm_seconds=180)
CLOCKS = ("ahead", "behind", "stepping")
"""One a place."""


@pytest.fixture
def faketime() -> Path:
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not found:
        pytest.skip("libfaketime is not installed: apt-get install faketime")
    return found[0]


class WrongClocks(Twin):
    """A twin in which each place has its own wrong clock."""

    def __init__(self, seed: int, url: str, folder: Path, faketime: Path) -> None:
        super().__init__(seed, url, folder, SHORT)
        self.faketime = faketime
        self.offset = folder / "offset"
        self.show(0)

    def show(self, seconds: int) -> None:
        """What the stepping clock is off by from now on."""
        draft = self.offset.with_suffix(".new")
        draft.write_text(f"{seconds:+d}\n")
        draft.rename(self.offset)

    def kind(self, dice: random.Random, place: int) -> str:
        return f"{dice.choice(self.form.kinds)} {CLOCKS[place]}"

    def program(self, kind: str) -> list[str]:
        supervises, _, clock = kind.partition(" ")
        return [*super().program(supervises), str(self.folder / f"host clock of {clock}")]

    def environment(self, kind: str) -> dict[str, str]:
        offsets = {"ahead": {"FAKETIME": f"+{TEN_MINUTES}"}, "behind": {"FAKETIME": f"-{TEN_MINUTES}"}}
        steps = {"FAKETIME_TIMESTAMP_FILE": str(self.offset), "FAKETIME_CACHE_DURATION": "1"}
        wrong = offsets.get(kind.partition(" ")[2], steps)
        return {"LD_PRELOAD": str(self.faketime), "FAKETIME_DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1", **wrong}

    async def step(self) -> None:
        """All the time: the third clock jumps, and steps back."""
        dice = random.Random(f"{self.seed} steps")
        while True:
            self.show(dice.choice((-TEN_MINUTES, 0, TEN_MINUTES)))
            await asyncio.sleep(dice.uniform(0.5, 1.5))

    def off_by(self) -> Iterator[tuple[str, float]]:
        """What the clock of each process was off by when it came up."""
        for log in self.folder.glob("*.log"):
            for line in log.read_text().splitlines():
                if line.startswith(UP):
                    yield log.stem.split()[-1], float(line.removeprefix(UP)) - log.with_suffix(".began").stat().st_mtime


@pytest.mark.case("T49")
@pytest.mark.promise("L5")
@pytest.mark.promise("P1")
async def test_wrong_clocks_change_nothing_that_runs(
    seed: int, postgresql: OnPostgres, tmp_path: Path, faketime: Path
) -> None:
    twin = WrongClocks(seed, postgresql.url, tmp_path, faketime)
    stepping = asyncio.ensure_future(twin.step())
    try:
        await live(twin)
    finally:
        stepping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await stepping
    off: dict[str, list[float]] = {clock: [] for clock in CLOCKS}
    for clock, seconds in twin.off_by():
        off[clock].append(seconds)
    print(
        {clock: [round(seconds / 60) for seconds in found] for clock, found in off.items()}, "minutes off at the start"
    )
    assert min(off["ahead"]) > TEN_MINUTES / 2
    assert max(off["behind"]) < -TEN_MINUTES / 2
    assert off["stepping"]
