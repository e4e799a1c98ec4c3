"""The laws of launching: what runs is authorized, alone, not held, and touched by nobody but its own calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dispatch_core.plan import RESERVED, Action
from dispatch_core.record import Answer, Kind, Record
from dispatch_core.simulator.laws.truth import Truly, Truth
from dispatch_core.simulator.trace import Arrived, Reran, Sent, Started

Law = Callable[[Truth, Any], str | None]


def authorized(truth: Truth, event: Started) -> str | None:
    """P1, X3: what runs is authorized by the record as it stood when its Open was sent."""
    thing = truth.objects[event.id]
    if not thing.ours or event.run in thing.excused:
        return None
    open = thing.opened.get(event.run)
    if open is None:
        return f"run {event.run} of {thing.id} began, and nobody opened it"
    record = truth.read_by(open)
    why = "its sender had read nothing" if record is None else _unauthorized(record, thing, event.run)
    return f"run {event.run} of {thing.id} began: when its open was sent, {why}" if why else None


def _unauthorized(record: Record, thing: Truly, run: int) -> str:
    """Why this record does not authorize this run; "" where it does."""
    if record.outcome is not None:
        return f"the job had {record.outcome.result}"
    if not record.submissions or record.submissions[-1].canonical != thing.id:
        return "it was not the one that counts"
    if record.call(Kind.OPEN, thing.id, run) is None:
        return "the record held no open of it"
    return ""


def alone(truth: Truth, event: Started) -> str | None:
    """P1, G9: never two runs of a job at once."""
    thing = truth.objects[event.id]
    if not thing.ours or event.run in thing.excused:
        return None
    others = [t for t in truth.ours() if t is not thing and t.running and t.run not in t.excused]
    return f"{thing.id} began to run beside {', '.join(t.id for t in others)}" if others else None


def retired(truth: Truth, event: Started) -> str | None:
    """P1: a retired object never runs."""
    thing = truth.objects[event.id]
    row = truth.newest.object(event.id)
    if row is None or not row.retired or not thing.ours or event.run in thing.excused:
        return None
    return f"{thing.id} is retired, and began to run"


def not_held(truth: Truth, event: Started) -> str | None:
    """G8, L3: nothing starts that a hold is asked for, if it was asked for before its Open was sent."""
    thing = truth.objects[event.id]
    open = thing.opened.get(event.run)
    if open is None or event.run in thing.excused or thing.hold_by_admin:
        return None
    record = truth.read_by(open)
    lifted = {hold.number for hold in truth.newest.holds if hold.lifted}
    wanted = [hold.number for hold in record.holds if not hold.lifted] if record is not None else []
    standing = [number for number in wanted if number not in lifted]
    return f"{thing.id} began to run against hold {standing[0]}" if standing else None


def no_open_after_cancel(truth: Truth, event: Sent) -> str | None:
    """P2, X3: nothing but a stop is sent from a read that saw the outcome."""
    if event.kind in (Kind.STOP, Kind.STOP_JOB):
        return None
    record = truth.read_by(event)
    if record is None or record.outcome is None:
        return None
    return f"{_name(event)} was sent by {event.actor}, who had read that the job has {record.outcome.result}"


def committed_first(truth: Truth, event: Sent) -> str | None:
    """G4, L1: every call is committed, with its deadline, before it is sent."""
    what = f"{event.submission}.{event.attempt}" if event.kind is None else event.object
    named = (event.kind, what, event.run, event.deadline)
    return None if named in truth.named else f"{_name(event)} was sent by {event.actor}, and no commit holds it"


def as_named(truth: Truth, event: Arrived) -> str | None:
    """L1, T27: a call changes nothing but the object and the run that it names, and nothing once it has expired."""
    sent = event.sent
    if event.reply.answer is not Answer.DONE or sent.kind is None:
        return None
    if event.beyond:
        return f"{_name(sent)} took effect after it had expired"
    if sent.object is None:
        return None
    if event.name and event.name != sent.name:
        return f"{_name(sent)} met {event.name}"
    return f"{_name(sent)} met run {event.run}" if event.name and event.run != sent.run else None


def comes_back_gated(truth: Truth, event: Reran) -> str | None:
    """G1: a requeued object comes back gated, or is not requeued."""
    if event.by is None or not event.open:
        return None
    return f"{event.id} was requeued, and came back with its gate open"


def within_budget(truth: Truth, event: Started) -> str | None:
    """G3: no more runs begin than one, the units that were spent on launching again, and what people asked for."""
    record = truth.newest
    again = sum(unit.rule.startswith(RESERVED) or _relaunches(record, unit.rule) for unit in record.budget)
    asked = sum(submission.why.startswith("person ") for submission in record.submissions)
    began = [(thing.id, run) for thing in truth.ours() for run in thing.started if run not in thing.excused]
    allowed = 1 + again + asked
    return f"{len(began)} runs began, and {allowed} were paid for" if len(began) > allowed else None


def _relaunches(record: Record, rule: str) -> bool:
    found = record.plan.rule(rule)
    return found is not None and found.do in (Action.RESUBMIT, Action.REQUEUE)


def _name(sent: Sent) -> str:
    if sent.kind is None:
        return f"start {sent.submission}.{sent.attempt}"
    return f"{sent.kind} {sent.object} run {sent.run}" if sent.object is not None else "the stop of the job"


LAWS: dict[str, Law] = {
    "authorized": authorized,
    "alone": alone,
    "retired": retired,
    "not_held": not_held,
    "no_open_after_cancel": no_open_after_cancel,
    "committed_first": committed_first,
    "as_named": as_named,
    "comes_back_gated": comes_back_gated,
    "within_budget": within_budget,
}

ON: dict[str, tuple[type, ...]] = {
    "authorized": (Started,),
    "alone": (Started,),
    "retired": (Started,),
    "not_held": (Started,),
    "no_open_after_cancel": (Sent,),
    "committed_first": (Sent,),
    "as_named": (Arrived,),
    "comes_back_gated": (Reran,),
    "within_budget": (Started,),
}
