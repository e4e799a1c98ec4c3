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
from dispatch_core.plan import AGAIN, DEFAULTS, NEVER_RAN, NO_RULE, Action, Cause, End, Rule, matches
from dispatch_core.reasons import Reason
from dispatch_core.record import Answer, Intent, Kind, Object, Record, Result, State, run_key
from dispatch_core.turn import INSTANT, Note, Turn


def judge(turn: Turn, object: Object) -> None:
    """The runs of the canonical object, the newest one's success first, then each earlier one, then the newest."""
    observed = turn.observed
    if observed.is_moved_back(object):
        turn.note(Reason.MOVED_BACK, f"{object.id} is listed in a run that had ended", object.id)
        return
    end = observed.newest_end(object)
    if end is not None and end.cause is Cause.COMPLETED:  # history: completed_newest_run_first
        turn.end_job(Result.SUCCEEDED, end, NO_RULE)
        return
    for run in range(1, object.run):
        _judge_rerun(turn, object, run)
        if turn.record.outcome is not None or turn.record.intent(run_key(object.id, run)) is not None:
            return
        if turn.record.submissions[-1].canonical != object.id:
            return
    key = run_key(object.id, object.run)
    if end is not None:
        judge_end(turn, key, end, object)
        return
    sighting = observed.sighting(object.id)
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
    spent = turn.record.spent(key)
    rule = _rule(turn.record, end) if spent is None else turn.record.plan.rule(spent) or NEVER_RAN
    if rule is not None and spent is None:
        turn.spend(key, rule.name)
        turn.note(Reason.RECOVERING, f"run {run} ended ({end.cause}) and another followed: rule {rule.name}", object.id)
    if rule is not None and rule.do in AGAIN:
        return
    succeeded = end.cause is Cause.COMPLETED or (rule is not None and rule.do is Action.SUCCEED)
    turn.end_job(Result.SUCCEEDED if succeeded else Result.FAILED, end, rule.name if rule else NO_RULE)


def _judge_early(turn: Turn, key: str, end: End, object: Object) -> None:
    """The cause is known while the run is still ending: spend, and authorize a resubmit; nothing else (G9)."""
    if end.cause in (Cause.COMPLETED, Cause.UNRECOGNIZED):
        turn.note(Reason.AWAITING_END, f"{object.id} is ending ({end.cause}): its end decides", object.id)
        return
    intent = turn.record.intent(key)
    rule = None
    if intent is None and turn.record.spent(key) is None:
        rule = _rule(turn.record, end)
        if rule is not None and rule.do in AGAIN:
            intent = _spend(turn, key, rule, end)
    if intent is not None and intent.do is Action.RESUBMIT:  # history: ending_decides_little
        _carry_out(turn, intent, object)
    else:
        turn.note(Reason.AWAITING_END, f"{object.id} is ending ({end.cause})", object.id)


def judge_end(turn: Turn, key: str, end: End, object: Object | None) -> None:
    """What follows an end: the intent made for it, what its unit was spent on, the plan's rule, or the default."""
    record = turn.record
    name = object.id if object is not None else f"submission {record.submissions[-1].number}"
    intent, spent = record.intent(key), record.spent(key)  # history: intent_carried_out_whatever_the_end
    if intent is not None:
        if end.cause is not Cause.VANISHED or intent.cause is Cause.VANISHED:  # history: vanished_drops_the_intent
            _carry_out(turn, intent, object)
            return
        turn.drop(intent)
    if spent is not None:
        _leave_to_person(turn, end, spent, name)  # history: budget_key_used_once
        return
    if end.cause is Cause.STOPPED:
        turn.note(Reason.UNEXPLAINED_STOP, f"{name} was stopped by us, and nothing says what for", name)
        return
    rule = _never_ran(turn, end, object) or _rule(record, end)
    action = rule.do if rule is not None else DEFAULTS.get(end.cause, Action.FAIL)
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
    return rule.limit is None or record.used(rule.name) < rule.limit


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
    elif not turn.observed.listing.complete:
        turn.note(Reason.LISTING_INCOMPLETE, "the listing is not complete: nothing is submitted on it")
    else:
        last = turn.record.submissions[-1]
        rule = turn.record.plan.rule(intent.rule) or NEVER_RAN
        turn.drop(intent)
        turn.authorize(intent.key, rule.changes.apply(last.spec, object.nodes if object is not None else ()))


def _can_requeue(turn: Turn, object: Object) -> bool:
    """Whether it can come back gated: listed ended, and not refused before; what was purged is resubmitted."""
    row = turn.record.call(Kind.REQUEUE, object.id, object.run)
    refused = row is not None and row.reply is not None and row.reply.answer is Answer.REFUSED
    # history: purged_is_resubmitted
    listed = turn.observed.sighting(object.id) is not None or not turn.observed.listing.complete
    return turn.observed.capabilities.requeues and not refused and listed  # history: requeue_comes_back_gated


def _requeue(turn: Turn, intent: Intent, object: Object) -> None:
    sighting = turn.observed.sighting(object.id)
    # history: no_requeue_before_the_end
    if sighting is None or sighting.state is not State.ENDED or sighting.run != object.run:
        turn.note(Reason.AWAITING_END, f"{object.id} is requeued once it is listed ended", object.id)
        return
    unexpired = turn.observed.unexpired(Kind.STOP, Kind.REQUEUE, object=object.id)
    if unexpired:  # history: no_requeue_while_unexpired
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
        if intent.cause is None:
            settle.stop(turn, object, f"rule {intent.rule} will {intent.do}")
        return
    if turn.record.spent(key) is not None:
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
