"""`dispatch simulate`: what it prints, what it exits with, and how it refuses."""

import json
import re

import pytest

from dispatch_core.cli import main

Printed = pytest.CaptureFixture[str]


def run(capsys: Printed, *arguments: str) -> tuple[int, str, str]:
    code = main(["simulate", *arguments])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_one_history(capsys: Printed) -> None:
    code, out, _ = run(capsys, "--seed", "3")
    assert code == 0
    assert out.startswith("1 history")
    assert "no violation" in out


def test_faults_are_counted_by_the_side_of_their_effect(capsys: Printed) -> None:
    _, out, _ = run(capsys, "--seeds", "0:20", "--workers", "1")
    assert re.search(r"crash \d+ \(\d+ before, \d+ during, \d+ after\)", out)


def test_json_alone_on_standard_output(capsys: Printed) -> None:
    code, out, err = run(capsys, "--seeds", "0:20", "--workers", "1", "-o", "json")
    told = json.loads(out)
    assert code == 0
    assert told["seeds"] == 20
    assert told["violations"] == []
    assert set(told["means"]) == {"calls", "commits", "submissions", "faults"}
    assert all(isinstance(count, int) for count in told["faults"].values())
    assert set(told["steps"]["crash"]) == {"before", "during", "after"}
    assert all(sum(steps.values()) == told["faults"][name] for name, steps in told["steps"].items())
    assert len(told["hash"]) == 32
    assert "20 histories" in err


def test_a_violation_is_told_as_a_history_and_exits_with_1(capsys: Printed) -> None:
    code, out, _ = run(capsys, "--seeds", "0:20", "--workers", "1", "--guard-off", "cancelled_once")
    assert code == 1
    assert "job train.sh" in out
    assert "dispatch simulate --seed" in out
    assert "breaks" in out


def test_guards_are_looked_for(capsys: Printed) -> None:
    asked = ("--guards", "--guard-off", "cancelled_once,evidence_never_moves_back", "--seeds", "0:200")
    code, out, _ = run(capsys, *asked, "--workers", "1", "-o", "json")
    told = json.loads(out)["guards"]
    assert code == 0
    assert {row["name"]: row["caught"] for row in told} == {"cancelled_once": True, "evidence_never_moves_back": True}
    assert all({"name", "caught", "histories", "seed", "promise"} <= set(row) for row in told)


def test_a_guard_that_is_not_missed_exits_with_1(capsys: Printed) -> None:
    code, out, _ = run(
        capsys,
        "--guards",
        "--guard-off",
        "evidence_never_moves_back",
        "--faults",
        "none",
        "--seeds",
        "0:2",
        "--workers",
        "1",
    )
    assert code == 1
    assert "NOT CAUGHT" in out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--seeds", "5"), "like 0:1000"),
        (("--seeds", "9:3"), "like 0:1000"),
        (("--seed", "1", "--for", "1m"), "exclude each other"),
        (("--faults", "rain"), "there are: all, none, call_lost"),
        (("--guard-off", "luck"), "there is no guard 'luck'"),
        (("--for", "soon"), "soon"),
        (("--guards", "--for", "1m"), "exclude each other and --for"),
        (("--guards", "--points"), "exclude each other"),
        (("--points", "--faults", "none"), "no faults but its own"),
        (("--supervisors", "4"), "less than or equal to 3"),
    ],
)
def test_bad_input_is_one_line(capsys: Printed, arguments: tuple[str, ...], line: str) -> None:
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert line in err
    assert len(err.splitlines()) == 1
