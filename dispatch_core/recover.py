"""What follows the end of a run, or a run that takes too long: the plan's rules, their budgets and their defaults.

One rule: the end of one run spends at most one unit of budget, under a key that is used once (G3), and an intent for a
run is carried out whatever ended it. Our own stop fires no rule. This room asks only about the canonical object of the
newest submission; it never opens a gate.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from dispatch_core import settle
from dispatch_core.evidence import Sighting
from dispatch_core.guards import guard
from dispatch_core.plan import AGAIN, DEFAULTS, NEVER_RAN, NO_RULE, Action, Cause, End, Rule, matches
from dispatch_core.reasons import Reason
from dispatch_core.record import Answer, Call, Intent, Kind, Object, Record, Result, State, run_key
from dispatch_core.turn import INSTANT, Note, Turn


def judge(turn: Turn, object: Object) -> None:
    """The runs of the canonical object, the newest one's success first, then each earlier one, then the newest."""
    observed = turn.observed
    if observed.is_moved_back(object):
        if not say_if_unknown(turn, object.id, observed.sighting(object.id)):
            turn.note(Reason.MOVED_BACK, f"{object.id} is listed in a run that had ended", object.id)
        return
    end = observed.newest_end(object)
    if end is not None and _has_succeeded(end):
        turn.end_job(Result.SUCCEEDED, end, NO_RULE)
        return
    for run in range(1, object.run):
        _judge_rerun(turn, object, run)
        if turn.record.outcome is not None or _is_outstanding(turn.record, object, run):
            return
        if not _is_newest(turn.record, object):
            return
    key = run_key(object.id, object.run)
    if end is not None:
        judge_end(turn, key, end, object)
        return
    sighting = observed.sighting(object.id)
    if sighting is None and not observed.listing.complete:
        turn.note(Reason.LISTING_INCOMPLETE, f"{object.id} is not in a listing that is not complete", object.id)
    early = observed.end_of(object, object.run)
    if sighting is not None and sighting.state is State.ENDING and early is not None:
        _judge_early(turn, key, early, object)


def _judge_rerun(turn: Turn, object: Object, run: int) -> None:
    """A run that another run of the same object followed: ours by a requeue, or the scheduler's own."""
    key = run_key(object.id, run)
    intent = turn.record.intent(key)
    if intent is not None:
        if intent.do is Action.REQUEUE:
            turn.drop(intent)
        else:
            _carry_out(turn, intent, None)
        return
    end = turn.observed.end_of(object, run) or End(cause=Cause.RERUN, message="the scheduler ran it again on its own")
    spent = _spent(turn.record, key)
    rule = _rule(turn.record, end) if spent is None else turn.record.plan.rule(spent) or NEVER_RAN
    if rule is not None and spent is None:
        turn.spend(key, rule.name)
        turn.note(Reason.RECOVERING, f"run {run} ended ({end.cause}) and another followed: rule {rule.name}", object.id)
    if _carries_out(rule):
        return
    succeeded = end.cause is Cause.COMPLETED or (rule is not None and rule.do is Action.SUCCEED)
    turn.end_job(Result.SUCCEEDED if succeeded else Result.FAILED, end, rule.name if rule else NO_RULE)


def say_if_unknown(turn: Turn, id: str, sighting: Sighting | None) -> bool:
    """Whether the object is listed in a state of which only a person can say what follows; then that is noted."""
    unknown = sighting is not None and _is_unknown(sighting)
    if unknown:
        text = f"{id} is in a state that this version does not know: a person says what follows"
        turn.note(Reason.UNRECOGNIZED, text, id)
    return unknown


def _judge_early(turn: Turn, key: str, end: End, object: Object) -> None:
    """The cause is known while the run is still ending: spend, and authorize a resubmit; nothing else (G9)."""
    if not _is_known_failure(end):
        turn.note(Reason.AWAITING_END, f"{object.id} is ending ({end.cause}): its end decides", object.id)
        return
    intent = turn.record.intent(key)
    rule = None
    if intent is None and _spent(turn.record, key) is None:
        rule = _rule(turn.record, end)
        if rule is not None and rule.do in AGAIN:
            intent = _spend(turn, key, rule, end)
    if intent is not None and _needs_no_end(intent):
        _carry_out(turn, intent, object)
    else:
        turn.note(Reason.AWAITING_END, f"{object.id} is ending ({end.cause})", object.id)


