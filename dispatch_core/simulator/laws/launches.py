"""The laws of launching: what runs is authorized, alone, not held, and touched by nobody but its own calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dispatch_core.names import object_name
from dispatch_core.plan import RESERVED, Action
from dispatch_core.record import Answer, Kind, Record
from dispatch_core.simulator.laws.truth import Truly, Truth, named
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


def retired(truth: Truth, event: Started | Sent) -> str | None:
    """P1, G7: a retired object never runs, and nothing is sent for it but a Stop."""
    if type(event) is Sent:
        record = truth.read_by(event)
        row = record.object(event.object or "") if record is not None else None
        if row is None or not row.retired or event.kind is Kind.STOP:
            return None
        return f"{_name(event)} was sent by {event.actor}, who had read that it is retired"
    assert type(event) is Started  # noqa: S101 - what ON says
    thing = truth.objects[event.id]
    row = truth.newest.object(event.id)
    if row is None or not row.retired or not thing.ours or event.run in thing.excused:
        return None
    return f"{thing.id} is retired, and began to run"


def not_held(truth: Truth, event: Started) -> str | None:
    """G8, L3: nothing starts that a hold is asked for, if it was asked for before its Open was sent.

    Excused where somebody else took the hold off the object after the listing began that the Open was decided on.
    """
    thing = truth.objects[event.id]
    open = thing.opened.get(event.run)
    record = truth.read_by(open) if open is not None else None
    call = record.call(Kind.OPEN, event.id, event.run) if record is not None else None
    if event.run in thing.excused or (call is not None and thing.taken_off >= truth.moment(call.committed)):
        return None
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
    """G4, L1: every call is committed, with its deadline, before it is sent, each repetition too."""
    if named(event) not in truth.named:
        return f"{_name(event)} was sent by {event.actor}, and no commit holds it"
    return f"{_name(event)} was sent twice, and committed once" if named(event) in truth.sent else None


def carries_its_name(truth: Truth, event: Sent) -> str | None:
    """G4, X2: a Start makes an object of its own name, and StopJob names every attempt of a record with an outcome."""
    if event.kind is None:
        name = object_name(truth.uid, event.submission, event.attempt)
        return None if event.name == name else f"{_name(event)} was sent, and would make {event.name}"
    if event.kind is not Kind.STOP_JOB:
        return None
    record = truth.read_by(event)
    if record is None or record.outcome is None:
        return f"the stop of the job was sent by {event.actor}, who had read of no outcome"
    left = set(record.names()) - set(event.names)
    return f"the stop of the job was sent, and leaves out {', '.join(sorted(left))}" if left else None


def read_again(truth: Truth, event: Sent) -> str | None:
    """X3: an Open is sent only by one whose last read showed the very revision that committed it."""
    if event.kind is not Kind.OPEN or event.object is None or event.read == 0:
        return None
    read, before = truth.revisions[event.read - 1], truth.revisions[event.read - 2] if event.read > 1 else None
    call = read.call(Kind.OPEN, event.object, event.run)
    earlier = before.call(Kind.OPEN, event.object, event.run) if before is not None else None
    if call is not None and call.deadline == event.deadline and (earlier is None or earlier.count < call.count):
        return None
    return f"{_name(event)} was sent by {event.actor}, who had read revision {event.read}, which did not commit it"


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


def requeued_for_a_unit(truth: Truth, event: Reran) -> str | None:
    """G3: what is requeued by us was paid for by the end of the run before."""
    if event.by is None:
        return None
    if is_relaunched(truth.newest, f"{event.id}/{event.run - 1}"):
        return None
    return f"{event.id} was requeued, and nothing was spent on the end of run {event.run - 1}"


def within_budget(truth: Truth, event: Started) -> str | None:
    """G3: no more runs begin than one, the units that were spent on launching again, and what people asked for."""
    record = truth.newest
    again = sum(is_relaunched(record, unit.key) for unit in record.budget)
    asked = sum(submission.why.startswith("person ") for submission in record.submissions)
    began = [(thing.id, run) for thing in truth.ours() for run in thing.started if run not in thing.excused]
    allowed = 1 + again + asked
    return f"{len(began)} runs began, and {allowed} were paid for" if len(began) > allowed else None


def is_relaunched(record: Record, key: str) -> bool:
    """Whether a unit was spent under this key on launching again."""
    rule = record.spent(key)
    found = record.plan.rule(rule) if rule is not None else None
    again = found is not None and found.do in (Action.RESUBMIT, Action.REQUEUE)
    return again or (rule is not None and rule.startswith(RESERVED))


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
    "carries_its_name": carries_its_name,
    "read_again": read_again,
    "as_named": as_named,
    "comes_back_gated": comes_back_gated,
    "requeued_for_a_unit": requeued_for_a_unit,
    "within_budget": within_budget,
}

ON: dict[str, tuple[type, ...]] = {
    "authorized": (Started,),
    "alone": (Started,),
    "retired": (Started, Sent),
    "not_held": (Started,),
    "no_open_after_cancel": (Sent,),
    "committed_first": (Sent,),
    "carries_its_name": (Sent,),
    "read_again": (Sent,),
    "as_named": (Arrived,),
    "comes_back_gated": (Reran,),
    "requeued_for_a_unit": (Reran,),
    "within_budget": (Started,),
}
