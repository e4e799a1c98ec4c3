"""The record: the one durable document of all that is known and decided about a job.

One rule: a record that breaks an invariant cannot be made, neither by a decision nor by reading a stored one. This room
holds values only. It reads no clock: every time in a record that a decision rests on is the scheduler host's.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from operator import attrgetter

import msgspec

from dispatch_core.errors import UnreadableRecord
from dispatch_core.names import object_name
from dispatch_core.plan import AGAIN, Action, Cause, End, Plan, Spec, Value
from dispatch_core.reasons import Reason

FORMAT = 1
"""The format that this version writes. It reads every format from 1 on."""
ATTEMPTS = 3
"""Starts that count, for one submission (G5)."""
KEY_LENGTH = 250


class State(StrEnum):
    """What an object is, the same for every scheduler."""

    GATED = "gated"
    HELD = "held"
    PENDING = "pending"
    RUNNING = "running"
    ENDING = "ending"
    ENDED = "ended"
    UNRECOGNIZED = "unrecognized"
    """A word that this version does not know: never read as success or failure."""


BEFORE_THE_RUN = frozenset({State.GATED, State.HELD, State.PENDING})


class Answer(StrEnum):
    """What a call replied."""

    DONE = "done"
    REFUSED = "refused"
    """Nothing happened, and the scheduler says why."""
    LATE = "late"
    """The host's deadline check: nothing happened."""
    UNKNOWN = "unknown"
    """It may have happened."""


class Reply(Value, frozen=True):
    """The answer to one call; for a Start that is done, `text` is the new object's id."""

    answer: Answer
    text: str = ""


class Mark(Value, frozen=True):
    """Host times of the first and the second complete listing in a row that showed the same absence."""

    first: datetime
    second: datetime | None = None


class Attempt(Value, frozen=True):
    """One Start, committed before it was sent."""

    number: int
    committed: datetime
    deadline: datetime
    reply: Reply | None = None
    missing: Mark | None = None
    disposed: bool = False
    """A person said that it never made an object."""


class Submission(Value, frozen=True):
    """One authorized launch."""

    number: int
    why: str
    """The budget key that it was authorized by, "first", or "person NAME"."""
    spec: Spec
    attempts: tuple[Attempt, ...] = ()
    canonical: str | None = None
    """The id of the one object that counts; chosen once."""


class RunEnd(Value, frozen=True):
    """The end of one run of an object."""

    run: int
    at: datetime
    end: End


class Object(Value, frozen=True):
    """A thing that exists, or existed, on the scheduler."""

    id: str
    name: str
    submission: int
    """0 for a foreign object."""
    attempt: int
    first_seen: datetime
    seen: datetime
    """Host time of the beginning of the latest listing that changed what is known of it."""
    run: int
    state: State
    hold: bool = False
    opened: bool = False
    """A listing has shown it open."""
    nodes: tuple[str, ...] = ()
    ends: tuple[RunEnd, ...] = ()
    retired: bool = False
    missing: Mark | None = None
    gone: datetime | None = None
    """A person said, of what this object was at this host time, that it is gone."""
    foreign: bool = False
    disposed: bool = False

    def end_of(self, run: int) -> End | None:
        """How that run ended, where the scheduler has told it."""
        return next((row.end for row in self.ends if row.run == run), None)


class Kind(StrEnum):
    """A call on an object, or on the whole job."""

    OPEN = "open"
    SHUT = "shut"
    STOP = "stop"
    STOP_JOB = "stop_job"
    HOLD = "hold"
    RELEASE = "release"
    REQUEUE = "requeue"


class Call(Value, frozen=True):
    """All repetitions of one call: a kind, an object, a run of it and, for hold and release, a hold instance."""

    kind: Kind
    object: str | None
    """None for StopJob."""
    run: int
    """0 for StopJob."""
    hold: int
    """The hold instance; 0 where there is none."""
    committed: datetime
    """Host time of the beginning of the listing that the latest repetition was decided on."""
    deadline: datetime
    """The latest repetition's: the host refuses the call after it."""
    count: int = 1
    reply: Reply | None = None
    """The latest repetition's; None: not known."""

    @property
    def identity(self) -> tuple[Kind, str | None, int, int]:
        return (self.kind, self.object, self.run, self.hold)


class Hold(Value, frozen=True):
    """One hold instance: a person or a timed rule asks that the job does not start (yet)."""

    number: int
    asked_by: str
    reason: str
    lifted: bool = False


class Spent(Value, frozen=True):
    """One unit of budget: the end that spent it, and the rule that it was spent on."""

    key: str
    rule: str


class Intent(Value, frozen=True):
    """A resubmit or requeue that is decided and not yet carried out."""

    key: str
    do: Action
    """Resubmit or requeue."""
    rule: str
    cause: Cause | None
    """What it was decided for; None: a timed rule, before any end."""
    not_before: datetime


class Result(StrEnum):
    """How a job came out."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Outcome(Value, frozen=True):
    """How the job ended."""

    result: Result
    cause: Cause | None
    at: datetime
    """The scheduler host's time; for a cancel, the clock of who asked (shown, never judged by)."""
    by: str
    message: str = ""
    exit_code: int | None = None
    revision: int = 0
    """The one that its commit made: a cancel's receipt names it."""


class Wait(Value, frozen=True):
    """What the job waits for, as last shown; recomputed in every pass, never judged by."""

    reason: Reason
    text: str
    since: datetime
    object: str | None = None
    """The object that it is about."""


