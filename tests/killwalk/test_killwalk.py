"""The kill walk: a supervisor ended with SIGKILL before and after every store write and every scheduler call.

The points are taken from one undisturbed life, and their number is held against what that life's own record says was
written and called. Then each point ends one child, and whoever comes next finishes its job. Runs are counted by the
payload's own lines: each authorized run once, no two at once, and the record settles.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
from collections import Counter
from dataclasses import replace
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from dispatch_core.adapters.local.scheduler import LocalScheduler
from dispatch_core.evidence import Listing
from dispatch_core.record import Record, Result, State
from tests.killwalk.life import CALLS, QUICK, WRITES, Life, child, live, read
from tests.stores.databases import OnPostgres, OnSqlite

WAVE = 48
"""Children at a time."""

EXPECTED = {
    "resubmit": (["1.1 start", "1.1 end", "2.1 start", "2.1 end"], Result.SUCCEEDED),
    "requeue": (["1.1 start", "1.1 end", "1.2 start", "1.2 end"], Result.SUCCEEDED),
    "cancel": (["1.1 start"], Result.CANCELLED),
}
SECONDS = 240


@pytest.fixture(scope="session")
def children() -> ForkServerContext:
    """A server that forks children which have imported everything already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.killwalk.life", "aiosqlite", "asyncpg"])
    return context


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    database: OnSqlite | OnPostgres = request.getfixturevalue(request.param)
    return database.url


@pytest.mark.promise("P1")
@pytest.mark.promise("P3")
@pytest.mark.promise("R1")
@pytest.mark.case("T7")
async def test_whoever_comes_next_finishes_the_job(url: str, children: ForkServerContext, tmp_path: Path) -> None:
    await walk(Life(url, tmp_path / "spool", "", "resubmit", Path(), Path()), children, tmp_path)


@pytest.mark.promise("P4")
@pytest.mark.promise("O2")
@pytest.mark.case("T7")
async def test_two_supervisors_at_once_without_leases(
    sqlite: OnSqlite, children: ForkServerContext, tmp_path: Path
) -> None:
    life = Life(sqlite.url, tmp_path / "spool", "", "resubmit", Path(), Path(), leases=False)
    await walk(life, children, tmp_path, company=True)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["requeue", "cancel"])
async def test_other_lives(url: str, kind: str, children: ForkServerContext, tmp_path: Path) -> None:
    await walk(Life(url, tmp_path / "spool", "", kind, Path(), Path()), children, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["resubmit", "requeue", "cancel"])
async def test_other_lives_in_company(url: str, kind: str, children: ForkServerContext, tmp_path: Path) -> None:
    life = Life(url, tmp_path / "spool", "", kind, Path(), Path(), leases=False)
    await walk(life, children, tmp_path, company=True)


async def walk(life: Life, children: ForkServerContext, folder: Path, *, company: bool = False) -> None:
    """End one child at each point of a life, let the next supervisor finish it, and judge what ran."""
    async with asyncio.timeout(SECONDS):
        points = await points_of(replace(life, key="undisturbed", lines=folder / "lines", journal=folder / "journal"))
        lives = [
            replace(life, key=f"at {point}", point=point, lines=folder / point.replace(" ", "-")) for point in points
        ]
        ended = 0
        for first in range(0, len(lives), WAVE):
            ended += await wave(lives[first : first + WAVE], children, company=company)
    print(f"\n{life.kind} on {life.url.partition(':')[0]}: {len(points)} points, {ended} children ended at theirs")
    # A listing may or may not show a run pending, which is one commit more or less; and in company the other may be
    # first at a point. A child that does not come to its point lives its life to the end.
    assert ended >= (len(points) / 4 if company else len(points) - 2)


async def points_of(life: Life) -> list[str]:
    """Every point of an undisturbed life; their number is what its record and its leases account for."""
    record = await live(life)
    points = read(life.journal).splitlines()
    seen = Counter(point.split()[1] for point in points if point.startswith("before"))
    starts = sum(len(submission.attempts) for submission in record.submissions)
    sent = Counter({"start": starts}) + Counter({str(call.kind): 0 for call in record.calls})
    for call in record.calls:
        sent[str(call.kind)] += call.count
    assert {name: seen[name] for name in CALLS if seen[name]} == {name: n for name, n in sent.items() if n}
    # A commit that was refused, because a cancel came in between, has no point after it.
    done = Counter(point.split()[1] for point in points if point.startswith("after"))
    assert done["create"] + done["commit"] == record.revision
    assert len(points) == sum(seen[name] + done[name] for name in (*WRITES, *CALLS))
    judge(life, record)
    # A renewal comes with the clock, not with the job: it is not at the same place in the next life.
    return [point for point in points if " renew " not in point]


async def wave(lives: list[Life], children: ForkServerContext, *, company: bool) -> int:
    """Some lives at once; returns how many children ended at their point."""
    workers = [children.Process(target=child, args=(life,)) for life in lives]
    others = [children.Process(target=child, args=(replace(life, point=""),)) for life in lives] if company else []
    for worker in (*workers, *others):
        worker.start()
    try:
        await asyncio.gather(*(asyncio.to_thread(worker.join) for worker in (*workers, *others)))
    finally:
        for worker in (*workers, *others):
            worker.kill()
    assert [other.exitcode for other in others] == [0] * len(others)
    records = await asyncio.gather(*(live(replace(life, point="")) for life in lives))
    for life, record in zip(lives, records, strict=True):
        judge(life, record)
    await nothing_lives(lives[0])
    return sum(worker.exitcode == -signal.SIGKILL for worker in workers)


def judge(life: Life, record: Record) -> None:
    """One job: settled, each authorized run once, and no two at once."""
    lines, result = EXPECTED[life.kind]
    assert record.settled, life
    assert record.outcome is not None, life
    assert record.outcome.result is result, life
    assert read(life.lines).splitlines() == lines, life


async def nothing_lives(life: Life) -> None:
    scheduler = LocalScheduler(life.spool, bounds=QUICK)
    listing: Listing = await scheduler.everything()
    await scheduler.close()
    assert [sighting for sighting in listing.objects if sighting.state is not State.ENDED] == []
