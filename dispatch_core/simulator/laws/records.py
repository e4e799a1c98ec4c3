"""The laws of the record: what was committed stays, what was decided is true, and nobody overspends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dispatch_core.plan import NEVER_RAN
from dispatch_core.reasons import CHOICE, Reason
from dispatch_core.record import (
    Call,
    Kind,
    Object,
    Record,
    State,
    is_late,
    run_key,
)
from dispatch_core.simulator.laws.truth import Truly, Truth
from dispatch_core.simulator.trace import Acknowledged, Committed, Refused

Law = Callable[[Truth, Any], str | None]


def one_after_the_other(truth: Truth, event: Committed) -> str | None:
    """C1: every commit is made against the revision that was the newest, and none is lost on the way."""
    before = event.before.revision if event.before is not None else 0
    if event.after.revision != before + 1:
        return f"revision {event.after.revision} was committed onto revision {before}"
    return None


def read_first(truth: Truth, event: Committed) -> str | None:
    """C1: who commits had read, or made, the revision that it is committed against."""
    if event.before is None or event.before.revision in truth.known.get(event.actor, ()):
        return None
    return f"{event.actor} committed onto revision {event.before.revision}, which it had never read"


def acknowledged(truth: Truth, event: Acknowledged) -> str | None:
    """C5: a commit that was acknowledged is there, as the revision that was said."""
    known = truth.revisions[event.revision - 1].commit if event.revision <= len(truth.revisions) else "nothing"
    return None if known == event.commit else f"revision {event.revision} was acknowledged, and holds {known}"


def refused(truth: Truth, event: Refused) -> str | None:
    """C5: a commit that was refused did not land."""
    landed = next((record for record in truth.revisions if record.commit == event.commit), None)
    if landed is None or event.why == "CommitUnknown":
        return None
    return f"{event.actor} was told {event.why}, and its commit had landed as revision {landed.revision}"


def carried_out(truth: Truth, event: Committed) -> str | None:
    """G3: an intent is carried out whatever ended its run; nobody is asked meanwhile."""
    wait = event.after.wait
    object = event.after.object(wait.object or "") if wait is not None and wait.reason in CHOICE else None
    intent = event.after.intent(run_key(object.id, object.run)) if object is not None else None
    if wait is None or intent is None or wait.reason in (Reason.VANISHED, Reason.UNRECOGNIZED):
        return None
    return f"a person is asked about {wait.object}, and a {intent.do} is intended for it"


def displaced(truth: Truth, event: Committed) -> str | None:
    """C2: a decision of a displaced supervisor is refused."""
    return (
        f"{event.actor} had lost its lease, and committed revision {event.after.revision}" if event.displaced else None
    )


def leased(truth: Truth, event: Committed) -> str | None:
    """C2, C3: whoever holds the lease of the job commits decisions with it, and evidence without."""
    evidence = event.by.startswith("evidence of ")
    if event.holder and not event.leased and not evidence:
        return f"{event.actor} holds the lease, and committed revision {event.after.revision} without it"
    return f"{event.actor} committed evidence with a lease" if evidence and event.leased else None


def final(truth: Truth, event: Committed) -> str | None:
    """P2, X1: an outcome stands, and nothing new is authorized after it."""
    before, after = event.before, event.after
    if after.outcome is not None and (any(not hold.lifted for hold in after.holds) or after.intents):
        return "the outcome left a hold, or an intent"
    if before is None or before.outcome is None:
        return None
    if after.outcome != before.outcome:
        return f"the outcome was {before.outcome.result}, and was changed"
    if len(after.submissions) > len(before.submissions) or _attempts(after) > _attempts(before):
        return f"a launch was authorized though the job has {before.outcome.result}"
    new = [call for call in calls_made(before, after) if call.kind not in (Kind.STOP, Kind.STOP_JOB)]
    return f"{new[0].kind} of {new[0].object} was decided though the job has {before.outcome.result}" if new else None


def stays_settled(truth: Truth, event: Committed) -> str | None:
    """S1: `settled` stays."""
    return "a settled record was opened again" if event.before and event.before.settled > event.after.settled else None


def _attempts(record: Record) -> int:
    return sum(len(submission.attempts) for submission in record.submissions)


def calls_made(before: Record | None, after: Record) -> Iterator[Call]:
    """The calls that this commit allows."""
    known = {call.identity: call.count for call in before.calls} if before is not None else {}
    return (call for call in after.calls if known.get(call.identity) != call.count)


def kept(truth: Truth, event: Committed) -> str | None:
    """C3, G6, P3: nothing that was known is forgotten, and nothing moves back."""
    before, after = event.before, event.after
    if before is None:
        return None
    for old, new in zip(before.submissions, after.submissions, strict=False):
        if old.canonical is not None and new.canonical != old.canonical:
            return f"{old.canonical} was canonical for submission {old.number}, and {new.canonical} took its place"
        if len(new.attempts) < len(old.attempts):
            return f"an attempt of submission {old.number} was forgotten"
        late = [a.number for a, b in zip(old.attempts, new.attempts, strict=False) if is_late(a) > is_late(b)]
        if late:
            return f"attempt {old.number}.{late[0]} was late, and counts again"
    if len(after.submissions) < len(before.submissions):
        return "a submission was forgotten"
    if not set(before.budget) <= set(after.budget):
        return "a unit of budget was given back"
    counts = {call.identity: call.count for call in after.calls}
    lost = [call for call in before.calls if counts.get(call.identity, 0) < call.count]
    if lost:
        return f"{lost[0].kind} of {lost[0].object} was forgotten"
    standing = {hold.number for hold in after.holds if not hold.lifted}
    if len(after.holds) < len(before.holds) or any(h.lifted and h.number in standing for h in before.holds):
        return "a hold was forgotten, or asked for again"
    rows = {object.id: object for object in after.objects}
    return next((text for old in before.objects if (text := _moved_back(old, rows.get(old.id)))), None)


_ORDER = {State.RUNNING: 1, State.UNRECOGNIZED: 1, State.ENDING: 2, State.ENDED: 3}


def _moved_back(old: Object, new: Object | None) -> str:
    if new is None:
        return f"{old.id} was forgotten"
    if old.retired and not new.retired:
        return f"{old.id} was retired, and is not any more"
    if (new.run, _ORDER.get(new.state, 0)) < (old.run, _ORDER.get(old.state, 0)):
        return f"{old.id} was {old.state} in run {old.run}, and moved back to {new.state} in run {new.run}"
    if not {row.run for row in old.ends} <= {row.run for row in new.ends}:
        return f"the end of a run of {old.id} was forgotten"
    return ""


def budgets(truth: Truth, event: Committed) -> str | None:
    """G3: no rule is used more often than its budget, and what is launched again was paid for under its own key."""
    after = event.after
    for rule in (*after.plan.rules, NEVER_RAN):
        if rule.limit is not None and after.used(rule.name) > rule.limit:
            return f"{rule.name} was used {after.used(rule.name)} times, and has a budget of {rule.limit}"
    why = [submission.why for submission in after.submissions if not submission.why.startswith("person ")]
    for key in why:
        if why.count(key) > 1:
            return f"{key} launched {why.count(key)} times"
        if key != "first" and after.spent(key) is None:
            return f"{key} launched again, and nothing was spent on it"
    return None


def spent_on_an_end(truth: Truth, event: Committed) -> str | None:
    """G3, C4: a unit is spent on a run that has ended, is ending, was rerun, or is gone; or by a timed rule."""
    before, after = event.before, event.after
    if before is None or len(after.budget) == len(before.budget):
        return None
    timed = {intent.key for intent in after.intents if intent.cause is None}
    for unit in after.budget[len(before.budget) :]:
        id, _, run = unit.key.partition("/")
        thing = truth.objects.get(id)
        if thing is None or not run.isdigit() or unit.key in timed or after.outcome is not None:
            continue
        if unit.rule == NEVER_RAN.name and any(began not in thing.excused for began in thing.started):
            return f"{id} had run, and was launched again as one that never ran"
        if not _is_over(thing, int(run)):
            return f"{unit.key} spent a unit of {unit.rule} while it was alive"
    return None


def _is_over(thing: Truly, run: int) -> bool:
    return not thing.there or thing.run > run or run in thing.ends or thing.ending or not thing.alive


def stops_only_what_it_may(truth: Truth, event: Committed) -> str | None:
    """G7: a Stop never names the object that counts, unless the job has an outcome or a timed rule intends more; and
    no other one that is not retired, or counted earlier."""
    before, after = event.before, event.after
    counted = {submission.canonical for submission in after.submissions}
    newest = after.submissions[-1].canonical if after.submissions else None
    for call in calls_made(before, after):
        object = after.object(call.object) if call.object is not None else None
        if call.kind is not Kind.STOP or object is None:
            continue
        if object.foreign:
            if after.plan.foreign != "stop":
                return f"a stop of {object.id} was decided: it is foreign, and the plan says {after.plan.foreign}"
        elif after.outcome is None and object.id == newest:
            intent = after.intent(run_key(object.id, call.run))
            if intent is None or intent.cause is not None:
                return f"a stop of {object.id} was decided, and it is the one that counts"
        elif after.outcome is None and not object.retired and object.id not in counted:
            return f"a stop of {object.id} was decided, and it is not retired"
    return None


def intents_are_paid_for(truth: Truth, event: Committed) -> str | None:
    """G3: what is intended was paid for by the end that it is intended for."""
    keys = {unit.key for unit in event.after.budget}
    unpaid = [intent.key for intent in event.after.intents if intent.key not in keys]
    return f"{unpaid[0]} has an intent that nothing was spent on" if unpaid else None


LAWS: dict[str, Law] = {
    "one_after_the_other": one_after_the_other,
    "read_first": read_first,
    "acknowledged": acknowledged,
    "refused": refused,
    "displaced": displaced,
    "leased": leased,
    "carried_out": carried_out,
    "final": final,
    "stays_settled": stays_settled,
    "kept": kept,
    "budgets": budgets,
    "spent_on_an_end": spent_on_an_end,
    "stops_only_what_it_may": stops_only_what_it_may,
    "intents_are_paid_for": intents_are_paid_for,
}

ON: dict[str, tuple[type, ...]] = dict.fromkeys(LAWS, (Committed,)) | {
    "acknowledged": (Acknowledged,),
    "refused": (Refused,),
}
