"""Stories for the laws of calls: what is sent was committed, and changes nothing but what it names."""

from __future__ import annotations

from dispatch_core.record import Answer, Kind
from dispatch_core.simulator.trace import Reran
from tests.simulator.laws_of_launching import HOLD
from tests.simulator.story import Story, breaks, respects
from tests.world import UID

# --- no_open_after_cancel


@breaks("no_open_after_cancel")
def a_start_is_sent_after_the_cancel_was_read(s: Story) -> None:
    s.authorize()
    s.cancel()
    s.tell(s.start())


@breaks("no_open_after_cancel")
def a_release_is_sent_after_the_cancel_was_read(s: Story) -> None:
    s.launch()
    s.decide(Kind.RELEASE, "o1")
    s.cancel()
    s.send(Kind.RELEASE, "o1")


@respects("no_open_after_cancel", "carries_its_name")
def the_job_is_stopped_after_its_cancel(s: Story) -> None:
    s.launch()
    s.cancel()
    s.decide(Kind.STOP_JOB, None, 0)
    s.send(Kind.STOP_JOB, None, 0)


@respects("no_open_after_cancel", "committed_first")
def the_cancel_was_committed_and_not_yet_read(s: Story) -> None:
    s.authorize()
    read = s.record.revision
    s.cancel()
    s.tell(s.start(read=read))


# --- committed_first


@breaks("committed_first")
def a_hold_is_sent_that_nobody_committed(s: Story) -> None:
    s.launch()
    s.send(Kind.HOLD, "o1")


@breaks("committed_first")
def a_hold_is_sent_with_a_later_deadline(s: Story) -> None:
    s.launch()
    s.decide(Kind.HOLD, "o1")
    s.send(Kind.HOLD, "o1", deadline=s.host(60.0))


@breaks("committed_first")
def a_start_is_sent_twice(s: Story) -> None:
    s.authorize()
    s.tell(s.start())
    s.tell(s.start())


@respects("committed_first")
def a_repetition_is_committed_as_well(s: Story) -> None:
    s.launch()
    for count in (1, 2):
        s.decide(Kind.HOLD, "o1", count=count)
        s.send(Kind.HOLD, "o1")


# --- carries_its_name


@breaks("carries_its_name")
def a_start_would_make_an_object_of_another_attempt(s: Story) -> None:
    s.authorize(attempts=2)
    s.tell(s.start(1, 2)._replace(name=f"dispatch-{UID}-1-1"))


@breaks("carries_its_name")
def the_stop_of_the_job_leaves_an_attempt_out(s: Story) -> None:
    s.authorize(attempts=2)
    s.cancel()
    s.decide(Kind.STOP_JOB, None, 0)
    s.send(Kind.STOP_JOB, None, 0, names=(f"dispatch-{UID}-1-1",))


@breaks("carries_its_name")
def the_job_is_stopped_without_an_outcome(s: Story) -> None:
    s.launch()
    s.decide(Kind.STOP_JOB, None, 0)
    s.send(Kind.STOP_JOB, None, 0)


@respects("carries_its_name")
def a_start_makes_its_own_object(s: Story) -> None:
    s.authorize(attempts=2)
    s.tell(s.start(1, 2))


# --- read_again


@breaks("read_again")
def an_open_is_sent_though_the_record_has_moved(s: Story) -> None:
    s.launch()
    s.look()
    s.decide(Kind.OPEN, "o1")
    s.commit(actor="person", holds=(HOLD,))
    s.read()
    s.send(Kind.OPEN, "o1")


@breaks("read_again")
def an_open_is_sent_from_the_read_before_its_commit(s: Story) -> None:
    s.launch()
    s.look()
    s.decide(Kind.OPEN, "o1")
    s.send(Kind.OPEN, "o1", read=s.record.revision - 1)


@respects("read_again")
def a_repeated_open_is_committed_again(s: Story) -> None:
    s.launch()
    for count in (1, 2):
        s.look()
        s.decide(Kind.OPEN, "o1", count=count)
        s.send(Kind.OPEN, "o1")


# --- as_named


@breaks("as_named")
def a_hold_takes_effect_after_it_had_expired(s: Story) -> None:
    s.launch()
    s.arrives(s.call(Kind.HOLD, "o1"), beyond=True)


@breaks("as_named")
def a_stop_meets_somebody_elses_object(s: Story) -> None:
    s.launch()
    s.arrives(s.call(Kind.STOP, "o1"), name="somebody-elses")


@breaks("as_named")
def a_stop_meets_the_next_run(s: Story) -> None:
    s.launch()
    s.arrives(s.call(Kind.STOP, "o1"), run=2)


@respects("as_named")
def late_calls_are_refused_and_a_late_start_is_not(s: Story) -> None:
    s.launch()
    s.arrives(s.call(Kind.HOLD, "o1"), beyond=True, answer=Answer.LATE)
    s.arrives(s.call(Kind.STOP, "o1"), run=2, answer=Answer.REFUSED)
    s.arrives(s.start(), beyond=True)
    s.arrives(s.call(Kind.STOP_JOB, None, 0), name="whatever")


# --- comes_back_gated, requeued_for_a_unit


def one_run_has_ended(s: Story) -> None:
    s.run()
    s.finished("o1")


@breaks("comes_back_gated")
def a_requeued_object_comes_back_open(s: Story) -> None:
    one_run_has_ended(s)
    s.spend("o1/1")
    s.reran("o1", open=True, by=s.call(Kind.REQUEUE, "o1"))


@breaks("requeued_for_a_unit")
def a_requeue_that_nothing_was_spent_on(s: Story) -> None:
    one_run_has_ended(s)
    s.reran("o1", by=s.call(Kind.REQUEUE, "o1"))


@breaks("requeued_for_a_unit")
def a_requeue_for_a_rule_that_fails_the_job(s: Story) -> None:
    one_run_has_ended(s)
    s.spend("o1/1", rule="slow")
    s.reran("o1", by=s.call(Kind.REQUEUE, "o1"))


@respects("comes_back_gated", "requeued_for_a_unit", "within_budget")
def a_requeue_that_was_paid_for_comes_back_gated(s: Story) -> None:
    one_run_has_ended(s)
    s.spend("o1/1")
    s.reran("o1", by=s.call(Kind.REQUEUE, "o1"))
    s.open("o1", 2)
    s.started("o1", 2)


@respects("comes_back_gated", "requeued_for_a_unit", "within_budget")
def the_scheduler_runs_it_again_on_its_own(s: Story) -> None:
    s.run()
    s.tell(Reran(s.now, "o1", 2, True, None))
    s.opened("o1", 2)
    s.started("o1", 2)


@breaks("within_budget")
def a_second_run_is_opened_that_no_rule_launches(s: Story) -> None:
    one_run_has_ended(s)
    s.spend("o1/1", rule="slow")
    s.reran("o1")
    s.open("o1", 2)
    s.started("o1", 2)
