"""What is kept of a sighting and of a reply; that their order does not matter is a property."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from dispatch_core.evidence import Seen, Sighting, StartReplied, is_news, merge
from dispatch_core.names import object_name
from dispatch_core.plan import Cause, End
from dispatch_core.record import Answer, Attempt, Mark, Record, Reply, State
from tests.test_next import UID, object_of, record_of
from tests.world import EPOCH


def seen(state: State, *, id: str = "o1", later: float = 1, **fields: object) -> Seen:
    sighting = Sighting(id=id, name=object_name(UID, 1, 1), key="train", state=state, **fields)  # type: ignore[arg-type]
    return Seen(sighting=sighting, at=EPOCH + timedelta(seconds=later))


def row(record: Record, id: str = "o1") -> object:
    object = record.object(id)
    assert object is not None
    return object.state, object.run, object.nodes, [(end.run, end.end.cause) for end in object.ends]


@pytest.mark.promise("C3")
def test_a_state_never_moves_back_within_a_run() -> None:
    record = merge(record_of(), [seen(State.ENDED, end=End(cause=Cause.EXIT), later=1), seen(State.RUNNING, later=9)])
    assert row(record) == (State.ENDED, 1, (), [(1, Cause.EXIT)])
    again = merge(record, [seen(State.PENDING, run=2, earlier_ends=((1, End(cause=Cause.PREEMPTED)),), later=5)])
    assert row(again) == (State.PENDING, 2, (), [(1, Cause.PREEMPTED)])


def test_a_cause_that_is_known_stands_before_one_that_is_not() -> None:
    told = [
        seen(State.ENDED, end=End(cause=Cause.EXIT, exit_code=1), later=1),
        seen(State.ENDED, end=End(cause=Cause.UNRECOGNIZED), later=9),
    ]
    assert row(merge(record_of(), told)) == (State.ENDED, 1, (), [(1, Cause.EXIT)])


def test_two_words_on_one_end_at_one_time_come_out_the_same_in_any_order() -> None:
    told = [seen(State.ENDED, end=End(cause=cause)) for cause in (Cause.EXIT, Cause.PREEMPTED)]
    assert merge(record_of(), told) == merge(record_of(), told[::-1])


def test_an_end_without_nodes_does_not_forget_them() -> None:
    told = [seen(State.RUNNING, nodes=("n2", "n1")), seen(State.ENDED, later=2)]
    assert row(merge(record_of(), told)) == (State.ENDED, 1, ("n1", "n2"), [])
    assert row(merge(record_of(), [*told, seen(State.RUNNING, run=2, later=3)])) == (State.RUNNING, 2, (), [])


@pytest.mark.promise("G5")
def test_a_late_attempt_stays_late() -> None:
    """Its place among the three has been given away: a second reply must not make a fourth that counts."""
    late = Reply(answer=Answer.LATE)
    attempts = tuple(
        Attempt(number=number, committed=EPOCH, deadline=EPOCH, reply=late if number == 1 else None)
        for number in (1, 2, 3, 4)
    )
    record = record_of()
    record = replace(record, submissions=(replace(record.submissions[0], attempts=attempts),))
    merged = merge(record, [StartReplied(submission=1, attempt=1, reply=Reply(answer=Answer.DONE, text="o1"))])
    assert merged == record


@pytest.mark.promise("C4")
def test_any_sighting_starts_the_count_of_absences_again() -> None:
    mark = Mark(first=EPOCH, second=EPOCH)
    record = record_of(object_of("o1", 1, State.RUNNING, missing=mark), clear=mark)
    merged = merge(record, [seen(State.RUNNING)])
    assert merged.objects[0].missing is None
    assert merged.clear is None
    assert merged.submissions[0].attempts[0].missing is None


@pytest.mark.promise("C2")
def test_a_later_sighting_undoes_a_persons_word() -> None:
    record = record_of(object_of("o1", 1, State.RUNNING, gone=EPOCH))
    assert merge(record, [seen(State.RUNNING, later=0)]).objects[0].gone == EPOCH
    assert merge(record, [seen(State.RUNNING, later=1)]).objects[0].gone is None


def test_the_time_of_a_sighting_is_no_news() -> None:
    record = merge(record_of(), [seen(State.RUNNING)])
    assert not is_news(record, merge(record, [seen(State.RUNNING, later=60)]))
    assert is_news(record, merge(record, [seen(State.ENDING, later=60)]))


@pytest.mark.case("T4")
@pytest.mark.parametrize(
    "name", ["mangled", object_name("ffffffff", 1, 1), object_name(UID, 1, 2), object_name(UID, 2, 1)]
)
def test_what_no_attempt_of_ours_made_is_foreign(name: str) -> None:
    sighting = Sighting(id="f1", name=name, key="train", state=State.RUNNING)
    merged = merge(record_of(clear=Mark(first=EPOCH)), [Seen(sighting=sighting, at=EPOCH)])
    assert (merged.objects[0].foreign, merged.objects[0].submission) == (True, 0)
    assert merged.clear is not None  # what is not ours is asked about, and does not stop the count by itself
