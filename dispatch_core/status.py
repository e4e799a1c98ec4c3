"""What a person needs to know of one job: its state in a word, who supervises it, what it waits for, what to do.

One rule: everything here is read from the record and its row in the store, and nothing is asked of a scheduler, so that
a status is quick and works while a scheduler is silent. The command line and pages show the same values. It is pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from dispatch_core.ask import Receipt, receipt
from dispatch_core.plan import Value
from dispatch_core.reasons import CHOICE, FOR_A_PERSON, Reason
from dispatch_core.record import Answer, Attempt, Hold, Kind, Object, Outcome, Record, Result, State, Submission, Wait
from dispatch_core.stores.contract import Listed
from dispatch_core.story import describe_end


def runs_of(record: Record) -> int:
    """How many runs the record let begin: gates opened by it, but for an Open that surely did nothing."""
    opened = (call for call in record.calls if call.kind is Kind.OPEN)
    return sum(call.reply is None or call.reply.answer in (Answer.DONE, Answer.UNKNOWN) for call in opened)


STATE_WORDS = {
    State.GATED: "starting",
    State.HELD: "queued",
    State.PENDING: "queued",
    State.RUNNING: "running",
    State.ENDING: "ending",
    State.ENDED: "recovering",
    State.UNRECOGNIZED: "unrecognized",
}
"""What a job is called by the state of the object that counts."""

NEEDS_A_PERSON = "needs a person"
HELD = "held"

_SAID = {
    Reason.GONE: "once you know that it is over: release says so",
    Reason.FOREIGN: "once you know what it is: dispose of it by its id",
    Reason.UNMATCHED: "once you know that it made nothing: dispose of the attempt, like 1.1",
}


class Sight(Value, frozen=True):
    """One object of a job."""

    id: str
    submission: int
    """0: foreign."""
    attempt: int
    role: str
    """canonical, retired, foreign, disposed, or "" where nothing is decided yet."""
    state: str
    run: int
    end: str
    """How its newest run ended; "" if it has not."""
    nodes: tuple[str, ...]
    seen: datetime


class Tried(Value, frozen=True):
    """One attempt of a submission."""

    number: int
    reply: str
    """What its Start replied; "" if nothing yet."""
    disposed: bool
    """A person said that it made no object."""


class Launched(Value, frozen=True):
    """One submission of a job."""

    number: int
    why: str
    """The rule that it was authorized by, "first", or the person."""
    attempts: tuple[Tried, ...]


class Used(Value, frozen=True):
    """The budget of one rule."""

    rule: str
    used: int
    limit: int | None
    """None: without limit."""


class Status(Value, frozen=True):
    """One job, as a person or a script wants it."""

    key: str
    uid: str
    scheduler: str
    command: tuple[str, ...]
    revision: int
    state: str
    since: datetime
    """When it came into this state, as far as the record tells."""
    supervisor: str | None
    """Who supervises it now; None: nobody."""
    unattended: bool
    """It is not settled and nobody supervises it (O3): nothing is opened, recovered or cleaned up meanwhile."""
    attention: tuple[str, ...]
    """Why somebody should look: held, gone, foreign, unmatched, unattended, unsettled, unreadable."""
    settled: bool
    outcome: Outcome | None
    wait: Wait | None
    advice: str
    """What a person can do about that wait; "" where nothing is needed."""
    intents: tuple[str, ...]
    submissions: tuple[Launched, ...]
    objects: tuple[Sight, ...]
    holds: tuple[Hold, ...]
    budget: tuple[Used, ...]
    receipt: Receipt | None
    """Of a job that has an outcome: whether clean-up is complete."""
    created: datetime
    updated: datetime

    @property
    def needs_a_person(self) -> bool:
        return self.state in (NEEDS_A_PERSON, HELD)


def status_of(record: Record, row: Listed) -> Status:
    """The status of a record; `row` is its row in the store."""
    state = state_of(record)
    return Status(
        key=record.key,
        uid=record.uid,
        scheduler=record.scheduler,
        command=record.spec.command,
        revision=record.revision,
        state=state,
        since=_since(record, row),
        supervisor=row.owner,
        unattended=is_unattended(row),
        attention=attention(row),
        settled=record.settled,
        outcome=record.outcome,
        wait=record.wait,
        advice=advice(record),
        intents=tuple(f"{i.do} of {i.key} by {i.rule}, not before {i.not_before.isoformat()}" for i in record.intents),
        submissions=tuple(_launched(record, submission) for submission in record.submissions),
        objects=tuple(_sight(record, object) for object in record.objects),
        holds=record.holds,
        budget=tuple(Used(rule=r.name, used=record.used(r.name), limit=r.limit) for r in record.plan.rules),
        receipt=receipt(record),
        created=row.created,
        updated=row.updated,
    )


def state_of(record: Record) -> str:
    """A job's state in a word or two."""
    if record.outcome is not None:
        return str(record.outcome.result)
    if record.wait is not None and record.wait.reason in FOR_A_PERSON:
        return NEEDS_A_PERSON
    last = record.last
    object = record.object(last.canonical) if last is not None and last.canonical else None
    if object is not None and object.state in (State.RUNNING, State.ENDING):
        return STATE_WORDS[object.state]  # a hold counts for the next start only
    if any(not hold.lifted for hold in record.holds):
        return HELD
    if record.intents:
        return "recovering"
    if object is None:
        return "submitted" if last is None else "starting"
    return STATE_WORDS[object.state]


