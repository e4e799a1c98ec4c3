"""What one decision is, and the draft of it while it is being made.

One rule: what must be durable and what may be sent are different types. A call can be drafted only together with the
row that records it, so no call is ever sent that its commit does not hold. This room asks no questions; `next` and
`settle` do.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec.structs import replace

from dispatch_core.evidence import is_news
from dispatch_core.find import Observed
from dispatch_core.guards import guard
from dispatch_core.plan import Cause, End, Spec, Value
from dispatch_core.reasons import FOR_A_PERSON, Reason
from dispatch_core.record import (
    Attempt,
    Call,
    Hold,
    Intent,
    Kind,
    Mark,
    Object,
    Outcome,
    Record,
    Result,
    Spent,
    Submission,
    Wait,
)

SHOWN = FOR_A_PERSON | {Reason.HELD, Reason.MOVED_BACK, Reason.UNREACHABLE}
"""Waits that are kept in the record, so that a status can show them without a listing."""

INSTANT = timedelta(milliseconds=50)
"""Added to what must have passed strictly."""


class Start(Value, frozen=True):
    """Start this attempt."""

    submission: int
    attempt: int
    deadline: datetime


class Send(Value, frozen=True):
    """Make the latest repetition of this call."""

    call: Call


class Note(Value, frozen=True):
    """One thing that a pass did, or did not, and why."""

    reason: Reason
    text: str
    object: str | None = None


class Decision(Value, frozen=True):
    """What one pass decided."""

    record: Record | None
    """To be committed against the revision that was read; None: nothing is worth a commit."""
    calls: tuple[Start | Send, ...]
    """Allowed once that commit has landed, and only then."""
    wake_seconds: float
    """How long to wait if nothing happens."""
    notes: tuple[Note, ...]
    """What it did and did not do, the most telling first."""


class Turn:
    """A decision while it is being made: the record as it will be, and the calls that its commit allows."""

    def __init__(self, read: Record, observed: Observed) -> None:
        self._read = read
        self.observed = observed
        self.record = observed.record
        self.calls: list[Start | Send] = []
        self.notes: list[Note] = []
        self._decided = False
        self._wakes: list[datetime] = []

    # --- saying why

    def note(self, reason: Reason, text: str, object: str | None = None, *, until: datetime | None = None) -> None:
        """Say what was, or was not, done; `until` is when to ask again."""
        self.notes.append(Note(reason=reason, text=text, object=object))
        if until is not None:
            self._wakes.append(until)

    def again(self) -> None:
        """Ask again at once."""
        self._wakes.append(self.observed.began)

    def wake(self, at: datetime) -> None:
        self._wakes.append(at)

    # --- changing the record

    @property
    def decided(self) -> bool:
        """Whether this turn holds more than evidence and the choice of an object: then no Open goes with it."""
        return self._decided

    def change(self, **fields: object) -> None:
        self._decided = True
        self.record = replace(self.record, **fields)

    def change_submission(self, submission: Submission) -> None:
        rows = tuple(submission if s.number == submission.number else s for s in self.record.submissions)
        self.change(submissions=rows)

    def change_object(self, object: Object) -> None:
        self.change(objects=tuple(object if o.id == object.id else o for o in self.record.objects))

    def choose(self, submission: Submission, object: Object) -> None:
        """Make an object the one that counts: the only decision that may share a commit with an Open."""
        chosen = replace(submission, canonical=object.id)
        rows = tuple(chosen if s.number == submission.number else s for s in self.record.submissions)
        self.record = replace(self.record, submissions=rows)

    def spend(self, key: str, rule: str) -> None:
        self.change(budget=(*self.record.budget, Spent(key=key, rule=rule)))

    def intend(self, intent: Intent) -> None:
        others = tuple(i for i in self.record.intents if i.key != intent.key)
        self.change(intents=(*others, intent))

    def drop(self, intent: Intent) -> None:
        self.change(intents=tuple(i for i in self.record.intents if i.key != intent.key))

    def ask_hold(self, asked_by: str, reason: str) -> None:
        hold = Hold(number=len(self.record.holds) + 1, asked_by=asked_by, reason=reason)
        self.change(holds=(*self.record.holds, hold))

    def end_job(self, result: Result, end: End, by: str) -> None:
        """Set the outcome; every hold is lifted and every intent dropped with it."""
        self.record = concluded(
            self.record,
            Outcome(
                result=result,
                cause=None if result is Result.SUCCEEDED and end.cause is Cause.COMPLETED else end.cause,
                at=self.observed.listing.ended,
                by=by,
                message=end.message,
                exit_code=end.exit_code,
            ),
        )
        self._decided = True
        self.notes = [note for note in self.notes if note.reason is not Reason.HELD]  # every hold is lifted
        self.note(Reason.OUTCOME, f"the job has {result}: {end.cause}, by {by}")
        self.again()

    # --- authorizing

    @property
    def deadline(self) -> datetime:
        """Of a call that is decided now: it runs from the listing's end, to leave room for the commit and the call."""
        return self.observed.listing.ended + timedelta(seconds=self.observed.bounds.window_seconds)

    def authorize(self, why: str, spec: Spec) -> None:
        """The next submission, with its first attempt; nothing where the cluster takes no more."""
        if not self.has_room():
            return
        submission = Submission(number=len(self.record.submissions) + 1, why=why, spec=spec)
        self.change(submissions=(*self.record.submissions, submission))
        self.note(Reason.AUTHORIZED, f"submission {submission.number} is authorized: {why}")
        self._attempt(submission)

    def has_room(self) -> bool:
        """Whether the cluster takes one more object; says so where it does not."""
        seconds = self.observed.listing.full_seconds
        if seconds > 0:
            until = self.observed.listing.ended + timedelta(seconds=seconds)
            self.note(Reason.AWAITING_ROOM, "the cluster takes no more objects for now", until=until)
        return seconds <= 0

    def attempt(self, submission: Submission) -> None:
        """One more attempt, and its Start; nothing where the cluster takes no more."""
        if self.has_room():
            self._attempt(submission)

    def _attempt(self, submission: Submission) -> None:
        attempt = Attempt(number=len(submission.attempts) + 1, committed=self.observed.began, deadline=self.deadline)
        self.change_submission(replace(submission, attempts=(*submission.attempts, attempt)))
        self.calls.append(Start(submission=submission.number, attempt=attempt.number, deadline=attempt.deadline))
        self.note(Reason.ATTEMPTED, f"attempt {attempt.number} of submission {submission.number} is started")
        self.again()

    def send(self, kind: Kind, object: str | None = None, run: int = 0, hold: int = 0, *, why: Note) -> bool:
        """Make a call, or make it again when its delay is over; says whether it is made now."""
        row = self.record.call(kind, object, run, hold)
        due = self.observed.due_at(row)
        if due > self.observed.began:
            self.note(Reason.AWAITING_REPEAT, f"{why.text}; asked {row.count if row else 0} times", object, until=due)
            return False
        call = Call(
            kind=kind,
            object=object,
            run=run,
            hold=hold,
            committed=self.observed.began,
            deadline=self.deadline,
            count=1 if row is None else row.count + 1,
        )
        others = tuple(c for c in self.record.calls if c.identity != call.identity)
        self.change(calls=(*others, call))
        self.calls.append(Send(call=call))
        self.notes.append(why)
        self.again()
        return True

    # --- ending the turn

    def mark_missing(self) -> None:
        """Count this listing towards the absence of what it ought to show, or start the count."""
        ignored = self.record.plan.foreign == "ignore"
        for object in self.record.objects:
            counts = not object.disposed and not (object.foreign and ignored)
            if counts and self.observed.is_missing(object) and not self.observed.is_gone(object):
                self._mark_object(object)

    def _mark_object(self, object: Object) -> None:
        naming = [c.deadline for c in self.record.calls if c.object == object.id]
        since = max((self.observed.expiry(deadline) for deadline in naming), default=None)
        mark = self.counted(object.missing, since)
        if mark != object.missing:
            self.change_object(replace(object, missing=mark))
        until = self.observed.ripe(mark) if mark is not None else since
        text = f"{object.id} is not listed; absence is being counted"
        self.note(Reason.AWAITING_ABSENCE, text, object.id, until=until + INSTANT if until else None)

    def counted(self, mark: Mark | None, since: datetime | None) -> Mark | None:
        """A mark after one more complete listing; it starts only with a listing that began after `since`."""
        if mark is None:
            if since is not None and not _has_expired(self.observed, since):
                return None
            self.again()
            return Mark(first=self.observed.began)
        if mark.second is None and self.observed.began > mark.first:
            return Mark(first=mark.first, second=self.observed.began)
        return mark

    def decision(self) -> Decision:
        """The frozen result; the wait that the record shows is brought up to date first."""
        self._show_wait()
        worth = is_news(self._read, self.record)
        seconds = self.observed.bounds.resync_seconds
        if self._wakes:
            seconds = min(seconds, (min(self._wakes) - self.observed.listing.ended).total_seconds())
        return Decision(
            record=self.record if worth else None,
            calls=tuple(self.calls),
            wake_seconds=max(0.0, seconds),
            notes=tuple(self.notes),
        )

    def _show_wait(self) -> None:
        shown = min([n for n in self.notes if n.reason in SHOWN], key=_urgency, default=None)
        before = self.record.wait or self._read.wait
        if shown is None:
            wait = None
        elif before is not None and (before.reason, before.object) == (shown.reason, shown.object):
            wait = replace(before, text=shown.text)
        else:
            wait = Wait(reason=shown.reason, text=shown.text, since=self.observed.began, object=shown.object)
        if wait != self.record.wait:
            self.record = replace(self.record, wait=wait)


def _urgency(note: Note) -> int:
    """What only a person can end is shown before a hold or an outage, and a stray object last: it stops nothing."""
    if note.reason is Reason.FOREIGN:
        return 2
    return 0 if note.reason in FOR_A_PERSON else 1


def concluded(record: Record, outcome: Outcome) -> Record:
    """The record with an outcome: holds lifted, resubmits and requeues not yet carried out dropped (X1)."""
    return replace(
        record,
        outcome=replace(outcome, revision=record.revision + 1),
        intents=(),
        holds=tuple(replace(hold, lifted=True) for hold in record.holds),
        wait=None,
    )


@guard("absence_after_last_call_expired", promise="C4", line=2, without=True)
def _has_expired(observed: Observed, since: datetime) -> bool:
    """Whether the listing began after the last call that names the object expired: a requeue that lands later brings
    back what was missing."""
    return observed.began > since
