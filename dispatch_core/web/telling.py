"""What the page of one job tells: in one sentence what is so, why it does not run, and what was launched.

One rule: it is read from the record and its row alone, in the words of the record, the gate and the command line;
nothing is asked of a scheduler, and what the record cannot know is said to be as last listed. It is pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from dispatch_core.plan import Value
from dispatch_core.reasons import FOR_A_PERSON, Reason
from dispatch_core.record import BEFORE_THE_RUN, Object, Record, Result, State, Submission, run_key
from dispatch_core.status import HELD, NEEDS_A_PERSON, Sight, Status, Tried, outcome_words

UNATTENDED = "Nobody supervises it, so nothing is opened, recovered or cleaned up meanwhile."


class Point(Value, frozen=True):
    """One thing that must be so before the job runs, or settles."""

    name: str
    holds: bool | None
    """None: the record does not tell."""
    text: str


class Launch(Value, frozen=True):
    """One attempt of a submission, and an object that it made, where one was seen."""

    number: str
    """`2.1`; only the submission where nothing was started yet."""
    why: str
    reply: str
    sight: Sight | None


def headline(record: Record, shown: Status) -> str:
    """What is so, in one sentence, and one more where nobody supervises the job."""
    said = _said(record, shown)
    return f"{said} {UNATTENDED}" if shown.unattended else said


def _said(record: Record, shown: Status) -> str:
    if shown.outcome is not None:
        verb = "is" if shown.outcome.result is Result.CANCELLED else "has"
        message = f": {shown.outcome.message.rstrip('.')}" if shown.outcome.message else ""
        waits = shown.receipt.waits_for if shown.receipt is not None else ""
        rest = f"clean-up waits for {waits.rstrip('.')}" if waits else "clean-up is complete"
        return f"It {verb} {outcome_words(shown.outcome)}{message}; {rest}."
    if shown.state == NEEDS_A_PERSON and record.wait is not None:
        return f"It waits for a person: {record.wait.text.rstrip('.')}."
    held = [hold for hold in record.holds if not hold.lifted]
    if shown.state == HELD and held:
        return f"It is held by {held[-1].asked_by}: {held[-1].reason.rstrip('.')}."
    said = _going(record, shown)
    return f"{said}; a hold counts for its next start." if held else f"{said}."


def _going(record: Record, shown: Status) -> str:
    object = canonical(record, record.last)
    if object is not None and object.state in (State.RUNNING, State.ENDING):
        run = f", run {object.run}" if object.run > 1 else ""
        nodes = f", on {' '.join(object.nodes)}" if object.nodes else ""
        doing = "runs" if object.state is State.RUNNING else "is ending"
        return f"It {doing} as {object.id}, submission {object.submission}{run}{nodes}"
    if record.wait is not None:
        return f"It is {shown.state}: {record.wait.text.rstrip('.')}"
    if record.intents:
        intent = record.intents[0]
        why = f" after {intent.cause}" if intent.cause is not None else ""
        return f"It is recovering{why}: a {intent.do} by {intent.rule}"
    return {
        "submitted": "It is submitted, and nothing is launched yet",
        "starting": "It is starting: its gate is not open yet",
        "queued": "It is queued: its gate is open, and the scheduler has not started it",
        "recovering": "Its run has ended, and what follows is not decided yet",
    }.get(shown.state, f"It is {shown.state}")


def canonical(record: Record, submission: Submission | None) -> Object | None:
    """The object that counts for a submission, once it is chosen."""
    return record.object(submission.canonical) if submission is not None and submission.canonical else None


def is_running(record: Record) -> bool:
    """Whether the object that counts was last listed running or ending."""
    object = canonical(record, record.last)
    return record.outcome is None and object is not None and object.state in (State.RUNNING, State.ENDING)


# --- why it does not run


def why_not_running(record: Record, shown: Status) -> tuple[Point, ...]:
    """What the record tells of the conditions, what does not hold first; nothing for a job that runs or has ended."""
    if record.outcome is not None or is_running(record):
        return ()
    points = [*_people(record, shown), *_scheduler(record), *_gate(record)]
    return tuple(sorted(points, key=lambda point: point.holds is not False))


def _people(record: Record, shown: Status) -> Iterator[Point]:
    held = [hold for hold in record.holds if not hold.lifted]
    words = "; ".join(f"hold {hold.number} by {hold.asked_by}: {hold.reason}" for hold in held)
    yield Point(name="hold", holds=not held, text=words or "no hold is asked for")
    if record.wait is not None and record.wait.reason in FOR_A_PERSON:
        yield Point(name="a person's word", holds=False, text=record.wait.text)
    text = f"supervised by {shown.supervisor}" if shown.supervisor else "nobody supervises it"
    yield Point(name="supervisor", holds=shown.supervisor is not None, text=text)


def _scheduler(record: Record) -> Iterator[Point]:
    wait = record.wait
    if wait is not None and wait.reason in (Reason.UNREACHABLE, Reason.MOVED_BACK):
        yield Point(name="scheduler", holds=False, text=wait.text)
    for intent in record.intents:
        when = intent.not_before.strftime("%Y-%m-%dT%H:%M:%SZ")
        text = f"{intent.do} for {intent.key}, by {intent.rule}, not before {when}"
        yield Point(name="recovery", holds=False, text=text)


def _gate(record: Record) -> Iterator[Point]:
    """The gate's conditions, as far as the record tells of them."""
    last = record.last
    if last is None:
        yield Point(name="submission", holds=False, text="no submission is authorized yet")
        return
    object = canonical(record, last)
    if object is None:
        yield Point(name="object", holds=False, text=_without_object(record, last))
    living = [o.id for o in record.objects if o.retired and not _is_past(o)]
    text = f"not yet gone: {', '.join(living)}" if living else "no duplicate is left"
    yield Point(name="duplicates", holds=not living, text=text)
    for submission in record.submissions[:-1]:
        earlier = canonical(record, submission)
        if earlier is not None:
            text = f"{earlier.id} is {'over' if _is_past(earlier) else f'{earlier.state} as last listed'}"
            yield Point(name=f"submission {submission.number} over", holds=_is_past(earlier), text=text)
    if object is not None:
        yield from _of_object(record, object)