def judge_end(turn: Turn, key: str, end: End, object: Object | None) -> None:
    """What follows an end: the intent made for it, what its unit was spent on, the plan's rule, or the default."""
    record = turn.record
    name = object.id if object is not None else f"submission {record.submissions[-1].number}"
    intent, spent = _intent(record, key), _spent(record, key)
    if intent is not None:
        if not _is_in_vain(end) or _is_made_for_it(intent):
            _carry_out(turn, intent, object)
            return
        turn.drop(intent)
    if spent is not None:
        _leave_to_person(turn, end, spent, name)
        return
    if _is_unexplained(end):
        turn.note(Reason.UNEXPLAINED_STOP, f"{name} was stopped by us, and nothing says what for", name)
        return
    rule = _never_ran(turn, end, object) or _rule(record, end)
    action = rule.do if rule is not None else _default(end)
    by = rule.name if rule is not None else NO_RULE
    if rule is not None and action in AGAIN:
        _carry_out(turn, _spend(turn, key, rule, end), object)
    elif action is Action.HOLD:
        if rule is not None:
            turn.spend(key, rule.name)
        _leave_to_person(turn, end, by, name)
    else:
        if rule is not None:
            turn.spend(key, rule.name)
        turn.end_job(Result.SUCCEEDED if action is Action.SUCCEED else Result.FAILED, end, by)


def _leave_to_person(turn: Turn, end: End, by: str, name: str) -> None:
    by_default = Reason.UNRECOGNIZED if by == NO_RULE else Reason.HELD_BY_RULE
    reason = Reason.VANISHED if end.cause is Cause.VANISHED else by_default
    turn.note(reason, f"{name} ended ({end.cause}): {by} leaves what follows to a person", name)


def _rule(record: Record, end: End) -> Rule | None:
    """The first rule that matches and has budget left."""
    return next((rule for rule in record.plan.rules if matches(rule.when, end) and _has_budget(record, rule)), None)


def _has_budget(record: Record, rule: Rule) -> bool:
    limit = rule.limit
    return limit is None or record.used(rule.name) < limit


def _never_ran(turn: Turn, end: End, object: Object | None) -> Rule | None:
    """The built-in rule for an object that is gone and cannot have run."""
    if object is None or end.cause is not Cause.VANISHED or not turn.observed.never_opened(object):
        return None
    return NEVER_RAN if _has_budget(turn.record, NEVER_RAN) else None


def _spend(turn: Turn, key: str, rule: Rule, end: End | None) -> Intent:
    """Spend one unit, and intend what the rule says (G3)."""
    delay = rule.delay.before(turn.record.used(rule.name) + 1, f"{turn.record.uid} {key}")
    intent = Intent(
        key=key,
        do=rule.do,
        rule=rule.name,
        cause=end.cause if end is not None else None,
        not_before=turn.observed.listing.ended + timedelta(seconds=delay),
    )
    turn.spend(key, rule.name)
    turn.intend(intent)
    turn.note(Reason.RECOVERING, f"{key} ended ({intent.cause or 'too slow'}): rule {rule.name} will {rule.do}")
    return intent


def _carry_out(turn: Turn, intent: Intent, object: Object | None) -> None:
    """Resubmit or requeue, once its time has come."""
    if turn.observed.listing.ended < intent.not_before:
        turn.note(Reason.AWAITING_DELAY, f"{intent.do} for {intent.key} waits for its delay", until=intent.not_before)
    elif intent.do is Action.REQUEUE and object is not None and _can_requeue(turn, object):
        _requeue(turn, intent, object)
    elif not _may_submit(turn):
        turn.note(Reason.LISTING_INCOMPLETE, "the listing is not complete: nothing is submitted on it")
    elif turn.has_room():
        last = turn.record.submissions[-1]
        rule = turn.record.plan.rule(intent.rule) or NEVER_RAN
        turn.drop(intent)
        turn.authorize(intent.key, rule.changes.apply(last.spec, object.nodes if object is not None else ()))


def _can_requeue(turn: Turn, object: Object) -> bool:
    """Whether it can come back gated: listed ended, and not refused before; what was purged is resubmitted."""
    return _comes_back_gated(turn) and not _is_refused(turn, object) and not _is_purged(turn, object)