class Record(Value, frozen=True):
    """All that is known and decided about one job."""

    key: str
    uid: str
    """Random, new for every record; part of every object's name."""
    scheduler: str
    """The name of the cluster connection that it runs on."""
    spec: Spec
    plan: Plan
    format: int = FORMAT
    revision: int = 0
    commit: str = ""
    """Of the commit that made this revision."""
    submissions: tuple[Submission, ...] = ()
    objects: tuple[Object, ...] = ()
    calls: tuple[Call, ...] = ()
    holds: tuple[Hold, ...] = ()
    budget: tuple[Spent, ...] = ()
    intents: tuple[Intent, ...] = ()
    outcome: Outcome | None = None
    clear: Mark | None = None
    settled: bool = False
    wait: Wait | None = None

    def __post_init__(self) -> None:
        broken = _broken(self)
        if broken is not None:
            raise ValueError(f"job {self.key!r}: {broken}")

    @property
    def last(self) -> Submission | None:
        return self.submissions[-1] if self.submissions else None

    def object(self, id: str) -> Object | None:
        for object in self.objects:
            if object.id == id:
                return object
        return None

    def of(self, submission: int) -> tuple[Object, ...]:
        """The objects that one submission launched."""
        return tuple(object for object in self.objects if object.submission == submission and not object.foreign)

    def call(self, kind: Kind, object: str | None = None, run: int = 0, hold: int = 0) -> Call | None:
        for call in self.calls:
            if call.kind is kind and call.object == object and call.run == run and call.hold == hold:
                return call
        return None

    def spent(self, key: str) -> str | None:
        """The rule that this end's unit was spent on."""
        for unit in self.budget:
            if unit.key == key:
                return unit.rule
        return None

    def used(self, rule: str) -> int:
        return [unit.rule for unit in self.budget].count(rule)

    def intent(self, key: str) -> Intent | None:
        return next((intent for intent in self.intents if intent.key == key), None)

    def names(self) -> tuple[str, ...]:
        """The name of every object that a committed attempt may have made."""
        return tuple(
            object_name(self.uid, submission.number, attempt.number)
            for submission in self.submissions
            for attempt in submission.attempts
        )


_UID_CHARACTERS = frozenset("0123456789abcdefghijklmnopqrstuvwxyz")
_key = attrgetter("key")


def _broken(record: Record) -> str | None:
    """What no record may be, in one sentence; None: it is none of that."""
    if not 1 <= len(record.key) <= KEY_LENGTH:
        return f"the key has {len(record.key)} characters; 1 to {KEY_LENGTH} are allowed"
    if not 8 <= len(record.uid) <= 32 or not _UID_CHARACTERS.issuperset(record.uid):
        return f"the uid {record.uid!r} is not 8 to 32 digits and small letters"
    if record.format != FORMAT:
        return f"it has format {record.format}; this version reads format {FORMAT}"
    objects = {object.id: object for object in record.objects}
    for number, submission in enumerate(record.submissions, 1):
        if submission.number != number:
            return "its submissions are not numbered 1, 2, ..."
        broken = _broken_submission(submission, objects)
        if broken is not None:
            return broken
    if len(objects) < len(record.objects):
        return "an object is in it twice"
    return _broken_rows(record) or _broken_outcome(record)


def _broken_submission(submission: Submission, objects: Mapping[str, Object]) -> str | None:
    attempts = submission.attempts
    for number, attempt in enumerate(attempts, 1):
        if attempt.number != number:
            return f"the attempts of submission {submission.number} are not numbered 1, 2, ..."
    if len(attempts) > ATTEMPTS and sum(not is_late(attempt) for attempt in attempts) > ATTEMPTS:
        return f"submission {submission.number} has more than {ATTEMPTS} attempts"
    if submission.canonical is None:
        return None
    chosen = objects.get(submission.canonical)
    if chosen is None or chosen.foreign or chosen.submission != submission.number:
        return f"the canonical object of submission {submission.number} is not one of its objects"
    if chosen.retired:
        return f"the canonical object of submission {submission.number} is retired"
    return None


def _broken_rows(record: Record) -> str | None:
    if len({(call.kind, call.object, call.run, call.hold) for call in record.calls}) < len(record.calls):
        return "a call is in it twice"
    if len(set(map(_key, record.budget))) < len(record.budget):
        return "one end spent two units of budget"
    return _broken_intents(record.intents) if record.intents else None


def _broken_intents(intents: tuple[Intent, ...]) -> str | None:
    if len({intent.key for intent in intents}) < len(intents):
        return "one end has two intents"
    if any(intent.do not in AGAIN for intent in intents):
        return "an intent neither resubmits nor requeues"
    return None


def _broken_outcome(record: Record) -> str | None:
    if record.outcome is None:
        return "it is settled without an outcome" if record.settled else None
    if record.intents:
        return "it has an outcome and an intent"
    if any(not hold.lifted for hold in record.holds):
        return "it has an outcome and a hold"
    return None


def is_late(attempt: Attempt) -> bool:
    """Whether the host refused the attempt as too late: it is not one of the three."""
    return attempt.reply is not None and attempt.reply.answer is Answer.LATE


def run_key(object: str, run: int) -> str:
    """The budget key of the end of one run."""
    return f"{object}/{run}"


def submission_key(number: int) -> str:
    """The budget key of a submission that ended without an object."""
    return f"submission/{number}"


_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(Record)


def encode(record: Record) -> bytes:
    """The stored document: the same record, the same bytes."""
    return _encoder.encode(record)


def decode(document: bytes | str) -> Record:
    """Read a stored document; raises UnreadableRecord for what this version does not know."""
    try:
        return _decoder.decode(document)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise UnreadableRecord(
            f"a stored record cannot be read: {error}; it was left as it is; run the version of dispatch that wrote it"
        ) from error
