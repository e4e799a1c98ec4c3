"""Stories for the laws of the end: what is called over is over, and nothing is left."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from dispatch_core.plan import Cause
from dispatch_core.reasons import Reason
from dispatch_core.record import Answer, Hold, Kind, Reply, Result, Wait
from dispatch_core.simulator.trace import Hindered, Stopped
from tests.simulator.story import Story, breaks, respects
from tests.world import EPOCH

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


def came_back(s: Story, *, shown: bool = False, again: bool = False) -> None:
    """It has ended, is recorded so, and is rerun by the scheduler; the last listing before the settlement hides it."""
    cancelled(s)
    s.finished("o1")
    s.look()
    s.record_seen("o1")
    s.reran("o1")
    if shown:
        s.look()
    if again:
        s.record_seen("o1")
    s.look("nothing")
    s.commit(settled=True)


@breaks("accounted_for")
def it_came_back_and_was_shown_before_it_was_hidden(s: Story) -> None:
    came_back(s, shown=True)


@breaks("accounted_for")
def it_came_back_and_is_recorded_alive(s: Story) -> None:
    came_back(s, again=True)


@breaks("accounted_for")
def it_is_recorded_as_ended_and_our_requeue_brought_it_back(s: Story) -> None:
    s.run()
    s.finished("o1")
    s.record_seen("o1")
    s.spend("o1/1")
    s.outcome(Result.FAILED, Cause.EXIT)
    s.reran("o1", by=s.call(Kind.REQUEUE, "o1"))
    s.look("nothing")
    s.commit(settled=True)


@respects("accounted_for")
def it_came_back_and_was_not_shown_since(s: Story) -> None:
    came_back(s)


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


# --- stopped_once_more


def requeued_and_over(s: Story, *, later: float, answer: Answer | None = Answer.DONE) -> None:
    """A requeue was committed, the job failed, and so many seconds later it is stopped, and answered so."""
    s.run()
    s.finished("o1")
    s.spend("o1/1", rule="again")
    s.decide(Kind.REQUEUE, "o1")
    s.outcome(Result.FAILED, Cause.EXIT)
    s.now += later
    s.look()
    s.decide(Kind.STOP_JOB, None, 0)
    sent = s.send(Kind.STOP_JOB, None, 0)
    if answer is not None:
        s.arrives(sent, answer=answer)
    s.settle()


@breaks("stopped_once_more")
def it_was_stopped_and_a_requeue_could_still_land(s: Story) -> None:
    requeued_and_over(s, later=19.0)


@breaks("stopped_once_more")
def its_last_stop_was_not_answered(s: Story) -> None:
    requeued_and_over(s, later=60.0, answer=None)


@breaks("stopped_once_more")
def its_last_stop_came_too_late(s: Story) -> None:
    requeued_and_over(s, later=60.0, answer=Answer.LATE)


@breaks("stopped_once_more")
def it_was_requeued_and_never_stopped(s: Story) -> None:
    s.run()
    s.finished("o1")
    s.spend("o1/1")
    s.decide(Kind.REQUEUE, "o1")
    s.outcome(Result.FAILED, Cause.EXIT)
    s.now += 60.0
    s.settle()


@respects("stopped_once_more")
def it_was_stopped_once_more(s: Story) -> None:
    requeued_and_over(s, later=22.0)


@respects("stopped_once_more")
def the_stop_of_the_job_was_refused(s: Story) -> None:
    requeued_and_over(s, later=60.0, answer=Answer.REFUSED)


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
breaks("nobody_breaks")(_stops("StoreUnavailable", OSError("nobody knows why")))
respects("nobody_breaks")(_stops("crash", None))


def gives_up(s: Story, actor: str = "a", *, asked_as: str = "", later: float = 0.0) -> None:
    """The store does not answer it, and it ends."""
    at = s.now
    s.tell(Hindered(at, asked_as or actor, "the store is down"))
    s.now = at + later
    s.tell(Stopped(s.now, actor, "StoreUnavailable", OSError("the store is down")))


@breaks("nobody_breaks")
def an_outage_is_not_waited_out(s: Story) -> None:
    s.read()
    gives_up(s)


@breaks("nobody_breaks")
def the_store_was_out_earlier(s: Story) -> None:
    gives_up(s, later=5.0)


@breaks("nobody_breaks")
def the_store_was_out_for_another(s: Story) -> None:
    gives_up(s, asked_as="sweeper")


@respects("nobody_breaks")
def the_store_is_out_when_it_begins(s: Story) -> None:
    gives_up(s)


@respects("nobody_breaks")
def the_store_is_out_when_it_begins_again(s: Story) -> None:
    s.read()
    s.tell(Stopped(s.now, "a", "left"))
    gives_up(s)


@respects("nobody_breaks")
def the_store_is_out_when_it_begins_again_and_its_former_self_still_leaves(s: Story) -> None:
    s.read()
    s.tell(Stopped(s.now, "a", "left"))
    s.read(former=True)
    gives_up(s)


@respects("nobody_breaks")
def the_store_is_out_when_the_janitor_looks_first(s: Story) -> None:
    gives_up(s, "janitor", asked_as="sweeper")


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
