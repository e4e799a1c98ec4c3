"""What a status calls a job, and what needs attention, from its record alone."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from dispatch_core.ask import cancel, hold
from dispatch_core.names import object_name
from dispatch_core.plan import Cause, End, Plan, Spec
from dispatch_core.reasons import Reason
from dispatch_core.record import Answer, Attempt, Call, Kind, Object, Record, Reply, RunEnd, State, Submission, Wait
from dispatch_core.status import advice, attention, runs_of, state_of, status_of
from dispatch_core.stores.contract import Listed

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)
UID = "0f3a9c21b7d4e865"


def launched(state: State) -> Record:
    """A job with one object that counts, in this state."""
    object = Object(
        id="a1", name=object_name(UID, 1, 1), submission=1, attempt=1, first_seen=AT, seen=AT, run=1, state=state,
        ends=(RunEnd(run=1, at=AT, end=End(cause=Cause.EXIT, exit_code=3)),) if state is State.ENDED else (),
    )  # fmt: skip
    spec = Spec(command=("true",))
    attempt = Attempt(number=1, committed=AT, deadline=AT)
    submission = Submission(number=1, why="first", spec=spec, attempts=(attempt,), canonical="a1")
    return Record(
        key="k", uid=UID, scheduler="local", spec=spec, plan=Plan(), submissions=(submission,), objects=(object,)
    )


def row(record: Record | None, owner: str | None = "supervisor 1") -> Listed:
    return Listed(key="k", uid=UID, revision=1, record=record, problem="", created=AT, updated=AT, owner=owner)


def waiting(reason: Reason) -> Record:
    return replace(launched(State.ENDED), wait=Wait(reason=reason, text="it waits", since=AT, object="a1"))


@pytest.mark.parametrize(
    ("state", "word"),
    [
        (State.GATED, "starting"), (State.PENDING, "queued"), (State.HELD, "queued"), (State.RUNNING, "running"),
        (State.ENDING, "ending"), (State.ENDED, "recovering"), (State.UNRECOGNIZED, "unrecognized"),
    ],
)  # fmt: skip
def test_a_job_is_called_by_the_object_that_counts(state: State, word: str) -> None:
    assert state_of(launched(state)) == word


def test_a_hold_counts_for_the_next_start() -> None:
    assert state_of(hold(launched(State.RUNNING), "person me", "wait")) == "running"
    assert state_of(hold(launched(State.PENDING), "person me", "wait")) == "held"


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (Reason.HELD_BY_RULE, ("held",)), (Reason.VANISHED, ("held", "gone")), (Reason.UNRECOGNIZED, ("held",)),
        (Reason.GONE, ("gone",)), (Reason.UNMATCHED, ("unmatched",)), (Reason.UNREACHABLE, ()),
    ],
)  # fmt: skip
def test_what_waits_for_a_person_needs_attention(reason: Reason, told: tuple[str, ...]) -> None:
    record = waiting(reason)
    assert attention(row(record)) == told
    assert (state_of(record) == "needs a person") == bool(told) == bool(advice(record))


def test_a_stranger_needs_attention_until_it_is_disposed_of_or_ended() -> None:
    record = launched(State.RUNNING)
    stranger = replace(record.objects[0], id="b2", name="b", submission=0, attempt=0, foreign=True)
    assert attention(row(replace(record, objects=(*record.objects, stranger)))) == ("foreign",)
    for gone in (replace(stranger, disposed=True), replace(stranger, state=State.ENDED)):
        assert attention(row(replace(record, objects=(*record.objects, gone)))) == ()


def test_an_outcome_is_unsettled_until_it_is_settled() -> None:
    record = cancel(launched(State.RUNNING), "person me", AT)
    assert attention(row(record)) == ("unsettled",)
    assert attention(row(record, owner=None)) == ("unattended", "unsettled")
    assert attention(row(replace(record, settled=True), owner=None)) == ()
    shown = status_of(record, row(record))
    assert shown.receipt is not None
    assert (shown.state, shown.receipt.clean, shown.since) == ("cancelled", False, AT)


def test_what_cannot_be_read_needs_attention_and_nothing_else_is_said_of_it() -> None:
    assert attention(row(None, owner=None)) == ("unreadable",)


@pytest.mark.parametrize(
    ("answer", "runs"),
    [(None, 1), (Answer.DONE, 1), (Answer.UNKNOWN, 1), (Answer.LATE, 0), (Answer.REFUSED, 0)],
)
def test_a_run_counts_though_no_listing_ever_showed_it_open(answer: Answer | None, runs: int) -> None:
    record = launched(State.ENDED)
    reply = None if answer is None else Reply(answer=answer)
    opened = Call(kind=Kind.OPEN, object=record.objects[0].id, run=1, hold=0, committed=AT, deadline=AT, reply=reply)
    assert runs_of(replace(record, calls=(opened,))) == runs
