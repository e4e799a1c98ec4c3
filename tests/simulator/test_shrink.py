"""A failing seed shrinks to a short history in which the same law is broken."""

from __future__ import annotations

import pytest

from dispatch_core.guards import off
from dispatch_core.simulator.campaign import run_seed
from dispatch_core.simulator.history import Asked, Told
from dispatch_core.simulator.shrink import Shrunk, length, shrink
from dispatch_core.simulator.telling import history
from dispatch_core.simulator.trace import Committed
from tests.simulator.retelling import differences, retell

GUARD = "canonical_committed_once"
LAW = "kept"
SEEDS = range(61, 300)
"""The first of these that breaks the law has short runs, also on the way to a shorter one."""
MOST = 200
"""Enough for every part of a shrinker but the last to have its turn."""


@pytest.fixture(scope="module")
def broken() -> Told:
    """The first history in which the law is broken without its guard."""
    runs = (run_seed(seed, Asked(), (GUARD,)) for seed in SEEDS)
    return next(told for told in runs if any(violation.law == LAW for violation in told.violations))


@pytest.fixture(scope="module")
def shrunk(broken: Told) -> Shrunk:
    return shrink(broken.seed, Asked(), LAW, (GUARD,), most=MOST)


def test_it_is_much_shorter(broken: Told, shrunk: Shrunk) -> None:
    assert length(shrunk.told, LAW) * 2 < length(broken, LAW)
    before, after = history(broken, LAW, (GUARD,)), history(shrunk.told, LAW, (GUARD,))
    assert len(after.splitlines()) < len(before.splitlines())
    assert shrunk.runs <= MOST


def test_it_breaks_the_same_law_when_it_is_run(shrunk: Shrunk) -> None:
    told = run_seed(shrunk.told.seed, shrunk.asked, (GUARD,))
    assert told.digest == shrunk.told.digest
    assert LAW in [violation.law for violation in told.violations]
    assert run_seed(shrunk.told.seed, shrunk.asked).violations == [], "the guard is what holds it"


def test_it_is_told_up_to_where_the_law_is_broken(shrunk: Shrunk) -> None:
    text = history(shrunk.told, LAW, (GUARD,))
    broken = next(violation for violation in shrunk.told.violations if violation.law == LAW)
    header = " ".join(line.removeprefix("# ") for line in text.splitlines() if line.startswith("#"))
    assert header == f"Seed {shrunk.told.seed}, without {GUARD}: the law {LAW} is broken: {broken.text}."
    with off(GUARD):
        record, steps = retell(text)
    assert [step for step in steps if step.startswith("IMPOSSIBLE")] == []
    assert shrunk.told.world is not None
    assert differences(shrunk.told.world.revision(record.revision), record) == []
    broke = (event.after for event in shrunk.told.world.trace if type(event) is Committed and event.at == broken.at)
    assert record.revision == next(broke).revision, "nothing that came later is told"


def test_it_is_the_same_every_time(broken: Told) -> None:
    one, other = (shrink(broken.seed, Asked(), LAW, (GUARD,), most=40) for _ in range(2))
    assert one.asked == other.asked
    assert history(one.told, LAW) == history(other.told, LAW)


def test_a_seed_that_breaks_nothing_is_refused(broken: Told) -> None:
    with pytest.raises(ValueError, match="does not break the law alone"):
        shrink(broken.seed, Asked(), "alone")
