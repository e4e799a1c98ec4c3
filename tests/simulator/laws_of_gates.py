"""Stories for the laws of the gate: which object counts, and what an Open may be decided beside."""

from __future__ import annotations

from dispatch_core.plan import Cause
from dispatch_core.record import Attempt, Call, Kind, Mark, Outcome, Result
from dispatch_core.simulator.trace import Vanished
from tests.simulator.laws_of_launching import with_a_duplicate
from tests.simulator.story import Story, breaks, respects
from tests.world import UID

# --- lowest


def two_attempts_made_objects(s: Story) -> None:
    s.authorize(attempts=2)
    s.make("o1", 1)
    s.make("o2", 2)


@breaks("lowest")
def the_higher_attempt_is_chosen(s: Story) -> None:
    two_attempts_made_objects(s)
    s.choose("o2")


@breaks("lowest")
def it_is_chosen_from_an_incomplete_listing(s: Story) -> None:
    two_attempts_made_objects(s)
    s.look(complete=False)
    s.record_seen("o1")
    s.submission(1, canonical="o1")


@breaks("lowest")
def it_is_chosen_unseen(s: Story) -> None:
    two_attempts_made_objects(s)
    s.record_seen("o1")
    s.submission(1, canonical="o1")


@respects("lowest")
def the_lower_one_is_retired(s: Story) -> None:
    two_attempts_made_objects(s)
    s.record_seen("o1")
    s.object("o1", retired=True)
    s.choose("o2")


@respects("lowest")
def the_lower_one_is_somebody_elses(s: Story) -> None:
    s.stray("f1", f"dispatch-{UID}-1-1")
    s.record_seen("f1", foreign=True)
    s.authorize(attempts=2)
    s.make("o2", 2)
    s.choose("o2")


@respects("lowest")
def the_lower_one_is_not_listed(s: Story) -> None:
    two_attempts_made_objects(s)
    s.look("o2")
    s.record_seen("o2")
    s.submission(1, canonical="o2")
    s.look()


@respects("lowest")
def the_lower_one_is_of_an_earlier_submission(s: Story) -> None:
    s.run()
    s.finished("o1")
    s.spend("o1/1")
    s.authorize("o1/1", attempts=2)
    s.make("o2", 2)
    s.choose("o2")


# --- shut_until


def decides_to_open(s: Story, id: str = "o1", run: int = 1) -> None:
    s.look()
    s.decide(Kind.OPEN, id, run)


@breaks("shut_until")
def an_open_beside_an_outcome(s: Story) -> None:
    s.launch()
    s.look()
    s.decide(
        Kind.OPEN, "o1", outcome=Outcome(result=Result.CANCELLED, cause=None, at=s.host(), by="ann", message="enough")
    )


@breaks("shut_until")
def an_open_of_a_duplicate(s: Story) -> None:
    with_a_duplicate(s)
    decides_to_open(s, "o2")


@breaks("shut_until")
def an_open_with_another_call(s: Story) -> None:
    s.launch()
    s.look()
    hold = Call(kind=Kind.HOLD, object="o1", run=1, hold=1, committed=s.host(), deadline=s.host(20.0))
    open = Call(kind=Kind.OPEN, object="o1", run=1, hold=0, committed=s.host(), deadline=s.host(20.0))
    s.commit(calls=(hold, open))


@breaks("shut_until")
def a_duplicate_is_not_retired(s: Story) -> None:
    with_a_duplicate(s)
    s.finished("o2")
    decides_to_open(s)


@breaks("shut_until")
def a_retired_duplicate_is_alive(s: Story) -> None:
    with_a_duplicate(s)
    s.object("o2", retired=True)
    decides_to_open(s)


@breaks("shut_until")
def an_earlier_submission_is_not_over(s: Story) -> None:
    s.launch("o1")
    s.launch("o2", why="person ann")
    decides_to_open(s, "o2")


@breaks("shut_until")
def an_earlier_object_came_back_before_the_listing(s: Story) -> None:
    s.run("o1")
    s.finished("o1")
    s.launch("o2", why="person ann")
    s.reran("o1")
    decides_to_open(s, "o2")


@breaks("shut_until")
def an_earlier_run_has_an_intent(s: Story) -> None:
    s.run()
    s.finished("o1")
    s.intend("o1/1")
    s.reran("o1")
    decides_to_open(s, run=2)


@breaks("shut_until")
def an_earlier_run_was_not_judged(s: Story) -> None:
    s.run()
    s.finished("o1")
    s.reran("o1")
    decides_to_open(s, run=2)


@respects("shut_until")
def an_earlier_run_was_judged(s: Story) -> None:
    s.run()
    s.finished("o1")
    s.spend("o1/1")
    s.reran("o1")
    decides_to_open(s, run=2)


@respects("shut_until")
def a_retired_duplicate_has_ended(s: Story) -> None:
    with_a_duplicate(s)
    s.object("o2", retired=True)
    s.finished("o2")
    decides_to_open(s)


