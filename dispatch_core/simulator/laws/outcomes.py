"""The laws of ends and outcomes: what the record says of a run is what the scheduler's history says."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from dispatch_core.plan import NO_RULE, Cause
from dispatch_core.reasons import CHOICE
from dispatch_core.record import Answer, Attempt, Outcome, Record, Result, State, run_key, submission_key
from dispatch_core.simulator.laws.launches import is_relaunched
from dispatch_core.simulator.laws.truth import Truly, Truth
from dispatch_core.simulator.trace import Committed

Law = Callable[[Truth, Any], str | None]


def gone_is_gone(truth: Truth, event: Committed) -> str | None:
    """C4: what is called vanished, or never created, is not there."""
    before, after = event.before, event.after
    text = _created_after_all(truth, event)
    if text is not None:
        return text
    known = {intent.key for intent in before.intents} if before is not None else set()
    for intent in after.intents:
        thing = truth.objects.get(intent.key.partition("/")[0])
        if intent.cause is Cause.VANISHED and intent.key not in known and thing is not None and thing.there:
            return f"{thing.id} was taken to be gone, and is there"
    if after.outcome is None or (before is not None and before.outcome is not None):
        return None
    if after.outcome.cause is Cause.VANISHED:
        last = after.submissions[-1].canonical
        thing = truth.objects.get(last or "")
        return f"{last} was taken to be gone, and is there" if thing is not None and thing.there else None
    return None


def _created_after_all(truth: Truth, event: Committed) -> str | None:
    """An object of a submission that ended as never created, or refused; where it is recorded and has ended, it may be.

    What a person disposed of is left to the person. Excused is what a call made that was delivered again after it had
    been refused, where the listing that decides hides it.
    """
    paid = {unit.key for unit in event.before.budget} if event.before is not None else set()
    ended = [unit.key for unit in event.after.budget if unit.key.startswith("submission/") and unit.key not in paid]
    outcome = event.after.outcome if event.before is not None and event.before.outcome is None else None
    if outcome is not None and outcome.cause in (Cause.NEVER_CREATED, Cause.REFUSED):
        ended.append(submission_key(len(event.after.submissions)))
    for key in ended:
        submission = event.after.submissions[int(key.partition("/")[2]) - 1]
        disposed = {attempt.number for attempt in submission.attempts if attempt.disposed}
        for thing in truth.ours():
            by = thing.by
            if by is None or by.submission != submission.number or by.attempt in disposed:
                continue
            if _is_hidden_after_refusal(truth, event, thing, submission.attempts[by.attempt - 1]):
                continue
            known = event.after.object(thing.id) is not None and not thing.alive
            if thing.there and not known and not thing.beyond and thing.made_at < truth.looked.get(event.actor, 0.0):
                return f"submission {submission.number} was taken to have made nothing, and {thing.id} is there"
    return None


def _is_hidden_after_refusal(truth: Truth, event: Committed, thing: Truly, attempt: Attempt) -> bool:
    """Whether its attempt is recorded as refused, was refused before it was made, and a listing that this commit may
    rest on leaves it out."""
    if not thing.refused or attempt.reply is None or attempt.reply.answer is not Answer.REFUSED:
        return False
    listings = truth.listings.get(event.actor, ())
    decisive = listings if event.late else listings[-1:]
    return any(all(shown.id != thing.id for shown in listing.objects) for listing in decisive)


_TOLD = frozenset(
    {
        Cause.EXIT,
        Cause.SIGNAL,
        Cause.OUT_OF_MEMORY,
        Cause.TIME_LIMIT,
        Cause.NODE_FAILURE,
        Cause.PREEMPTED,
        Cause.CANNOT_START,
        Cause.STOPPED_OUTSIDE,
    }
)
"""Causes that only a run's own end can have."""


def true_outcome(truth: Truth, event: Committed) -> str | None:
    """S1: an outcome that a rule or the default set is what the scheduler's history says."""
    before, outcome = event.before, event.after.outcome
    if before is None or before.outcome is not None or outcome is None:
        return None
    if outcome.by.startswith("ann"):
        asked = before.wait is not None and before.wait.reason in CHOICE
        return None if asked or outcome.result is Result.CANCELLED else "it was resolved, and nobody had been asked"
    if outcome.result is Result.CANCELLED:
        return "it was cancelled, and nobody had asked for it"
    last = event.after.submissions[-1].canonical if event.after.submissions else None
    thing = truth.objects.get(last or "")
    if thing is None:
        return "it succeeded without a run" if outcome.result is Result.SUCCEEDED and outcome.cause is None else None
    return _untrue(thing, outcome, event.after) or _while_it_ran(thing, outcome, event.after)


def _untrue(thing: Truly, outcome: Outcome, record: Record) -> str | None:
    runs = judged_runs(record, thing.id)
    causes = {cause for run in runs for cause in thing.causes.get(run, ())}
    of = " or ".join(f"run {run}" for run in runs)
    if outcome.result is Result.SUCCEEDED and outcome.cause is None and Cause.COMPLETED not in causes:
        return f"the job has succeeded, and {of} of {thing.id} did not complete"
    if outcome.cause in _TOLD and outcome.cause not in causes:
        return f"the job has {outcome.result} ({outcome.cause}), and {of} of {thing.id} did not end so"
    return None


