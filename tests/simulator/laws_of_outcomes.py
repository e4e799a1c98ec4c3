"""Stories for the laws of ends and outcomes: what the record says of a run is what the scheduler's history says."""

from __future__ import annotations

from dispatch_core.plan import NO_RULE, Cause, End
from dispatch_core.reasons import Reason
from dispatch_core.record import Answer, Reply, Result, State, Wait
from dispatch_core.simulator.trace import Ending, Slipped, Vanished
from tests.simulator.story import COMPLETED, EXIT, Story, breaks, respects
from tests.world import EPOCH

# --- gone_is_gone


@breaks("gone_is_gone")
def an_intent_for_what_vanished_and_is_there(s: Story) -> None:
    s.launch()
    s.finished("o1")
    s.intend("o1/1", Cause.VANISHED)


@breaks("gone_is_gone")
def an_outcome_of_what_vanished_and_is_there(s: Story) -> None:
    s.launch()
    s.outcome(Result.FAILED, Cause.VANISHED)


@breaks("gone_is_gone")
def a_unit_for_a_submission_that_has_an_object(s: Story) -> None:
    s.authorize()
    s.make("o1")
    s.look()
    s.spend("submission/1")


@breaks("gone_is_gone")
def an_outcome_of_a_submission_that_has_an_object(s: Story) -> None:
    s.authorize()
    s.make("o1")
    s.look()
    s.outcome(Result.FAILED, Cause.NEVER_CREATED)


@respects("gone_is_gone", "true_outcome")
def it_vanished(s: Story) -> None:
    s.launch()
    s.tell(Vanished(s.now, "o1", True))
    s.intend("o1/1", Cause.VANISHED)
    s.outcome(Result.FAILED, Cause.VANISHED)


@respects("gone_is_gone")
def its_object_came_beyond_the_bound(s: Story) -> None:
    s.authorize()
    s.make("o1", beyond=True)
    s.look()
    s.spend("submission/1")


@respects("gone_is_gone")
def its_object_came_after_the_listing(s: Story) -> None:
    s.authorize()
    s.look()
    s.make("o1")
    s.outcome(Result.FAILED, Cause.NEVER_CREATED)


@respects("gone_is_gone")
def its_object_has_ended_and_is_recorded(s: Story) -> None:
    s.authorize()
    s.make("o1")
    s.finished("o1")
    s.record_seen("o1")
    s.look()
    s.spend("submission/1")


@respects("gone_is_gone")
def a_person_disposed_of_the_attempt(s: Story) -> None:
    s.authorize()
    s.make("o1")
    s.attempt(disposed=True)
    s.look()
    s.spend("submission/1")


def is_refused(s: Story, *, recorded: bool = True) -> None:
    """The Start is refused; so the record says, if its sender heard of it."""
    s.authorize()
    sent = s.start()
    s.tell(sent)
    s.arrives(sent, answer=Answer.REFUSED)
    s.attempt(reply=Reply(answer=Answer.REFUSED if recorded else Answer.UNKNOWN))


@breaks("gone_is_gone")
def a_refused_start_is_delivered_again_and_shown(s: Story) -> None:
    is_refused(s)
    s.make("o1")
    s.look()
    s.intend("submission/1", Cause.REFUSED)


@breaks("gone_is_gone")
def what_a_start_delivered_again_made_is_hidden_and_nobody_heard_that_it_was_refused(s: Story) -> None:
    is_refused(s, recorded=False)
    s.make("o1")
    s.look("nothing")
    s.spend("submission/1")


@breaks("gone_is_gone")
def what_was_made_before_the_refusal_is_hidden(s: Story) -> None:
    s.authorize()
    sent = s.start()
    s.make("o1")
    s.tell(sent)
    s.arrives(sent, answer=Answer.REFUSED)
    s.attempt(reply=Reply(answer=Answer.REFUSED))
    s.look("nothing")
    s.intend("submission/1", Cause.REFUSED)