def _without_object(record: Record, last: Submission) -> str:
    made = record.of(last.number)
    if made:
        return f"none is chosen yet of {', '.join(object.id for object in made)}"
    if not last.attempts:
        return f"submission {last.number} is to be started"
    attempt = last.attempts[-1]
    replied = f"replied {attempt.reply.answer}" if attempt.reply is not None else "has not replied"
    return f"the start of attempt {last.number}.{attempt.number} {replied}, and no object is listed"


def _of_object(record: Record, object: Object) -> Iterator[Point]:
    keys = [run_key(object.id, run) for run in range(1, object.run)]
    unjudged = [key for key in keys if record.spent(key) is None]
    text = f"not yet judged: {', '.join(unjudged)}" if unjudged else "all are judged"
    yield Point(name="earlier runs", holds=not unjudged, text=text)
    if object.state is State.ENDED:
        yield Point(name="run", holds=False, text=f"run {object.run} of {object.id} has ended")
    elif object.state is State.GATED:
        yield Point(name="gate", holds=False, text=f"the gate of {object.id} was shut when it was last listed")
    elif object.state in BEFORE_THE_RUN:
        yield Point(name="gate", holds=True, text=f"the gate of {object.id} is open")
        text = f"the scheduler has it {object.state}, and has not started it"
        yield Point(name="scheduler", holds=False, text=text)
    else:
        yield Point(name="scheduler", holds=None, text=f"{object.id} is {object.state} as last listed")


def _is_past(object: Object) -> bool:
    """Whether an object was seen to its end, or a person has said that it is gone."""
    return object.state is State.ENDED or object.gone is not None


# --- what was launched


def launches(shown: Status) -> tuple[Launch, ...]:
    """Every attempt, with what it made."""
    return tuple(_launches(shown))


def _launches(shown: Status) -> Iterator[Launch]:
    for submission in shown.submissions:
        if not submission.attempts:
            yield Launch(number=str(submission.number), why=submission.why, reply="to be started", sight=None)
        for attempt in submission.attempts:
            name = f"{submission.number}.{attempt.number}"
            made = [o for o in shown.objects if (o.submission, o.attempt) == (submission.number, attempt.number)]
            if not made:
                yield Launch(number=name, why=submission.why, reply=_reply(attempt), sight=None)
            for sight in made:
                yield Launch(number=name, why=submission.why, reply=_reply(attempt), sight=sight)


def _reply(attempt: Tried) -> str:
    reply = attempt.reply or "none yet"
    return f"{reply}, disposed" if attempt.disposed else reply


def foreign(shown: Status) -> tuple[Sight, ...]:
    """Objects that carry the job's name and are not of its record."""
    return tuple(sight for sight in shown.objects if sight.submission == 0)


def as_of(record: Record) -> datetime | None:
    """When a listing last changed what is known of the job's objects, by the scheduler host's clock."""
    return max((object.seen for object in record.objects), default=None)
