"""Every check of the demo can fail: each is shown a play in which one thing is not as it was to be."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from dispatch_core.demo import acts
from dispatch_core.demo.acts import Play
from dispatch_core.demo.witness import Job, Line, Told
from dispatch_core.names import object_name
from dispatch_core.plan import Cause, End, Plan, Spec
from dispatch_core.record import Attempt, Call, Kind, Object, Outcome, Record, Result, RunEnd, Spent, State, Submission

AT = datetime(2026, 1, 1, tzinfo=UTC)
UID, FIRST, SECOND = "0f3a9c21b7d4e865", "a" * 16, "b" * 16
SPEC = Spec(command=("true",))


def launched(number: int, id: str, end: End) -> tuple[Submission, Object, Call]:
    """One submission with its object, whose one run was opened and has ended."""
    attempt = Attempt(number=1, committed=AT, deadline=AT)
    submission = Submission(number=number, why="first", spec=SPEC, attempts=(attempt,), canonical=id)
    object = Object(
        id=id,
        name=object_name(UID, number, 1),
        submission=number,
        attempt=1,
        first_seen=AT,
        seen=AT,
        run=1,
        state=State.ENDED,
        opened=True,
        ends=(RunEnd(run=1, at=AT, end=end),),
    )
    return submission, object, Call(kind=Kind.OPEN, object=id, run=1, hold=0, committed=AT, deadline=AT)


def record(**changes: Any) -> Record:
    one = launched(1, FIRST, End(cause=Cause.NODE_FAILURE))
    two = launched(2, SECOND, End(cause=Cause.COMPLETED, exit_code=0))
    submissions, objects, calls = zip(one, two, strict=True)
    fields = {
        "key": f"airflow/{acts.DAG}/r/{acts.NAME}/-1/0",
        "uid": UID,
        "scheduler": "local",
        "spec": SPEC,
        "plan": Plan(),
        "submissions": submissions,
        "objects": objects,
        "calls": calls,
        "budget": (Spent(key=f"{FIRST}/1", rule="node"),),
        "outcome": Outcome(result=Result.SUCCEEDED, cause=Cause.COMPLETED, at=AT, by="dispatch:default"),
        "settled": True,
    }
    return Record(**{**fields, **changes})


def job(**changes: Any) -> Job:
    made = record(**changes)
    return Job(row={"key": made.key}, record=made)


def line(submission: int, what: str) -> Line:
    return Line(submission=submission, run=1, what=what)


def told(actor: str) -> Told:
    return Told(revision=1, at="", actor=actor, line="")


GOOD = Play(
    run="r",
    state="success",
    tries=1,
    job=job(),
    jobs=1,
    lines=(line(1, "start"), line(2, "start"), line(2, "end")),
    history=(told("a worker"), told("one supervisor"), told("another")),
    dag_run={"state": "success"},
    first=FIRST,
    second=SECOND,
)


def test_a_good_play_holds_every_check() -> None:
    assert [check.name for check in acts.checks(GOOD) if not check.held] == []


@pytest.mark.parametrize(
    ("wrong", "fails"),
    [
        ({"state": "failed"}, {"finished"}),
        ({"jobs": 2}, {"one_job"}),
        ({"tries": 2}, {"one_job"}),
        ({"history": (told("a worker"), told("one supervisor"))}, {"triggerer_lost"}),
        ({"job": job(budget=())}, {"node_failure"}),
        ({"job": job(calls=record().calls[:1])}, {"runs_are_authorized"}),
        ({"lines": (*GOOD.lines, line(2, "start"))}, {"runs_are_authorized", "no_overlap"}),
        ({"lines": (line(2, "start"), line(1, "start"), line(2, "end"))}, {"no_overlap"}),
        ({"lines": (*GOOD.lines, line(1, "end"))}, {"no_overlap", "one_result"}),
        ({"job": job(settled=False)}, {"settled"}),
        ({"dag_run": {"state": "running"}}, {"row_beside_dag_run"}),
        ({"first": SECOND}, {"node_failure"}),
        ({"second": FIRST}, {"triggerer_lost"}),
    ],
)
def test_what_is_wrong_fails_its_check(wrong: dict[str, Any], fails: set[str]) -> None:
    checks = acts.checks(msgspec.structs.replace(GOOD, **wrong))
    assert {check.name for check in checks if not check.held} == fails