def _requeue(turn: Turn, intent: Intent, object: Object) -> None:
    sighting = turn.observed.sighting(object.id)
    if not _has_ended(sighting, object):
        turn.note(Reason.AWAITING_END, f"{object.id} is requeued once it is listed ended", object.id)
        return
    unexpired = _in_the_way(turn, object)
    if unexpired:
        until = max(turn.observed.expiry(call.deadline) for call in unexpired) + INSTANT
        text = f"{object.id} is requeued once no earlier stop or requeue of it can land"
        turn.note(Reason.AWAITING_EXPIRY, text, object.id, until=until)
        return
    note = Note(reason=Reason.RECOVERING, text=f"requeue {object.id}: rule {intent.rule}", object=object.id)
    turn.send(Kind.REQUEUE, object.id, object.run, why=note)


# --- what takes too long


def out_of_time(turn: Turn, object: Object, sighting: Sighting) -> None:
    """A run that is pending, or without progress, for longer than a rule allows: intent first, then Stop."""
    key = run_key(object.id, sighting.run)
    intent = turn.record.intent(key)
    if intent is not None:
        if _is_timed(intent):
            settle.stop(turn, object, f"rule {intent.rule} will {intent.do}")
        return
    if _spent(turn.record, key) is not None:
        return
    for rule, text in _due(turn, object, sighting):
        end = End(cause=Cause.DEADLINE, message=text)
        if rule.do in AGAIN:
            _spend(turn, key, rule, None)
            settle.stop(turn, object, text)
        elif rule.do is Action.HOLD:
            turn.spend(f"{key}/hold", rule.name)
            turn.ask_hold(rule.name, text)
        else:
            turn.spend(key, rule.name)
            turn.end_job(Result.SUCCEEDED if rule.do is Action.SUCCEED else Result.FAILED, end, rule.name)
        return


def _due(turn: Turn, object: Object, sighting: Sighting) -> Iterator[tuple[Rule, str]]:
    """The timed rules that are due, in order; those that are not yet due set the alarm."""
    opened = turn.record.call(Kind.OPEN, object.id, sighting.run)
    for rule in turn.record.plan.rules:
        pending, silent = rule.when.pending_longer_than_seconds, rule.when.no_progress_for_seconds
        if not _has_budget(turn.record, rule):
            continue
        if rule.do is Action.HOLD and turn.record.spent(f"{run_key(object.id, sighting.run)}/hold") is not None:
            continue
        if pending is not None and sighting.state is State.PENDING and opened is not None:
            since, limit, what = opened.committed, pending, "pending"
        elif silent is not None and sighting.state is State.RUNNING and sighting.progress is not None:
            since, limit, what = sighting.progress, silent, "without progress"
        else:
            continue
        due = since + timedelta(seconds=limit)
        if turn.observed.began > due:
            yield rule, f"it is {what} for longer than {limit:g} s"
        else:
            turn.wake(due + INSTANT)


# --- what recovery rests on, one condition each


@guard("budget_key_used_once", promise="G3", history="vanished_drops_the_intent", without=lambda *_: None)
def _spent(record: Record, key: str) -> str | None:
    """The rule that this end has spent its one unit on; None: it may still spend it."""
    return record.spent(key)


@guard("intent_carried_out_whatever_the_end", promise="G3", without=lambda *_: None)
def _intent(record: Record, key: str) -> Intent | None:
    """What was decided for this end before it came: a run may complete, or end otherwise, while it is being stopped."""
    return record.intent(key)


@guard("vanished_drops_the_intent", promise="S1", without=False)
def _is_in_vain(end: End) -> bool:
    """Whether an intent can no longer be carried out safely: what is gone without any end may still run."""
    return end.cause is Cause.VANISHED


@guard("vanished_and_listed_again", promise="G3", line=2, without=False)
def _is_made_for_it(intent: Intent) -> bool:
    """Whether the intent was made because the object had vanished: then it stands, listed again or not."""
    return intent.cause is Cause.VANISHED


@guard("completed_newest_run_first", promise="T41", without=False)
def _has_succeeded(end: End) -> bool:
    """Whether the newest run completed: then the job succeeded, whatever befell an earlier one."""
    return end.cause is Cause.COMPLETED


@guard("resubmit_beside_a_rerun", promise="G3", history="intent_before_newer_runs", line=2, without=False)
def _is_outstanding(record: Record, object: Object, run: int) -> bool:
    """Whether an earlier run's intent is still to be carried out: judging a newer run too would launch twice."""
    return record.intent(run_key(object.id, run)) is not None


