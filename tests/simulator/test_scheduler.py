"""The simulated scheduler: what it refuses, what it compares, and what no scheduler could do."""

from __future__ import annotations

import pytest

from dispatch_core.plan import Cause, End
from dispatch_core.record import Answer, Kind, State
from dispatch_core.simulator.scheduler import Impossible, Scheduler
from dispatch_core.simulator.trace import Event, Finished, Opened, Reran, Started
from tests.world import EPOCH, KEY

NAME = "dispatch-0f3a9c21-1-1"


def scheduler_of(*, requeues: bool = True, starts_once: bool = True) -> tuple[Scheduler, list[Event]]:
    """A scheduler with one object, `o1`, and what it tells."""
    told: list[Event] = []
    scheduler = Scheduler(
        key=KEY,
        now=lambda: EPOCH,
        time=lambda: 0.0,
        tell=told.append,
        requeues=requeues,
        starts_once=starts_once,
    )
    assert scheduler.starts(NAME).text == "o1"
    told.clear()
    return scheduler, told


def test_it_is_made_gated_and_cannot_run_until_it_is_opened() -> None:
    scheduler, told = scheduler_of()
    assert scheduler.thing("o1").state is State.GATED
    with pytest.raises(Impossible):
        scheduler.runs("o1")
    assert scheduler.act(Kind.OPEN, "o1", NAME, 1).answer is Answer.DONE
    scheduler.runs("o1")
    assert [type(event) for event in told] == [Opened, Started]


def test_a_start_that_is_carried_out_twice() -> None:
    once, _ = scheduler_of()
    assert once.starts(NAME).answer is Answer.UNKNOWN
    assert list(once.things) == ["o1"]
    twice, _ = scheduler_of(starts_once=False)
    assert twice.starts(NAME).text == "o2"
    assert [thing.name for thing in twice.things.values()] == [NAME, NAME]


def test_a_hold_is_not_the_gate() -> None:
    scheduler, _ = scheduler_of()
    scheduler.act(Kind.HOLD, "o1", NAME, 1)
    scheduler.act(Kind.OPEN, "o1", NAME, 1)
    assert scheduler.thing("o1").state is State.HELD
    with pytest.raises(Impossible):
        scheduler.runs("o1")
    scheduler.act(Kind.RELEASE, "o1", NAME, 1)
    assert scheduler.thing("o1").state is State.PENDING


@pytest.mark.parametrize(
    ("id", "name", "run"), [("o9", NAME, 1), ("o1", "by-hand", 1), ("o1", NAME, 2)], ids=["id", "name", "run"]
)
@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.STOP_JOB])
def test_a_call_on_another_identity_or_run_changes_nothing(kind: Kind, id: str, name: str, run: int) -> None:
    scheduler, told = scheduler_of()
    assert scheduler.act(kind, id, name, run).answer is Answer.REFUSED
    assert told == []


def test_an_id_that_belongs_to_somebody_else_now_is_refused() -> None:
    scheduler, told = scheduler_of()
    scheduler.purges("o1", lost=True)
    scheduler.reused["o1"] = "somebody-elses"
    told.clear()
    assert scheduler.act(Kind.STOP, "o1", NAME, 1).answer is Answer.REFUSED
    assert told == []


@pytest.mark.parametrize("kind", [Kind.OPEN, Kind.SHUT, Kind.HOLD, Kind.RELEASE])
def test_what_has_ended_is_touched_by_no_call(kind: Kind) -> None:
    scheduler, told = scheduler_of()
    scheduler.stop(scheduler.thing("o1"))
    told.clear()
    assert scheduler.act(kind, "o1", NAME, 1).answer is Answer.REFUSED
    assert told == []


@pytest.mark.parametrize("requeues", [True, False])
def test_a_requeued_object_comes_back_for_its_next_run(requeues: bool) -> None:
    scheduler, told = scheduler_of(requeues=requeues)
    assert scheduler.act(Kind.REQUEUE, "o1", NAME, 1).answer is Answer.REFUSED
    scheduler.stop(scheduler.thing("o1"))
    told.clear()
    assert scheduler.act(Kind.REQUEUE, "o1", NAME, 1).answer is Answer.DONE
    assert scheduler.thing("o1").run == 2
    assert scheduler.thing("o1").state is (State.GATED if requeues else State.PENDING)
    assert [event.open for event in told if type(event) is Reran] == [not requeues]
    assert scheduler.act(Kind.REQUEUE, "o1", NAME, 1).answer is Answer.REFUSED  # the same call, doubled


def test_what_the_scheduler_reruns_comes_back_open_unless_its_gate_was_shut_behind_it() -> None:
    for shut in (False, True):
        scheduler, _ = scheduler_of()
        scheduler.act(Kind.OPEN, "o1", NAME, 1)
        scheduler.runs("o1")
        if shut:
            scheduler.act(Kind.SHUT, "o1", NAME, 1)
        scheduler.reruns("o1")
        assert scheduler.thing("o1").state is (State.GATED if shut else State.PENDING)


def test_a_stop_by_name_stops_gated_objects_too_and_nobody_elses() -> None:
    scheduler, told = scheduler_of()
    scheduler.stray("f1", "by-hand", State.RUNNING)
    told.clear()
    scheduler.stop_named((NAME,))
    assert [(event.id, event.end.cause) for event in told if type(event) is Finished] == [("o1", Cause.STOPPED_OUTSIDE)]
    assert scheduler.thing("f1").alive


def test_only_what_has_ended_is_purged_and_only_what_runs_ends_by_itself() -> None:
    scheduler, _ = scheduler_of()
    with pytest.raises(Impossible):
        scheduler.purges("o1")
    with pytest.raises(Impossible):
        scheduler.ends("o1", End(cause=Cause.EXIT))
    with pytest.raises(Impossible):
        scheduler.reruns("o1")
    scheduler.stop(scheduler.thing("o1"))
    scheduler.purges("o1")
    with pytest.raises(Impossible):
        scheduler.thing("o1")