def is_unattended(row: Listed) -> bool:
    """Whether a job that is not settled has nobody who supervises it (O3)."""
    return row.owner is None and row.record is not None and not row.record.settled


def attention(row: Listed) -> tuple[str, ...]:
    """Why somebody should look at a job; nothing for one that goes its way, or has gone it."""
    return tuple(_attention(row))


def _attention(row: Listed) -> Iterator[str]:
    record = row.record
    if record is None:
        yield "unreadable"
        return
    reason = record.wait.reason if record.wait is not None else None
    if reason in CHOICE or any(not hold.lifted for hold in record.holds):
        yield "held"
    if reason in (Reason.GONE, Reason.VANISHED):
        yield "gone"
    if record.plan.foreign != "ignore" and any(_is_open_foreign(object) for object in record.objects):
        yield "foreign"
    if reason is Reason.UNMATCHED:
        yield "unmatched"
    if is_unattended(row):
        yield "unattended"
    if record.outcome is not None and not record.settled:
        yield "unsettled"


def _is_open_foreign(object: Object) -> bool:
    return object.foreign and not object.disposed and object.state is not State.ENDED


def advice(record: Record) -> str:
    """What a person can do about what a job waits for, in the words of the command line."""
    reason = record.wait.reason if record.wait is not None else None
    if reason in CHOICE:
        return "release launches it again, resolve says how it came out, cancel ends it"
    if reason in _SAID:
        return _SAID[reason]
    if record.outcome is None and any(not hold.lifted for hold in record.holds):
        return "release lets it start"
    return ""


def _since(record: Record, row: Listed) -> datetime:
    if record.outcome is not None:
        return record.outcome.at
    if record.wait is not None:
        return record.wait.since
    last = record.last
    object = record.object(last.canonical) if last is not None and last.canonical else None
    if object is not None:
        return object.seen
    if last is None:
        return row.created
    return last.attempts[0].committed if last.attempts else row.updated


def _launched(record: Record, submission: Submission) -> Launched:
    attempts = tuple(Tried(number=a.number, reply=_reply(a), disposed=a.disposed) for a in submission.attempts)
    why = record.spent(submission.why) or submission.why
    return Launched(number=submission.number, why=why, attempts=attempts)


def _reply(attempt: Attempt) -> str:
    if attempt.reply is None:
        return ""
    answer, text = attempt.reply.answer, attempt.reply.text
    return f"{answer}: {text}" if text and answer is not Answer.DONE else str(answer)


def _sight(record: Record, object: Object) -> Sight:
    end = object.end_of(object.run)
    return Sight(
        id=object.id,
        submission=object.submission,
        attempt=object.attempt,
        role=_role(record, object),
        state=f"{object.state}, hold on" if object.hold else str(object.state),
        run=object.run,
        end="" if end is None else describe_end(end),
        nodes=object.nodes,
        seen=object.seen,
    )


def _role(record: Record, object: Object) -> str:
    if object.foreign:
        return "foreign, disposed" if object.disposed else "foreign"
    if any(submission.canonical == object.id for submission in record.submissions):
        return "canonical"
    return "retired" if object.retired else ""


def outcome_words(outcome: Outcome) -> str:
    """`failed (exit, code 3) by dispatch:default`, ..."""
    told = [str(outcome.cause)] if outcome.cause is not None else []
    told += [f"code {outcome.exit_code}"] if outcome.exit_code is not None and outcome.result is Result.FAILED else []
    cause = f" ({', '.join(told)})" if told else ""
    return f"{outcome.result}{cause} by {outcome.by}"
