"""Three supervising processes that are stopped and ended at random, on one PostgreSQL and one spool; what ran is judged
by the lines that the payloads wrote.

A seed draws the jobs, what happens to whom, and the kinds of the supervisors; what meets what is the machine's doing.
`pytest tests/twin -n 0 -s --twin-seed 7` lives the seed 7, and prints what happened in it.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.stores.databases import OnPostgres
from tests.twin.chaos import Form, Twin, everything_ended

SHORT = Form(jobs=16, seconds=11, slowest=1.5, kinds=("leased", "free"), longest_stop=6, calm_seconds=180)
FEW = Form(jobs=8, seconds=5, slowest=0.5, kinds=("free",), longest_stop=1, calm_seconds=30)
LONG = Form(jobs=50, seconds=80, slowest=6, kinds=("leased", "free", "command"), longest_stop=45, calm_seconds=150)


@pytest.mark.promise("P1")
@pytest.mark.promise("P2")
@pytest.mark.promise("P3")
@pytest.mark.promise("P4")
@pytest.mark.promise("G9")
@pytest.mark.promise("X4")
@pytest.mark.promise("O2")
async def test_three_supervisors_that_are_disturbed(seed: int, postgresql: OnPostgres, tmp_path: Path) -> None:
    await live(Twin(seed, postgresql.url, tmp_path, SHORT))


@pytest.mark.long
@pytest.mark.case("T8")
@pytest.mark.case("T47")
async def test_three_supervisors_that_are_disturbed_for_long(seed: int, postgresql: OnPostgres, tmp_path: Path) -> None:
    await live(Twin(seed, postgresql.url, tmp_path, LONG))


UNCOMMITTED = ("times, and committed once", "no record holds that attempt", "is not of its record")
"""What shows that a Start was sent without its commit; a job that waits for a person to say so ends a twin early."""


class WithCareless(Twin):
    """A twin in which all but one make their calls whether their commits landed or not."""

    def kind(self, dice: random.Random, place: int) -> str:
        return "careless" if place else super().kind(dice, place)


async def test_who_calls_after_a_refused_commit_is_noticed(seed: int, postgresql: OnPostgres, tmp_path: Path) -> None:
    twin = WithCareless(seed, postgresql.url, tmp_path, FEW)
    async with everything_ended(twin.spool):
        wrong = await twin.live()
    print(f"{twin.report()}; {len(wrong)} wrong")
    assert any(told in sentence for sentence in wrong for told in UNCOMMITTED), wrong


async def live(twin: Twin) -> None:
    print(f"\ntwin seed {twin.seed}")
    async with everything_ended(twin.spool):
        wrong = await twin.live()
    print(f"{twin.report()}; {time.monotonic() - twin.began:.0f} s")
    assert wrong == []
    assert all(twin.counts[name] for name in ("runs", "kills", "stops"))