@respects("shut_until")
def an_earlier_object_came_back_after_the_listing(s: Story) -> None:
    s.run("o1")
    s.finished("o1")
    s.launch("o2", why="person ann")
    s.look()
    began = s.host()
    s.reran("o1")
    s.commit(
        calls=(
            *s.record.calls,
            Call(kind=Kind.OPEN, object="o2", run=1, hold=0, committed=began, deadline=s.host(20.0)),
        )
    )


@respects("shut_until")
def an_earlier_object_came_back_and_the_listing_hides_it(s: Story) -> None:
    s.run("o1")
    s.finished("o1")
    s.launch("o2", why="person ann")
    s.reran("o1")
    s.look("o2")
    s.look("o2")
    s.decide(Kind.OPEN, "o2")


@respects("shut_until")
def a_person_said_that_it_is_gone(s: Story) -> None:
    s.launch("o1")
    s.object("o1", gone=s.host())
    s.launch("o2", why="person ann")
    decides_to_open(s, "o2")


@respects("shut_until")
def somebody_elses_object_is_alive(s: Story) -> None:
    s.launch()
    s.stray("f1")
    s.record_seen("f1", foreign=True)
    decides_to_open(s)


@respects("shut_until", "gone_is_gone")
def what_was_intended_when_it_had_vanished_keeps_no_gate_shut(s: Story) -> None:
    s.run()
    s.tell(Vanished(s.now, "o1", True))
    s.intend("o1/1", Cause.VANISHED)
    s.reran("o1")
    decides_to_open(s, run=2)


# --- seen_whole


def sees_a_part(s: Story) -> None:
    s.look()
    s.look(complete=False)


@breaks("seen_whole")
def the_last_two_listings_showed_a_part(s: Story) -> None:
    s.cancel()
    sees_a_part(s)
    s.look(complete=False)
    s.commit(settled=True, late=True)


@breaks("seen_whole")
def the_job_is_launched_on_a_part(s: Story) -> None:
    sees_a_part(s)
    s.authorize()


@breaks("seen_whole")
def one_more_attempt_is_made_on_a_part(s: Story) -> None:
    s.authorize()
    sees_a_part(s)
    rows = s.record.submissions[0].attempts
    s.submission(1, attempts=(*rows, Attempt(number=2, committed=s.host(), deadline=s.host(20.0))))


@breaks("seen_whole")
def the_gate_is_opened_on_a_part(s: Story) -> None:
    s.launch()
    s.look(complete=False)
    s.decide(Kind.OPEN, "o1")


@breaks("seen_whole")
def a_duplicate_is_retired_on_a_part(s: Story) -> None:
    with_a_duplicate(s)
    sees_a_part(s)
    s.object("o2", retired=True)


@breaks("seen_whole")
def an_absence_is_counted_on_a_part(s: Story) -> None:
    s.run()
    s.look()
    s.look(complete=False)
    s.object("o1", missing=Mark(first=s.host()))


@breaks("seen_whole")
def an_attempt_without_an_object_is_counted_on_a_part(s: Story) -> None:
    s.authorize()
    s.look(complete=False)
    s.attempt(missing=Mark(first=s.host()))


@breaks("seen_whole")
def an_object_has_vanished_from_a_part(s: Story) -> None:
    s.run()
    s.tell(Vanished(s.now, "o1", True))
    sees_a_part(s)
    s.intend("o1/1", Cause.VANISHED)


@breaks("seen_whole")
def a_part_shows_nothing_left(s: Story) -> None:
    s.cancel()
    s.look(complete=False)
    s.commit(clear=Mark(first=s.host()))


@breaks("seen_whole")
def the_record_is_settled_on_a_part(s: Story) -> None:
    s.cancel()
    sees_a_part(s)
    s.commit(settled=True)


@respects("seen_whole")
def what_was_decided_on_all_of_it_lands_late(s: Story) -> None:
    s.cancel()
    sees_a_part(s)
    s.commit(settled=True, late=True)


@respects("seen_whole")
def a_second_listing_shows_all_of_it(s: Story) -> None:
    s.run()
    s.look()
    first = s.host()
    s.object("o1", missing=Mark(first=first))
    s.look(complete=False)
    s.look()
    s.object("o1", missing=Mark(first=first, second=s.host()))


@respects("seen_whole")
def what_is_seen_may_be_stopped(s: Story) -> None:
    s.run()
    s.cancel()
    sees_a_part(s)
    s.decide(Kind.STOP, "o1")


@respects("seen_whole")
def what_landed_after_settlement_is_retired_at_sight(s: Story) -> None:
    s.authorize()
    s.cancel()
    s.settle()
    s.make("o1", beyond=True)
    sees_a_part(s)
    s.record_seen("o1")
    s.object("o1", retired=True)
