"""Stories for the laws of the end: what is called over is over, and nothing is left."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from dispatch_core.plan import Cause
from dispatch_core.reasons import Reason
from dispatch_core.record import Answer, Hold, Kind, Reply, Result, Wait
from dispatch_core.simulator.trace import Slipped, Stopped, Vanished
from tests.simulator.story import COMPLETED, Story, breaks, respects
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
    s.tell(Slipped(s.now, "o1", False))
    s.started("o1")
    s.outcome(Result.FAILED, Cause.EXIT)


# --- accounted_for


def cancelled(s: Story) -> None:
    s.launch()
    s.cancel()


@breaks("accounted_for")
def it_is_settled_and_something_is_alive(s: Story) -> None:
    cancelled(s)
    s.settle()


@breaks("accounted_for")
def it_is_settled_and_what_came_late_was_seen(s: Story) -> None:
    s.authorize()
    s.make("o1", beyond=True)
    s.cancel()
    s.settle()


@breaks("accounted_for")
def it_is_settled_and_an_object_never_seen_is_alive(s: Story) -> None:
    s.authorize()
    s.cancel()
    s.look()
    s.make("o1")
    s.commit(settled=True)


@respects("accounted_for", "nothing_left")
def all_has_ended(s: Story) -> None:
    cancelled(s)
    s.finished("o1")
    s.settle()
    s.ask_at_the_end("nothing_left")


@respects("accounted_for")
def it_came_back_after_the_listing(s: Story) -> None:
    cancelled(s)
    s.finished("o1")
    s.look()
    s.reran("o1")
    s.commit(settled=True)


@respects("accounted_for")
def what_comes_late_came_after_the_listing(s: Story) -> None:
    s.authorize()
    s.cancel()
    s.look()
    s.make("o1", beyond=True)
    s.commit(settled=True)


def somebody_elses_is_alive(s: Story, policy: str) -> None:
    s.commit(plan=replace(s.record.plan, foreign=policy))
    s.stray("f1")
    s.record_seen("f1", foreign=True)
    s.cancel()


@breaks("accounted_for")
def nobody_disposed_of_a_stray(s: Story) -> None:
    somebody_elses_is_alive(s, "report")
    s.settle()


@respects("accounted_for")
def a_person_disposed_of_a_stray(s: Story) -> None:
    somebody_elses_is_alive(s, "report")
    s.object("f1", disposed=True)
    s.settle()


@respects("accounted_for")
def strays_are_ignored(s: Story) -> None:
    somebody_elses_is_alive(s, "ignore")
    s.settle()


def an_attempt_made_nothing(s: Story, answer: Answer | None, *, policy: str = "manual") -> None:
    s.commit(plan=replace(s.record.plan, unmatched=policy))
    s.authorize()
    s.attempt(reply=Reply(answer=answer) if answer is not None else None)
    s.cancel()


@breaks("accounted_for")
def nobody_disposed_of_an_attempt(s: Story) -> None:
    an_attempt_made_nothing(s, None)
    s.settle()


@breaks("accounted_for")
def nobody_disposed_of_an_attempt_that_is_said_to_have_made_an_object(s: Story) -> None:
    an_attempt_made_nothing(s, Answer.DONE)
    s.settle()


def _accounted(answer: Answer | None, policy: str = "manual", *, disposed: bool = False) -> Callable[[Story], None]:
    def accounted(s: Story) -> None:
        an_attempt_made_nothing(s, answer, policy=policy)
        if disposed:
            s.attempt(disposed=True)
        s.settle()

    return accounted


respects("accounted_for")(_accounted(Answer.REFUSED))
respects("accounted_for")(_accounted(Answer.LATE))
respects("accounted_for")(_accounted(Answer.UNKNOWN, disposed=True))
respects("accounted_for")(_accounted(Answer.UNKNOWN, policy="expire"))


# --- after settlement


@breaks("nothing_runs_after")
def it_starts_after_settlement(s: Story) -> None:
    s.launch()
    s.open()
    s.finished("o1")
    s.cancel()
    s.settle()
    s.started("o1")


@respects("nothing_runs_after")
def an_admin_starts_it_after_settlement(s: Story) -> None:
    cancelled(s)
    s.finished("o1")
    s.settle()
    s.reran("o1", open=True)
    s.opened("o1", 2)
    s.started("o1", 2)


@breaks("lands_only_late")
def a_start_lands_after_settlement_in_time(s: Story) -> None:
    s.authorize()
    s.cancel()
    s.settle()
    s.make("o1")


@breaks("lands_only_late")
def a_requeue_lands_after_settlement(s: Story) -> None:
    s.run()
    s.finished("o1")
    s.spend("o1/1")
    s.outcome(Result.FAILED, Cause.EXIT)
    s.settle()
    s.reran("o1", by=s.call(Kind.REQUEUE, "o1"))


@respects("lands_only_late")
def a_start_lands_after_settlement_that_had_expired(s: Story) -> None:
    s.authorize()
    s.cancel()
    s.settle()
    s.make("o1", beyond=True)


@respects("lands_only_late")
def somebody_else_makes_an_object_after_settlement(s: Story) -> None:
    cancelled(s)
    s.finished("o1")
    s.settle()
    s.stray("f1")
    s.reran("o1")


# --- nobody_breaks


def _stops(why: str, error: BaseException | None) -> Callable[[Story], None]:
    return lambda s: s.tell(Stopped(s.now, "a", why, error))


breaks("nobody_breaks")(_stops("KeyError", KeyError("o1")))
breaks("nobody_breaks")(_stops("Conflict", ValueError("it was refused")))
respects("nobody_breaks")(_stops("StoreUnavailable", OSError("the store is down")))
respects("nobody_breaks")(_stops("crash", None))


# --- at the end


def at_rest(s: Story, reason: Reason | None) -> None:
    s.launch()
    s.commit(wait=Wait(reason=reason, text="", since=EPOCH) if reason is not None else None)


@breaks("says_so")
def it_rests_and_says_nothing(s: Story) -> None:
    at_rest(s, None)
    s.ask_at_the_end("says_so")


@breaks("says_so")
def it_rests_and_says_that_it_is_held_and_nobody_holds_it(s: Story) -> None:
    at_rest(s, Reason.HELD)
    s.ask_at_the_end("says_so")


@respects("says_so")
def it_rests_and_waits_for_a_person(s: Story) -> None:
    at_rest(s, Reason.GONE)
    s.ask_at_the_end("says_so")


@respects("says_so")
def it_rests_and_a_person_holds_it(s: Story) -> None:
    at_rest(s, Reason.HELD)
    s.commit(holds=(Hold(number=1, asked_by="ann", reason="wait"),))
    s.ask_at_the_end("says_so")


@breaks("nothing_left")
def something_is_left(s: Story) -> None:
    s.authorize()
    s.cancel()
    s.settle()
    s.make("o1", beyond=True)
    s.ask_at_the_end("nothing_left")