@breaks("gone_is_gone")
def an_earlier_listing_hid_what_a_refused_start_made(s: Story) -> None:
    is_refused(s)
    s.make("o1")
    s.look("nothing")
    s.look()
    s.intend("submission/1", Cause.REFUSED)


@respects("gone_is_gone")
def what_a_refused_start_made_is_hidden(s: Story) -> None:
    is_refused(s)
    s.make("o1")
    s.look("nothing")
    s.intend("submission/1", Cause.REFUSED)


# --- true_outcome


@breaks("true_outcome")
def it_succeeded_and_did_not_complete(s: Story) -> None:
    s.run()
    s.finished("o1")
    s.outcome(Result.SUCCEEDED)


@breaks("true_outcome")
def it_failed_by_an_end_that_it_did_not_have(s: Story) -> None:
    s.run()
    s.finished("o1")
    s.outcome(Result.FAILED, Cause.SIGNAL)


def requeued(s: Story, first: End, second: End) -> None:
    """Two runs of one object, and their ends."""
    s.run()
    s.finished("o1", first)
    s.spend("o1/1")
    s.reran("o1")
    s.open("o1", 2)
    s.started("o1", 2)
    s.finished("o1", second, 2)
    s.record_seen("o1")


@breaks("true_outcome")
def it_failed_by_the_end_of_a_run_that_was_followed(s: Story) -> None:
    requeued(s, EXIT, End(cause=Cause.SIGNAL))
    s.outcome(Result.FAILED, Cause.EXIT)


@breaks("true_outcome")
def it_succeeded_by_a_run_that_was_followed(s: Story) -> None:
    requeued(s, COMPLETED, EXIT)
    s.outcome(Result.SUCCEEDED)


@respects("true_outcome")
def it_failed_by_its_newest_run(s: Story) -> None:
    requeued(s, EXIT, End(cause=Cause.SIGNAL))
    s.outcome(Result.FAILED, Cause.SIGNAL)


@respects("true_outcome")
def it_failed_by_a_run_that_nothing_was_spent_on(s: Story) -> None:
    s.run()
    s.finished("o1")
    s.reran("o1", open=True)
    s.opened("o1", 2)
    s.started("o1", 2)
    s.finished("o1", End(cause=Cause.SIGNAL), 2)
    s.record_seen("o1")
    s.outcome(Result.FAILED, Cause.EXIT)


@breaks("true_outcome")
def it_succeeded_without_a_run(s: Story) -> None:
    s.authorize()
    s.outcome(Result.SUCCEEDED)


@breaks("true_outcome", also=("gone_is_gone",))
def it_failed_while_it_ran(s: Story) -> None:
    s.run()
    s.outcome(Result.FAILED, Cause.VANISHED)


@breaks("true_outcome")
def a_rule_that_is_not_timed_fails_what_runs(s: Story) -> None:
    s.run()
    s.outcome(Result.FAILED, Cause.DEADLINE, by="again")


@breaks("true_outcome")
def an_earlier_run_ends_the_job_beside_a_run_that_we_opened(s: Story) -> None:
    s.run()
    s.finished("o1")
    s.reran("o1")
    s.spend("o1/1")
    s.open("o1", 2)
    s.started("o1", 2)
    s.outcome(Result.FAILED, Cause.EXIT)


@breaks("true_outcome")
def it_is_cancelled_by_a_rule(s: Story) -> None:
    s.launch()
    s.outcome(Result.CANCELLED)


@breaks("true_outcome")
def it_is_resolved_and_nobody_had_asked(s: Story) -> None:
    s.run()
    s.outcome(Result.SUCCEEDED, by="ann")


@respects("true_outcome")
def it_completed(s: Story) -> None:
    s.run()
    s.finished("o1", COMPLETED)
    s.outcome(Result.SUCCEEDED)


@respects("true_outcome")
def it_is_cancelled_while_it_runs(s: Story) -> None:
    s.run()
    s.cancel()


@respects("true_outcome")
def it_is_resolved_when_a_person_was_asked(s: Story) -> None:
    s.run()
    s.finished("o1")
    s.commit(wait=Wait(reason=Reason.HELD_BY_RULE, text="", since=EPOCH, object="o1"))
    s.outcome(Result.SUCCEEDED, by="ann")


