"""Stories for the laws of the record: each broken, and each nearly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from dispatch_core.plan import NEVER_RAN, Cause
from dispatch_core.reasons import Reason
from dispatch_core.record import Answer, Hold, Kind, Mark, Reply, Result, State, Wait
from dispatch_core.simulator.trace import Acknowledged, Ending, Refused, Vanished
from tests.simulator.laws_of_launching import with_a_duplicate
from tests.simulator.story import COMPLETED, Story, breaks, respects
from tests.world import EPOCH

# --- commits


@breaks("one_after_the_other")
def a_revision_is_left_out(s: Story) -> None:
    s.commit(revision=3)


@breaks("read_first")
def a_commit_onto_what_was_never_read(s: Story) -> None:
    s.commit(actor="b")
    s.commit(actor="a", read=False)


@respects("one_after_the_other", "read_first", "displaced")
def two_commits_of_one_who_read_once(s: Story) -> None:
    s.commit()
    s.commit(read=False)


@breaks("displaced")
def a_displaced_supervisor_commits(s: Story) -> None:
    s.commit(displaced=True)


@breaks("leased")
def a_decision_leaves_the_lease_out(s: Story) -> None:
    s.commit(leased=False)


@breaks("leased")
def evidence_carries_the_lease(s: Story) -> None:
    s.commit(by="evidence of a")


@respects("leased")
def evidence_carries_no_lease(s: Story) -> None:
    s.commit(by="evidence of a", leased=False)


@respects("leased")
def nobody_was_given_a_lease(s: Story) -> None:
    s.commit(leased=False, holder=False)


@breaks("acknowledged")
def an_acknowledged_commit_is_another(s: Story) -> None:
    s.tell(Acknowledged(s.now, "a", 1, "c9"))


@breaks("acknowledged")
def an_acknowledged_commit_is_not_there(s: Story) -> None:
    s.tell(Acknowledged(s.now, "a", 2, "c2"))


@respects("acknowledged")
def an_acknowledged_commit_is_there_and_not_the_newest(s: Story) -> None:
    s.commit()
    s.commit()
    s.tell(Acknowledged(s.now, "a", 2, "c2"))


def _told(why: str, commit: str) -> Callable[[Story], None]:
    def told(s: Story) -> None:
        s.commit()
        s.tell(Refused(s.now, "a", 1, commit, why))

    return told


breaks("refused")(_told("Conflict", "c2"))
breaks("refused")(_told("StoreUnavailable", "c2"))
respects("refused")(_told("CommitUnknown", "c2"))
respects("refused")(_told("Conflict", "c9"))


# --- carried_out, intents_are_paid_for


def asked_about(s: Story, reason: Reason) -> None:
    s.run()
    s.finished("o1")
    s.intend("o1/1")
    s.commit(wait=Wait(reason=reason, text="", since=EPOCH, object="o1"))


@breaks("carried_out")
def a_person_is_asked_about_what_is_intended(s: Story) -> None:
    asked_about(s, Reason.HELD_BY_RULE)


@respects("carried_out", "intents_are_paid_for", "spent_on_an_end")
def an_intent_waits_for_its_delay(s: Story) -> None:
    asked_about(s, Reason.AWAITING_DELAY)


@respects("carried_out")
def a_person_is_asked_about_what_vanished(s: Story) -> None:
    asked_about(s, Reason.VANISHED)


@breaks("intents_are_paid_for")
def an_intent_that_nothing_was_spent_on(s: Story) -> None:
    s.run()
    s.finished("o1")
    s.commit(intents=(s.intent("o1/1"),))


# --- final, stays_settled


def cancelled(s: Story) -> None:
    s.launch()
    s.decide(Kind.HOLD, "o1")
    s.cancel()


@breaks("final")
def the_outcome_is_changed(s: Story) -> None:
    cancelled(s)
    s.finished("o1", COMPLETED)
    s.outcome(Result.SUCCEEDED, by="dispatch:default")


@breaks("final")
def an_outcome_is_taken_back(s: Story) -> None:
    cancelled(s)
    s.commit(outcome=None)


@breaks("final")
def a_submission_is_authorized_after_the_cancel(s: Story) -> None:
    cancelled(s)
    s.authorize("person ann")


@breaks("final")
def an_attempt_is_authorized_after_the_cancel(s: Story) -> None:
    cancelled(s)
    first = s.record.submissions[0].attempts[0]
    s.submission(1, attempts=(first, replace(first, number=2)))


@breaks("final")
def a_repeated_hold_is_decided_after_the_cancel(s: Story) -> None:
    cancelled(s)
    s.decide(Kind.HOLD, "o1", count=2)


@respects("final", "stops_only_what_it_may")
def after_the_cancel_it_is_stopped_and_its_end_is_recorded(s: Story) -> None:
    cancelled(s)
    s.decide(Kind.STOP, "o1")
    s.decide(Kind.STOP_JOB, None, 0)
    s.finished("o1")
    s.record_seen("o1")


@breaks("stays_settled")
def a_settled_record_is_opened_again(s: Story) -> None:
    s.cancel()
    s.settle()
    s.commit(settled=False)


@respects("stays_settled", "accounted_for")
def evidence_is_merged_into_a_settled_record(s: Story) -> None:
    s.cancel()
    s.settle()
    s.commit(clear=Mark(first=EPOCH))


# --- kept


def much_is_known(s: Story) -> None:
    """Two attempts, one of them late, two objects, one of them retired; an end, a call, a lifted hold, a unit."""
    with_a_duplicate(s)
    s.attempt(reply=Reply(answer=Answer.LATE))
    s.object("o2", retired=True)
    s.finished("o1")
    s.record_seen("o1", holds=(Hold(number=1, asked_by="ann", reason="wait", lifted=True),))
    s.spend("o1/1")
    s.decide(Kind.HOLD, "o1", count=2)


FORGOTTEN: dict[str, Callable[[Story], dict[str, Any]]] = {
    "a_submission": lambda s: {"submissions": (), "objects": s.record.objects},
    "an_attempt": lambda s: {
        "submissions": tuple(replace(row, attempts=row.attempts[:1]) for row in s.record.submissions)
    },
    "what_counts": lambda s: {"submissions": tuple(replace(row, canonical=None) for row in s.record.submissions)},
    "that_an_attempt_was_late": lambda s: {
        "submissions": tuple(
            replace(row, attempts=tuple(replace(attempt, reply=None) for attempt in row.attempts))
            for row in s.record.submissions
        )
    },
    "a_unit": lambda s: {"budget": ()},
    "a_call": lambda s: {"calls": ()},
    "a_repetition": lambda s: {"calls": tuple(replace(call, count=1) for call in s.record.calls)},
    "a_hold": lambda s: {"holds": ()},
    "that_a_hold_was_lifted": lambda s: {"holds": tuple(replace(hold, lifted=False) for hold in s.record.holds)},
    "an_object": lambda s: {"objects": s.record.objects[:1]},
    "that_it_is_retired": lambda s: {"objects": tuple(replace(row, retired=False) for row in s.record.objects)},
    "how_far_it_was": lambda s: {"objects": tuple(replace(row, state=State.GATED) for row in s.record.objects)},
    "an_end": lambda s: {"objects": tuple(replace(row, ends=()) for row in s.record.objects)},
}
"""What a record may not forget, and the record that has forgotten it."""


def _forgets(what: str) -> Callable[[Story], None]:
    def forgets(s: Story) -> None:
        much_is_known(s)
        s.commit(**FORGOTTEN[what](s))

    forgets.__name__ = f"it_forgets_{what}"
    return forgets


for _what in FORGOTTEN:
    breaks("kept")(_forgets(_what))


@respects("kept")
def more_is_known(s: Story) -> None:
    much_is_known(s)
    s.reran("o1")
    s.record_seen("o1")
    s.decide(Kind.HOLD, "o1", count=3)
    s.object("o1", missing=Mark(first=EPOCH))
    s.attempt(disposed=True)


# --- budgets, spent_on_an_end


def ended(s: Story, id: str = "o1", why: str = "first") -> None:
    s.run(id, why)
    s.finished(id)


@breaks("budgets")
def a_rule_is_used_once_too_often(s: Story) -> None:
    ended(s)
    s.spend("o1/1", "o1/2", "o1/3")


@breaks("budgets")
def the_built_in_rule_is_used_once_too_often(s: Story) -> None:
    s.launch()
    s.tell(Vanished(s.now, "o1", True))
    s.spend("o1/1", "o1/2", "o1/3", "o1/4", rule=NEVER_RAN.name)


@breaks("budgets")
def one_end_launches_twice(s: Story) -> None:
    ended(s)
    s.spend("o1/1", "o1/2")
    s.authorize("o1/1")
    s.authorize("o1/1")


@breaks("budgets")
def nothing_was_spent_on_a_launch(s: Story) -> None:
    ended(s)
    s.authorize("o1/1")


@respects("budgets", "within_budget")
def every_launch_is_paid_for_or_asked_for(s: Story) -> None:
    ended(s)
    for id, unit, why in (("o2", "o1/1", "o1/1"), ("o3", "o2/1", "o2/1"), ("o4", "", "person ann")):
        if unit:
            s.spend(unit)
        ended(s, id, why)
    s.authorize("person ann")


@breaks("spent_on_an_end")
def a_unit_is_spent_on_a_run_that_is_alive(s: Story) -> None:
    s.run()
    s.spend("o1/1")


@breaks("spent_on_an_end")
def one_that_had_run_is_launched_as_one_that_never_ran(s: Story) -> None:
    ended(s)
    s.spend("o1/1", rule=NEVER_RAN.name)


@respects("spent_on_an_end")
def a_unit_is_spent_on_a_run_that_is_ending(s: Story) -> None:
    s.run()
    s.tell(Ending(s.now, "o1", 1, None, ""))
    s.spend("o1/1")


@respects("spent_on_an_end")
def a_unit_is_spent_on_a_run_that_was_followed_by_another(s: Story) -> None:
    s.run()
    s.reran("o1")
    s.spend("o1/1")


@respects("spent_on_an_end")
def a_unit_is_spent_on_what_is_gone(s: Story) -> None:
    s.launch()
    s.tell(Vanished(s.now, "o1", True))
    s.spend("o1/1", rule=NEVER_RAN.name)


@respects("spent_on_an_end", "stops_only_what_it_may")
def a_timed_rule_spends_on_a_run_that_is_alive(s: Story) -> None:
    s.run()
    s.intend("o1/1", None, rule="slow")
    s.decide(Kind.STOP, "o1")


@respects("spent_on_an_end", "true_outcome")
def a_timed_rule_fails_a_job_that_runs(s: Story) -> None:
    s.run()
    s.outcome(Result.FAILED, Cause.DEADLINE, by="slow")
    s.spend("o1/1", rule="slow")


@respects("spent_on_an_end")
def a_hold_of_a_timed_rule_is_paid_under_a_key_of_its_own(s: Story) -> None:
    s.launch()
    s.spend("o1/1/hold", rule="slow")


# --- stops_only_what_it_may


@breaks("stops_only_what_it_may")
def the_one_that_counts_is_stopped(s: Story) -> None:
    s.run()
    s.decide(Kind.STOP, "o1")


@breaks("stops_only_what_it_may")
def the_one_that_counts_is_stopped_for_an_end(s: Story) -> None:
    s.run()
    s.tell(Ending(s.now, "o1", 1, None, ""))
    s.intend("o1/1")
    s.decide(Kind.STOP, "o1")


@breaks("stops_only_what_it_may")
def a_duplicate_is_stopped_and_not_retired(s: Story) -> None:
    with_a_duplicate(s)
    s.decide(Kind.STOP, "o2")


@breaks("stops_only_what_it_may")
def somebody_elses_object_is_stopped(s: Story) -> None:
    s.stray("f1")
    s.record_seen("f1", foreign=True)
    s.decide(Kind.STOP, "f1")


@respects("stops_only_what_it_may")
def the_plan_says_that_strays_are_stopped(s: Story) -> None:
    s.commit(plan=replace(s.record.plan, foreign="stop"))
    s.stray("f1")
    s.record_seen("f1", foreign=True)
    s.decide(Kind.STOP, "f1")


@respects("stops_only_what_it_may")
def one_that_counted_earlier_is_stopped(s: Story) -> None:
    s.launch("o1")
    s.launch("o2", "person ann")
    s.decide(Kind.STOP, "o1")
