"""A simulated history that is printed can be pasted into `tests/histories`: there it ends with the same record."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatch_core.evidence import Bounds, Capabilities
from dispatch_core.guards import off
from dispatch_core.simulator import plans
from dispatch_core.simulator.campaign import run_seed
from dispatch_core.simulator.history import Asked
from dispatch_core.simulator.tape import Tape
from dispatch_core.simulator.telling import history
from dispatch_core.simulator.wording import end_words, job_lines
from tests.simulator.retelling import differences, retell
from tests.telling import Teller, retold
from tests.wording import read_end

# Three are not told in every history: without commit_against_revision a decision or a request writes over what it never
# saw, which no sentence says; without number_ or deadline_committed_before_... a refused decision makes its calls, and
# those that it could not make leave no event behind.
REMOVED = (
    "absence_rule",
    "cancelled_once",
    "canonical_committed_once",
    "earlier_submissions_over",
    "evidence_never_moves_back",
    "hold_on_before_open",
    "host_refuses_after_deadline",
    "open_not_sent_if_revision_moved",
    "requeue_comes_back_gated",
    "run_checked_on_host",
    "settle_waits_for_foreign",
    "stop_never_names_canonical",
    "three_attempts",
)


def is_told_as_it_was(seed: int, *removed: str) -> None:
    told = run_seed(seed, Asked(), removed)
    text = history(told, removed=removed)
    with off(*removed):
        record, steps = retell(text)
    assert [step for step in steps if step.startswith("IMPOSSIBLE")] == [], text
    assert told.world is not None
    assert told.world.record is not None
    assert differences(told.world.record, record) == [], text
    if not removed:
        assert [step for step in steps if step.startswith("LAW BROKEN")] == [], text


@pytest.mark.parametrize("seed", [*range(60), 66, 118, 120, 149, 161, 203])
def test_a_history_is_told_as_it_was(seed: int) -> None:
    is_told_as_it_was(seed)


@pytest.mark.parametrize(("seed", "guard"), list(enumerate(REMOVED, 100)), ids=REMOVED)
def test_without_a_guard_too(seed: int, guard: str) -> None:
    is_told_as_it_was(seed, guard)


def test_what_is_printed_is_a_file_of_histories(tmp_path: Path) -> None:
    path = tmp_path / "seed.txt"
    path.write_text("shows: P1\n" + history(run_seed(4, Asked())))
    once = retold(path)
    path.write_text(once)
    assert retold(path) == once
    assert "created: train.sh on cluster" in once
    assert "\n  settled\n" in once


@pytest.mark.parametrize("seed", range(0, 400, 8))
def test_a_job_is_read_as_it_was_drawn(seed: int) -> None:
    draw = Tape(seed).branch("job")
    bounds, capabilities, plan = plans.draw_bounds(draw), plans.draw_capabilities(draw), plans.draw_plan(draw)
    spec = plans.draw_spec(draw, secret=seed % 3 == 0)
    first, *more = job_lines(spec, plan, bounds, capabilities)
    teller = Teller()
    teller.tell(first, [line.strip() for line in more])
    assert (teller.world.record.plan, teller.world.record.spec) == (plan, spec)
    assert (teller.world.bounds, teller.world.capabilities) == (bounds, capabilities)


def test_a_job_of_no_rules_is_read() -> None:
    spec = plans.draw_spec(Tape(0, frozenset({("job", 1), ("job", 2)})).branch("job"), secret=False)
    bounds, capabilities = Bounds(call_seconds=2.5, window_seconds=20.0), Capabilities(requeues=True)
    teller = Teller()
    first, *more = job_lines(spec, plans.Plan(), bounds, capabilities)
    teller.tell(first, [line.strip() for line in more])
    assert teller.world.record.plan == plans.Plan()
    assert (teller.world.bounds, teller.world.capabilities) == (bounds, capabilities)


@pytest.mark.parametrize("end", plans.ENDS, ids=end_words)
def test_an_end_is_read_as_it_was_drawn(end: plans.End) -> None:
    assert read_end(end_words(end)) == end
