"""The twin's laws notice what they are for: lines of payloads, as a broken supervisor would have made them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.plan import Action, Cause, Plan, Rule, Spec, When
from dispatch_core.record import Attempt, Record, Submission
from tests.twin.chaos import nothing_runs
from tests.twin.jobs import Job
from tests.twin.laws import broken_by, broken_in
from tests.twin.supervising import starts_of

AGAIN = Rule(name="again", when=When(cause=(Cause.EXIT,)), do=Action.RESUBMIT, budget=1)
JOB = Job("job", Spec(command=("true",)), Plan(rules=(AGAIN,)), "nobody", 0.0, (0.0, 0.0))
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def line(what: str, submission: int = 1, *, alone: bool = True, code: int = 0) -> dict[str, Any]:
    object = {"DISPATCH_SUBMISSION": str(submission), "DISPATCH_OBJECT": f"o{submission}", "DISPATCH_RUN": "1"}
    return {"what": what, "key": "job", "alone": alone, "code": code, **object}


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ([line("start"), line("end", code=3), line("start", 2), line("end", 2)], ""),
        ([line("start"), line("start", 2, alone=False)], "began beside another run"),
        ([line("start"), line("start", 2), line("end")], "and submission 2 object o2 run 1 had begun since"),
        ([line("start"), line("start")], "launched 2 times"),
        ([line("start"), line("start", 2), line("start", 3)], "3 runs, and only 2 are allowed"),
        ([line("start"), line("start", 2), line("let go on"), line("start", 3)], ""),
        ([line("clean"), line("start")], "after the receipt of its cancel said clean"),
        ([line("start"), line("clean", alone=False)], "ran when the receipt of its cancel said clean"),
        ([line("held"), line("start")], "held before any gate was opened"),
        ([line("held"), line("released"), line("start")], ""),
    ],
)
def test_what_the_lines_show(lines: list[dict[str, Any]], wrong: str) -> None:
    found = broken_by(lines, [JOB])
    assert all(wrong in sentence for sentence in found)
    assert bool(found) == bool(wrong)


@pytest.mark.parametrize(
    ("marks", "wrong"),
    [
        (["runner"], "has a runner, and was never opened"),
        (["launched.json"], "has a runner, and was never opened"),
        (["open.json"], "is open, and no record holds that Open"),
        ([], ""),
    ],
)
def test_what_the_spool_shows(tmp_path: Path, marks: list[str], wrong: str) -> None:
    folder = tmp_path / "objects" / "0123456789abcdef" / "runs" / "1"
    folder.mkdir(parents=True)
    for mark in marks:
        (folder / mark).touch()
    found = list(broken_in(tmp_path, []))
    assert all(wrong in sentence for sentence in found)
    assert bool(found) == bool(wrong)


@pytest.mark.parametrize(
    ("names", "wrong"),
    [
        (["dispatch-0f3a9c21-1-1"], ""),
        (
            ["dispatch-0f3a9c21-1-1", "dispatch-0f3a9c21-1-1"],
            "dispatch-0f3a9c21-1-1 was started 2 times, and committed once",
        ),
        (["dispatch-0f3a9c21-1-2"], "dispatch-0f3a9c21-1-2 was started, and no record holds that attempt"),
    ],
)
def test_what_was_started_was_committed(tmp_path: Path, names: list[str], wrong: str) -> None:
    spool = tmp_path / "spool"
    starts_of(spool).write_text("".join(f"{name}\n" for name in names))
    attempt = Attempt(number=1, committed=NOON, deadline=NOON)
    submission = Submission(number=1, why="first", spec=JOB.spec, attempts=(attempt,))
    record = Record(
        key="job", uid="0f3a9c21", scheduler="local", spec=JOB.spec, plan=JOB.plan, submissions=(submission,)
    )
    assert list(broken_in(spool, [record])) == ([wrong] if wrong else [])


def test_who_never_ran_is_not_running(tmp_path: Path) -> None:
    assert nothing_runs(tmp_path / "job.alone")