@respects("true_outcome")
def an_earlier_run_ends_the_job_beside_one_that_the_scheduler_began(s: Story) -> None:
    s.run()
    s.finished("o1")
    s.reran("o1", open=True)
    s.opened("o1", 2)
    s.started("o1", 2)
    s.outcome(Result.FAILED, Cause.EXIT)


@respects("true_outcome")
def it_ended_and_a_controller_takes_it_for_running(s: Story) -> None:
    s.run()
    s.finished("o1")
    s.tell(Slipped(s.now, "o1", False, State.PENDING))
    s.started("o1")
    s.outcome(Result.FAILED, Cause.EXIT)


# --- refused_was_refused


@breaks("refused_was_refused")
def a_late_start_is_taken_for_refused(s: Story) -> None:
    s.authorize()
    s.attempt(reply=Reply(answer=Answer.LATE))
    s.intend("submission/1", Cause.REFUSED)


@breaks("refused_was_refused")
def the_job_failed_as_refused_and_was_not(s: Story) -> None:
    s.authorize()
    s.outcome(Result.FAILED, Cause.REFUSED)


@respects("refused_was_refused")
def it_was_refused(s: Story) -> None:
    s.authorize()
    s.attempt(reply=Reply(answer=Answer.REFUSED, text="no such partition"))
    s.intend("submission/1", Cause.REFUSED)
    s.outcome(Result.FAILED, Cause.REFUSED)


# --- unknown_waits


@breaks("unknown_waits")
def an_end_that_nobody_knows_is_a_failure(s: Story) -> None:
    s.run()
    s.finished("o1", End(cause=Cause.UNRECOGNIZED))
    s.record_seen("o1")
    s.outcome(Result.FAILED, Cause.UNRECOGNIZED, by=NO_RULE)


@respects("unknown_waits")
def a_rule_says_what_an_unknown_end_is(s: Story) -> None:
    s.run()
    s.finished("o1", End(cause=Cause.UNRECOGNIZED))
    s.record_seen("o1")
    s.outcome(Result.FAILED, Cause.UNRECOGNIZED, by="again")


# --- success_stands


@breaks("success_stands")
def it_completed_and_has_failed(s: Story) -> None:
    s.run()
    s.finished("o1", COMPLETED)
    s.record_seen("o1")
    s.outcome(Result.FAILED, Cause.UNRECOGNIZED)


@breaks("success_stands")
def it_completed_and_is_launched_again(s: Story) -> None:
    s.run()
    s.finished("o1", COMPLETED)
    s.record_seen("o1")
    s.spend("o1/1")
    s.authorize("o1/1")


@respects("success_stands")
def it_failed_and_is_launched_again(s: Story) -> None:
    s.run()
    s.finished("o1")
    s.record_seen("o1")
    s.spend("o1/1")
    s.authorize("o1/1")


@respects("success_stands")
def a_person_launches_again_what_completed(s: Story) -> None:
    s.run()
    s.finished("o1", COMPLETED)
    s.record_seen("o1")
    s.authorize("person ann")


# --- launched_for_its_end


@breaks("launched_for_its_end")
def it_vanished_and_an_older_intent_is_carried_out(s: Story) -> None:
    s.run()
    s.record_seen("o1")
    s.intend("o1/1", None, rule="slow")
    s.tell(Vanished(s.now, "o1", True))
    s.authorize("o1/1")


@respects("launched_for_its_end")
def it_vanished_and_is_launched_again_for_that(s: Story) -> None:
    s.run()
    s.record_seen("o1")
    s.tell(Vanished(s.now, "o1", True))
    s.intend("o1/1", Cause.VANISHED)
    s.authorize("o1/1")


@respects("launched_for_its_end")
def it_is_launched_again_while_it_is_ending(s: Story) -> None:
    s.run()
    s.tell(Ending(s.now, "o1", 1, None, ""))
    s.record_seen("o1")
    s.intend("o1/1")
    s.authorize("o1/1")