def judged_runs(record: Record, id: str) -> list[int]:
    """The runs of an object that an outcome may come from: the newest that the record knows, and the first that another
    followed though nothing was spent on launching again after it."""
    object = record.object(id)
    newest = object.run if object is not None else 1
    unpaid = (run for run in range(1, newest) if not is_relaunched(record, run_key(id, run)))
    return [newest, *islice(unpaid, 1)]


def _while_it_ran(thing: Truly, outcome: Outcome, record: Record) -> str | None:
    """A run may go on beside an outcome only where a timed rule set it, or where somebody else opened that run."""
    if not thing.running or thing.ending or thing.run in thing.excused:
        return None
    rule = record.plan.rule(outcome.by)
    if outcome.cause is Cause.DEADLINE and rule is not None and rule.when.timed:
        return None
    return f"the job has {outcome.result} ({outcome.cause}) while {thing.id} was running"


def refused_was_refused(truth: Truth, event: Committed) -> str | None:
    """L1: a Start that came too late was not refused; only a submission of which one attempt was refused is."""
    before, after = event.before, event.after
    if before is None:
        return None
    known = {intent.key for intent in before.intents}
    keys = [intent.key for intent in after.intents if intent.cause is Cause.REFUSED and intent.key not in known]
    outcome = after.outcome if before.outcome is None else None
    if outcome is not None and outcome.cause is Cause.REFUSED and not outcome.by.startswith("ann"):
        keys.append(submission_key(len(after.submissions)))
    for key in keys:
        attempts = after.submissions[int(key.partition("/")[2]) - 1].attempts
        if all(attempt.reply is None or attempt.reply.answer is not Answer.REFUSED for attempt in attempts):
            return f"{key} was taken to be refused, and no attempt of it was"
    return None


def unknown_waits(truth: Truth, event: Committed) -> str | None:
    """T28, T25: an end that nobody knows decides nothing by itself: a rule does, or a person. Where the scheduler has
    run the object again since, nobody asked for that run, and the earlier end is the outcome."""
    before, outcome = event.before, event.after.outcome
    if before is None or before.outcome is not None or outcome is None or outcome.by != NO_RULE:
        return None
    object = event.after.object(event.after.submissions[-1].canonical or "") if event.after.submissions else None
    rerun = object is not None and any(object.end_of(run) is not None for run in range(1, object.run))
    if outcome.cause in (Cause.UNRECOGNIZED, Cause.VANISHED) and not rerun:
        return f"the job has {outcome.result} ({outcome.cause}), and no rule and nobody said so"
    return None


def success_stands(truth: Truth, event: Committed) -> str | None:
    """T41: a newest run that completed comes first: the job has not failed, and is not launched again."""
    before, after = event.before, event.after
    if before is None or before.outcome is not None or not before.submissions:
        return None
    object = after.object(before.submissions[-1].canonical or "")
    end = object.end_of(object.run) if object is not None and object.state is State.ENDED else None
    if object is None or end is None or end.cause is not Cause.COMPLETED:
        return None
    if after.outcome is not None and after.outcome.result is Result.FAILED and not after.outcome.by.startswith("ann"):
        return f"run {object.run} of {object.id} completed, and the job has failed ({after.outcome.cause})"
    launched = after.submissions[len(before.submissions) :]
    if launched and not launched[0].why.startswith("person "):
        return f"run {object.run} of {object.id} completed, and the job was launched again"
    return None


def launched_for_its_end(truth: Truth, event: Committed) -> str | None:
    """S1: an intent is carried out at the end of its run; one whose object is gone without any end is dropped, unless
    it was made for that."""
    before, after = event.before, event.after
    if before is None:
        return None
    for submission in after.submissions[len(before.submissions) :]:
        id, _, run = submission.why.partition("/")
        object, intent = after.object(id), before.intent(submission.why)
        if object is None or not run.isdigit() or (intent is not None and intent.cause is Cause.VANISHED):
            continue
        thing = truth.objects.get(id)
        if thing is None or thing.there or (intent is None and object.missing is not None):
            continue  # it is there; or the intent was made and carried out in one commit, for what vanished
        if object.end_of(int(run)) is None and object.run <= int(run) and object.state is not State.ENDED:
            return f"{submission.why} has no end, and the job was launched again for it"
    return None


LAWS: dict[str, Law] = {
    "gone_is_gone": gone_is_gone,
    "true_outcome": true_outcome,
    "refused_was_refused": refused_was_refused,
    "unknown_waits": unknown_waits,
    "success_stands": success_stands,
    "launched_for_its_end": launched_for_its_end,
}

ON: dict[str, tuple[type, ...]] = dict.fromkeys(LAWS, (Committed,))
