"""The same histories everywhere; every guard is missed; and every point is survived.

The seeds and the hash kept beside this file belong to the code as it is: what changes a decision, a draw or a law
changes them. `pytest --rewrite` writes the hash anew, `dispatch simulate --guards -o json` prints the seeds.
"""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dispatch_core.guards import GUARDS
from dispatch_core.simulator.campaign import campaign, run_seed, run_seeds
from dispatch_core.simulator.faults import Fault
from dispatch_core.simulator.guarding import removable
from dispatch_core.simulator.history import Asked
from dispatch_core.simulator.points import every_point

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
HASH = HERE / "hash.txt"
CAUGHT = json.loads((HERE / "guards.json").read_text())["guards"]
FAILED = [int(line.split()[0]) for line in (HERE / "failed.txt").read_text().splitlines() if line[:1].isdigit()]


@pytest.mark.parametrize("seed", FAILED)
def test_what_failed_once_holds(seed: int) -> None:
    assert run_seed(seed, Asked()).violations == []


@pytest.mark.promise("V2")
@pytest.mark.parametrize("caught", [c for c in CAUGHT if c["caught"]], ids=lambda caught: caught["name"])
def test_each_guard_is_missed(caught: dict[str, object]) -> None:
    seed, removed = int(str(caught["seed"])), tuple(caught["removed"])  # type: ignore[arg-type]
    assert run_seed(seed, Asked(), removed).violations
    assert run_seed(seed, Asked()).violations == []
    assert run_seed(seed, Asked(), removed[1:]).violations == []


@pytest.mark.promise("V2")
def test_every_guard_of_the_first_line_was_caught() -> None:
    known = {caught["name"]: caught for caught in CAUGHT}
    assert set(known) == {guard.name for guard in removable()}
    assert [g.name for g in removable() if g.line == 1 and not known[g.name]["caught"]] == []
    early = [c for c in CAUGHT if c["line"] == 1 and c["caught"] and c["histories"] <= 1000]
    assert len(early) * 2 >= sum(g.line == 1 for g in removable())
    histories = HERE.parent / "histories"
    assert [g.name for g in GUARDS.values() if not (histories / f"{g.history}.txt").exists()] == []


def test_the_same_seeds_are_the_same_histories_everywhere(request: pytest.FixtureRequest) -> None:
    """On every Python that this runs on, and whatever PYTHONHASHSEED is."""
    told = hash_of("1"), hash_of("2")
    if request.config.getoption("--rewrite"):
        HASH.write_text(told[0] + "\n")
    assert told[0] == told[1]
    assert told[0] == HASH.read_text().strip()


def hash_of(hash_seed: str) -> str:
    code = """
from dispatch_core.simulator.campaign import run_seeds
from dispatch_core.simulator.history import Asked
print(run_seeds(range(40), Asked()).hash)
"""
    env = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.check_output([sys.executable, "-c", code], text=True, env=env, cwd=ROOT).strip()


def test_a_fault_that_never_came_on_one_side_of_its_effect_is_missing() -> None:
    counted = run_seeds(range(20), Asked())
    assert "reply_lost" not in " ".join(counted.missing((Fault.REPLY_LOST,)))
    del counted.steps["reply_lost before"]
    assert counted.missing((Fault.REPLY_LOST, Fault.CRASH)) == ["reply_lost before"]
    del counted.faults[Fault.REPLY_LOST]
    assert counted.missing((Fault.REPLY_LOST,)) == ["reply_lost"]


def test_nothing_is_logged_and_the_level_stays(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("dispatch_core")
    level = log.level
    run_seed(3, Asked())
    assert log.level == level
    assert caplog.records == []


def test_workers_change_nothing() -> None:
    assert campaign(0, 45, Asked(), workers=2).hash == run_seeds(range(45), Asked()).hash


@pytest.mark.promise("R1")
@pytest.mark.case("T7")
def test_a_crash_and_a_stall_at_every_single_point() -> None:
    seeds = range(45, 46)  # its plan has a start, an Open, a Shut, a requeue and a StopJob, in few exchanges
    counted, points = every_point(seeds, Asked(supervisors=1))
    assert points > 60
    assert counted.seeds == 6 * points
    assert counted.found == []
