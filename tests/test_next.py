"""Decisions on records that no history leads to, and what is asked of all decisions alike."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from dispatch_core.evidence import Bounds, Capabilities, Listing, Sighting
from dispatch_core.find import observe
from dispatch_core.names import object_name
from dispatch_core.next import decide, unreachable
from dispatch_core.plan import Cause, End, Plan, Spec
from dispatch_core.reasons import Reason
from dispatch_core.record import Attempt, Call, Kind, Object, Outcome, Record, Result, RunEnd, State, Submission
from dispatch_core.turn import Decision
from tests.world import EPOCH

UID = "0f3a9c21"
LATER = EPOCH + timedelta(hours=1)


def object_of(id: str, submission: int, state: State, **fields: object) -> Object:
    return Object(
        id=id,
        name=object_name(UID, submission, 1),
        submission=submission,
        attempt=1,
        first_seen=EPOCH,
        seen=EPOCH,
        run=1,
        state=state,
        **fields,  # type: ignore[arg-type]
    )


def record_of(*objects: Object, **fields: object) -> Record:
    """A record whose first submission has one attempt, and these objects."""
    spec = Spec(command=("true",))
    attempt = Attempt(number=1, committed=EPOCH, deadline=EPOCH)
    first = Submission(number=1, why="first", spec=spec, attempts=(attempt,))
    record = Record(key="train", uid=UID, scheduler="cluster", spec=spec, plan=Plan(), submissions=(first,))
    return replace(record, objects=objects, **fields)


def decided(record: Record, **shown: State) -> Decision:
    """What is decided an hour later, on a complete listing that shows these objects."""
    rows = [(record.object(id), state) for id, state in shown.items()]
    listing = Listing(
        objects=tuple(
            Sighting(id=object.id, name=object.name, key=record.key, state=state)
            for object, state in rows
            if object is not None
        ),
        began=LATER,
        ended=LATER,
    )
    bounds = Bounds(call_seconds=10, window_seconds=20)
    return decide(record, observe(record, listing, bounds, Capabilities()))


@pytest.mark.promise("G6")
def test_what_is_retired_is_never_chosen() -> None:
    """Without the question the lower one of two would be chosen, though it was retired for good."""
    record = record_of(object_of("o1", 1, State.GATED, retired=True), object_of("o2", 1, State.GATED))
    decision = decided(record, o1=State.GATED, o2=State.GATED)
    assert decision.record is not None
    assert decision.record.submissions[0].canonical == "o2"


@pytest.mark.case("T41")
def test_our_own_stop_without_a_purpose_is_left_to_a_person() -> None:
    end = RunEnd(run=1, at=EPOCH, end=End(cause=Cause.STOPPED_OUTSIDE))
    record = record_of(object_of("o1", 1, State.ENDED, ends=(end,)))
    first = replace(record.submissions[0], canonical="o1")
    stop = Call(kind=Kind.STOP, object="o1", run=1, hold=0, committed=EPOCH, deadline=EPOCH)
    decision = decided(replace(record, submissions=(first,), calls=(stop,)), o1=State.ENDED)
    assert decision.record is not None
    assert decision.record.outcome is None
    assert [note.reason for note in decision.notes] == [Reason.UNEXPLAINED_STOP]
    assert decision.record.wait is not None


@pytest.mark.promise("S2")
def test_a_settled_record_is_not_told_that_nobody_answers() -> None:
    outcome = Outcome(result=Result.CANCELLED, cause=None, at=EPOCH, by="ann")
    settled = record_of(outcome=outcome, settled=True)
    assert unreachable(settled, settled, LATER, "no answer").record is None


@pytest.mark.promise("L5")
def test_a_wake_is_never_later_than_the_next_look() -> None:
    assert 0 <= decided(record_of()).wake_seconds <= 60
