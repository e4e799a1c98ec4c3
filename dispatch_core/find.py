"""What one listing says of a record: the words that every decision rests on.

One rule: what a listed object is now is this listing's own word; the record speaks only for objects that are not
listed, and absence counts only in a complete listing. Expiry is judged by the listing's beginning, on the scheduler
host's clock, and no other clock is known here. This room decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from dispatch_core.evidence import Bounds, Capabilities, Listing, Sighting, merge, seen
from dispatch_core.plan import Cause, End, Value
from dispatch_core.record import (
    ATTEMPTS,
    Answer,
    Attempt,
    Call,
    Kind,
    Mark,
    Object,
    Record,
    State,
    Submission,
    is_late,
)

LONGEST_DELAY_SECONDS = 600.0
"""Between two repetitions of one call."""


class Observed(Value, frozen=True):
    """A record with a listing merged into it, and what the cluster declares."""

    record: Record
    listing: Listing
    bounds: Bounds
    capabilities: Capabilities

    # --- time

    @property
    def began(self) -> datetime:
        return self.listing.began

    def expiry(self, deadline: datetime) -> datetime:
        """When a call with this deadline can no longer land."""
        return deadline + timedelta(seconds=self.bounds.call_seconds)

    def expired(self, deadline: datetime) -> bool:
        """Whether it had expired before this listing looked (L2, L5); strictly, since it shows its beginning."""
        return self.began > self.expiry(deadline)  # history: expiry_by_listing_beginning

    def unexpired(self, *kinds: Kind, object: str | None = None) -> tuple[Call, ...]:
        """Calls of these kinds, on one object or on any, that can still land."""
        return tuple(
            call
            for call in self.record.calls
            if call.kind in kinds and object in (None, call.object) and not self.expired(call.deadline)
        )

    def repeat_at(self, committed: datetime, count: int) -> datetime:
        """When a call that was made `count` times may be made again."""
        delay = min(self.bounds.repeat_seconds * 2 ** min(count - 1, 30), LONGEST_DELAY_SECONDS)
        return committed + timedelta(seconds=delay)

    def due_at(self, call: Call | None) -> datetime:
        """When a call is to be made (again): after its delay, and an unanswered one not before its deadline."""
        if call is None:
            return self.began
        again = self.repeat_at(call.committed, call.count)
        return again if call.reply is not None else max(again, call.deadline)

    def spans(self, mark: Mark | None) -> bool:
        """Whether complete listings in a row, this one the last, span the absence rule."""
        return self.listing.complete and mark is not None and mark.second is not None and self.began >= self.ripe(mark)

    def ripe(self, mark: Mark) -> datetime:
        """When a mark's span is full, if the next listings show the same."""
        # history: absence_counted_from_second_listing
        return (mark.second or mark.first) + timedelta(seconds=self.bounds.absence_seconds)

    # --- objects

    def sighting(self, id: str) -> Sighting | None:
        return next((sighting for sighting in self.listing.objects if sighting.id == id), None)

    def is_listed_alive(self, object: Object) -> bool:
        sighting = self.sighting(object.id)
        return sighting is not None and sighting.state is not State.ENDED

    def is_missing(self, object: Object) -> bool:
        """Not in this complete listing, though nothing has recorded its end."""
        # history: absence_rule
        return self.listing.complete and self.sighting(object.id) is None and object.state is not State.ENDED

    def is_gone(self, object: Object) -> bool:
        """Missing by the absence rule, or by a person's word. A decision's to use: never evidence."""
        # history: gone_by_absence_rule
        return self.is_missing(object) and (object.gone is not None or self.spans(object.missing))

    def is_done(self, object: Object) -> bool:
        """Ended or gone: by this listing's word if it is listed, by the record's if it is not."""
        sighting = self.sighting(object.id)
        if sighting is not None:
            return sighting.state is State.ENDED  # history: listing_own_word
        return object.state is State.ENDED or self.is_gone(object)

    def is_moved_back(self, object: Object) -> bool:
        """Listed alive although its end is recorded, or in a run that is over: a controller that rolled back."""
        sighting = self.sighting(object.id)
        if sighting is None or sighting.state is State.ENDED:
            return sighting is not None and sighting.run < object.run
        return sighting.run < object.run or object.state is State.ENDED

    def never_opened(self, object: Object) -> bool:
        """No Open was ever committed for it, and no listing has shown it open."""
        return not object.opened and all(  # history: open_committed_first
            call.object != object.id for call in self.record.calls if call.kind is Kind.OPEN
        )

    def is_over(self, object: Object) -> bool:
        """Whether an earlier submission's canonical object can run no more, as N+1's gate asks (G8)."""
        sighting = self.sighting(object.id)
        if sighting is not None:
            return sighting.state is State.ENDED and sighting.run == object.run
        if object.state is State.ENDED:
            return True
        never_ran = self.never_opened(object) and object.run == 1
        return self.is_gone(object) and (object.state is State.ENDING or never_ran or object.gone is not None)

    def end_of(self, object: Object, run: int) -> End | None:
        """How a run ended: a cancellation that we asked for is `stopped`, any other `stopped_outside`."""
        end = object.end_of(run)
        if end is None or end.cause is not Cause.STOPPED_OUTSIDE:
            return end
        # history: own_stop_fires_no_rule
        ours = self.record.call(Kind.STOP, object.id, run) or self.record.call(Kind.STOP_JOB)
        return end if ours is None else End(cause=Cause.STOPPED, message=end.message, seconds=end.seconds)

    def newest_end(self, object: Object) -> End | None:
        """The end of its newest run, if that has ended, or the object is gone; asked of none that moved back."""
        known = self.end_of(object, object.run)
        if self.is_gone(object):
            return known if known is not None and object.state is State.ENDING else End(cause=Cause.VANISHED)
        if object.state is not State.ENDED:
            return None
        return known or End(cause=Cause.UNRECOGNIZED, message="it ended, and the scheduler does not say how")

    def foreign(self) -> tuple[Object, ...]:
        """Foreign objects that are not disposed: neither ended nor gone, and no person or policy said so."""
        if self.record.plan.foreign == "ignore":
            return ()
        return tuple(o for o in self.record.objects if o.foreign and not o.disposed and not self.is_done(o))

    def ours(self) -> tuple[Object, ...]:
        return tuple(object for object in self.record.objects if not object.foreign)

    # --- attempts

    def made(self, submission: Submission, attempt: Attempt) -> tuple[Object, ...]:
        """The objects that carry an attempt's number."""
        return tuple(o for o in self.record.of(submission.number) if o.attempt == attempt.number)

    def is_absent(self, submission: Submission, attempt: Attempt) -> bool:
        """Whether an attempt has no object, or none any more."""
        objects = self.made(submission, attempt)
        if objects:
            return self.listing.complete and all(self.sighting(o.id) is None and self.is_done(o) for o in objects)
        if attempt.disposed or self.record.plan.unmatched == "manual":
            return attempt.disposed
        return self.expired(attempt.deadline) and self.spans(attempt.missing)

    def is_unmatched(self, submission: Submission, attempt: Attempt) -> bool:
        """Whether nobody knows if the attempt made an object."""
        told = attempt.reply is not None and attempt.reply.answer in (Answer.REFUSED, Answer.LATE)
        return not told and not attempt.disposed and not self.made(submission, attempt)

    def end_without_object(self, submission: Submission) -> End | None:
        """How a submission ended that has no object to run: refused, or never created; None: it has not."""
        settled = [
            (a, a.reply is not None and a.reply.answer in (Answer.REFUSED, Answer.LATE)) for a in submission.attempts
        ]
        if not all(told or (self.expired(a.deadline) and self.is_absent(submission, a)) for a, told in settled):
            return None
        refused = [a.reply.text for a in submission.attempts if a.reply and a.reply.answer is Answer.REFUSED]
        if refused:
            return End(cause=Cause.REFUSED, message=refused[-1])
        if sum(not is_late(a) for a in submission.attempts) < ATTEMPTS:
            return None
        return End(cause=Cause.NEVER_CREATED, message=f"{ATTEMPTS} attempts expired without an object")


def observe(record: Record, listing: Listing, bounds: Bounds, capabilities: Capabilities) -> Observed:
    """The record as this listing shows it: its evidence merged, in memory."""
    # history: listing_begun_after_read
    return Observed(record=merge(record, seen(listing)), listing=listing, bounds=bounds, capabilities=capabilities)


def last_expiry(observed: Observed, calls: Iterable[Call]) -> datetime | None:
    """When the last of these calls expires."""
    return max((observed.expiry(call.deadline) for call in calls), default=None)