@guard("judged_only_while_newest", promise="G3", line=2, history="intent_before_newer_runs", without=True)
def _is_newest(record: Record, object: Object) -> bool:
    """Whether no later submission took its place in this very pass."""
    return record.submissions[-1].canonical == object.id


@guard("held_run_rerun", promise="G8", without=True)
def _carries_out(rule: Rule | None) -> bool:
    """Whether the run that the scheduler started on its own is what the rule asks for; else nobody asked for it."""
    return rule is not None and rule.do in AGAIN


@guard("only_known_failures_judged_early", promise="T41 T28", history="ending_decides_little", line=2, without=True)
def _is_known_failure(end: End) -> bool:
    """Whether a run that is still ending has failed for certain, in a way that this version knows."""
    return end.cause not in (Cause.COMPLETED, Cause.UNRECOGNIZED)


@guard("unrecognized_state_is_said", promise="T28", history="unrecognized_decides_nothing", line=2, without=False)
def _is_unknown(sighting: Sighting) -> bool:
    """Whether only a person can say what follows."""
    return sighting.state is State.UNRECOGNIZED


@guard("ending_decides_little", promise="G9", history="no_requeue_before_the_end", line=2, without=True)
def _needs_no_end(intent: Intent) -> bool:
    """Whether it can be carried out while the run is still ending: its gate waits for the end anyway."""
    return intent.do is Action.RESUBMIT


@guard("unexplained_stop_waits", promise="T41", history="own_stop_fires_no_rule", line=2, without=False)
def _is_unexplained(end: End) -> bool:
    """Whether we stopped it and nothing says what for: no intent, no outcome."""
    return end.cause is Cause.STOPPED


@guard(
    "unrecognized_decides_nothing",
    promise="T28",
    without=lambda end: Action.FAIL if end.cause is Cause.UNRECOGNIZED else DEFAULTS.get(end.cause, Action.FAIL),
)
def _default(end: End) -> Action:
    """What happens where no rule matches: a word that this version does not know is no success and no failure."""
    return DEFAULTS.get(end.cause, Action.FAIL)


@guard("requeue_comes_back_gated", promise="G1 G8 X3", history="requeue_is_a_resubmit", without=True)
def _comes_back_gated(turn: Turn) -> bool:
    """Whether a requeued object waits for its gate here: else it runs past every hold and cancel."""
    return turn.observed.capabilities.requeues


@guard("refused_requeue_is_resubmitted", promise="S1", line=2, without=False)
def _is_refused(turn: Turn, object: Object) -> bool:
    """Whether the scheduler refused to requeue this run: asked again it would refuse for ever."""
    row = turn.record.call(Kind.REQUEUE, object.id, object.run)
    return row is not None and row.reply is not None and row.reply.answer is Answer.REFUSED


@guard("purged_is_resubmitted", promise="S1", without=False)
def _is_purged(turn: Turn, object: Object) -> bool:
    """Whether the scheduler has forgotten it: there is nothing to requeue, and nothing to wait for."""
    observed = turn.observed
    return observed.listing.complete and observed.sighting(object.id) is None and observed.is_done(object)


@guard("no_requeue_before_the_end", promise="G1", line=2, history="purged_is_resubmitted", without=True)
def _has_ended(sighting: Sighting | None, object: Object) -> bool:
    """Whether the run is listed ended: a requeue of a live one would end it, or be refused."""
    return sighting is not None and sighting.state is State.ENDED and sighting.run == object.run


@guard("no_requeue_while_unexpired", promise="L1", line=2, without=lambda *_: ())
def _in_the_way(turn: Turn, object: Object) -> tuple[Call, ...]:
    """Stops and requeues of it that can still land: on the run that a requeue starts."""
    return turn.observed.unexpired(Kind.STOP, Kind.REQUEUE, object=object.id)


@guard("incomplete_submits_nothing", promise="C4", history="incomplete_listing_decides_nothing", without=True)
def _may_submit(turn: Turn) -> bool:
    """Whether the listing shows every object that a launch would stand beside."""
    return turn.observed.listing.complete


@guard("only_timed_intents_stop", promise="G3", history="vanished_and_listed_again", line=2, without=True)
def _is_timed(intent: Intent) -> bool:
    """Whether a timed rule asks that the run is stopped; a run that had vanished and is listed again is left alone."""
    return intent.cause is None
