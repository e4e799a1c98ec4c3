"""What one listing says of a record: the words that every decision rests on.

One rule: what a listed object is now is this listing's own word; the record speaks only for objects that are not
listed, and absence counts only in a complete listing. Expiry is judged by the listing's beginning, on the scheduler
host's clock, and no other clock is known here. This room decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from dispatch_core.evidence import Bounds, Capabilities, Listing, Sighting, merge, seen
from dispatch_core.guards import built_in, guard
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

built_in("listing_begun_after_read", promise="C4 C1")  # a pass reads, then lists, and commits both against what it read
built_in("gone_against_revision_read_before", promise="C4 C1")  # the absence and what follows from it are one commit


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

    @guard(
        "expired_after_call_bound",
        promise="L2",
        history="expiry_by_listing_beginning",
        without=lambda _, deadline: deadline,
    )
    def expiry(self, deadline: datetime) -> datetime:
        """When a call with this deadline can no longer land: one that has begun takes up to the declared bound."""
        return deadline + timedelta(seconds=self.bounds.call_seconds + self.bounds.landing_seconds)

    def expired(self, deadline: datetime) -> bool:
        """Whether it had expired before this listing looked (L2, L5); strictly, since it shows its beginning."""
        return self._looked > self.expiry(deadline)

    @property
    @guard("expiry_by_listing_beginning", promise="L5", without=lambda observed: observed.listing.ended)
    def _looked(self) -> datetime:
        """When the listing looked, as far as anybody can say: what lands while it looks may not be in it."""
        return self.began

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
        """Whether complete listings in a row, this one the last, span the absence rule; asked of a complete one."""
        return mark is not None and _has_second(mark) and self._is_ripe(mark)

    @guard("absence_rule", promise="C4", without=True)
    def _is_ripe(self, mark: Mark) -> bool:
        """Whether its span is full; two listings a moment apart may come from one cache that is not yet filled."""
        return self.began >= self.ripe(mark)

    def ripe(self, mark: Mark) -> datetime:
        """When a mark's span is full, if the next listings show the same."""
        return _counted_from(mark) + timedelta(seconds=self.bounds.absence_seconds)

    # --- objects

    def sighting(self, id: str) -> Sighting | None:
        for sighting in self.listing.objects:
            if sighting.id == id:
                return sighting
        return None

    def is_listed_alive(self, object: Object) -> bool:
        sighting = self.sighting(object.id)
        return sighting is not None and sighting.state is not State.ENDED

    def is_missing(self, object: Object) -> bool:
        """Not in this complete listing, and no recorded end accounts for that."""
        return _may_miss(self.listing) and self.sighting(object.id) is None and not self._stays_ended(object)

    def is_gone(self, object: Object) -> bool:
        """Missing by the absence rule, or by a person's word. A decision's to use: never evidence."""
        return self.is_missing(object) and (object.gone is not None or self._is_absence_proven(object))

    @guard("gone_by_absence_rule", promise="C4", without=True)
    def _is_absence_proven(self, object: Object) -> bool:
        """One listing without an object is not enough to call it gone: a live job would be launched again."""
        return self.spans(object.missing)

    def _stays_ended(self, object: Object) -> bool:
        """Whether its recorded end speaks for it while it is not listed."""
        return object.state is State.ENDED and not self._may_be_back(object)

    @guard("requeued_may_be_back", promise="L4 G8", line=2, without=False)
    def _may_be_back(self, object: Object) -> bool:
        """Whether a requeue of the run that ended was committed, whatever it replied: the next run may be there. Close
        needs no such doubt: every listing that it settles on would have to hide that run."""
        return self.record.outcome is None and self.record.call(Kind.REQUEUE, object.id, object.run) is not None

    @guard("listing_own_word", promise="S1", without=lambda *_: None)
    def own_word(self, object: Object) -> Sighting | None:
        """What this listing says of the object, before anything that is recorded of it: a controller that rolled back
        lists alive what had ended."""
        return self.sighting(object.id)

    def is_done(self, object: Object) -> bool:
        """Ended or gone: by this listing's word if it is listed, by the record's if it is not."""
        sighting = self.own_word(object)
        if sighting is not None:
            return sighting.state is State.ENDED
        return self._stays_ended(object) or self.is_gone(object)

    @guard("moved_back_before_the_outcome", promise="C3", line=2, without=False)
    def is_moved_back(self, object: Object) -> bool:
        """Listed alive although its end is recorded, or in a run that is over: a controller that rolled back."""
        sighting = self.sighting(object.id)
        if sighting is None or sighting.state is State.ENDED:
            return sighting is not None and sighting.run < object.run
        return sighting.run < object.run or object.state is State.ENDED

    def never_opened(self, object: Object) -> bool:
        """No Open was ever committed for it, and no listing has shown it open."""
        return not _was_seen_open(object) and not self._has_open(object)

    @guard("open_committed_first", promise="X3", without=False)
    def _has_open(self, object: Object) -> bool:
        """Whether an Open of it was committed: it may have landed, and the object may have run, unseen."""
        return any(call.object == object.id for call in self.record.calls if call.kind is Kind.OPEN)

    def is_over(self, object: Object) -> bool:
        """Whether an earlier submission's canonical object can run no more, as N+1's gate asks (G8)."""
        sighting = self.own_word(object)
        if sighting is not None:
            return sighting.state is State.ENDED and _is_newest_run(sighting, object)
        if self._stays_ended(object):
            return True
        return self.is_gone(object) and self._cannot_run(object)

    @guard("gone_earlier_submission", promise="G8", line=2, without=True)
    def _cannot_run(self, object: Object) -> bool:
        """Whether an object that is gone can run no more: last seen ending, or ended and requeued, never run, or a
        person says so. Gone alone says nothing: a lost node may still run what it ran."""
        never_ran = self.never_opened(object) and _is_on_first_run(object)
        return object.state in (State.ENDING, State.ENDED) or never_ran or object.gone is not None

    def end_of(self, object: Object, run: int) -> End | None:
        """How a run ended: a cancellation that we asked for is `stopped`, any other `stopped_outside`."""
        end = object.end_of(run)
        if end is None or end.cause is not Cause.STOPPED_OUTSIDE:
            return end
        if not self._is_our_stop(object, run):
            return end
        return End(cause=Cause.STOPPED, message=end.message, seconds=end.seconds)

    @guard("own_stop_fires_no_rule", promise="T41", line=2, without=False)
    def _is_our_stop(self, object: Object, run: int) -> bool:
        """Whether we asked for this run's cancellation: else every recovery would trigger the next."""
        ours = self.record.call(Kind.STOP, object.id, run) or self.record.call(Kind.STOP_JOB)
        return ours is not None

    def newest_end(self, object: Object) -> End | None:
        """The end of its newest run, if that has ended, or the object is gone; asked of none that moved back."""
        known = self.end_of(object, object.run)
        if object.state is State.ENDED:
            return known or End(cause=Cause.UNRECOGNIZED, message="it ended, and the scheduler does not say how")
        if not self.is_gone(object):
            return None
        return known if known is not None and object.state is State.ENDING else End(cause=Cause.VANISHED)

    def foreign(self) -> tuple[Object, ...]:
        """Foreign objects that are not disposed: neither ended nor gone, and no person or policy said so."""
        if self.record.plan.foreign == "ignore":
            return ()
        return tuple([o for o in self.record.objects if o.foreign and not o.disposed and not self.is_done(o)])

    def ours(self) -> tuple[Object, ...]:
        return tuple([object for object in self.record.objects if not object.foreign])

    # --- attempts

    def made(self, submission: Submission, attempt: Attempt) -> tuple[Object, ...]:
        """The objects that carry an attempt's number."""
        return tuple(o for o in self.record.of(submission.number) if o.attempt == attempt.number)

    def is_absent(self, submission: Submission, attempt: Attempt) -> bool:
        """Whether an attempt has no object, or none any more; asked of a complete listing."""
        objects = self.made(submission, attempt)
        if objects:
            return all(self.sighting(o.id) is None and self.is_done(o) for o in objects)
        if attempt.disposed or self.is_for_a_person():
            return attempt.disposed
        return self.has_landed(attempt) and self._is_never_created(attempt)

    @guard("manual_attempts", promise="S1", line=2, without=False)
    def is_for_a_person(self) -> bool:
        """Whether only a person may say that an attempt made no object."""
        return self.record.plan.unmatched == "manual"

    @guard("never_created_after_expiry", promise="S1", history="three_attempts", line=2, without=True)
    def has_landed(self, attempt: Attempt) -> bool:
        """Whether the attempt's Start has landed, if it ever does."""
        return self.expired(attempt.deadline)

    @guard("never_created_spans_absence", promise="S1 P3", history="three_attempts", without=True)
    def _is_never_created(self, attempt: Attempt) -> bool:
        """Whether listings that span the absence rule show no object of it."""
        return self.spans(attempt.missing)

    def is_unmatched(self, submission: Submission, attempt: Attempt) -> bool:
        """Whether nobody knows if the attempt made an object."""
        return not _is_told(attempt) and not attempt.disposed and not self.made(submission, attempt)

    def end_without_object(self, submission: Submission) -> End | None:
        """How a submission ended that has no object to run: refused, or never created; None: it has not."""
        attempts = submission.attempts
        if not all(_is_told(a) or (self.has_landed(a) and self.is_absent(submission, a)) for a in attempts):
            return None
        refused = [attempt.reply.text for attempt in attempts if attempt.reply and is_refused(attempt)]
        if refused:
            return End(cause=Cause.REFUSED, message=refused[-1])
        if not _is_spent(submission):
            return None
        return End(cause=Cause.NEVER_CREATED, message=f"{ATTEMPTS} attempts expired without an object")


def observe(record: Record, listing: Listing, bounds: Bounds, capabilities: Capabilities) -> Observed:
    """The record as this listing shows it: its evidence merged, in memory."""
    return Observed(record=merge(record, seen(listing)), listing=listing, bounds=bounds, capabilities=capabilities)


def last_expiry(observed: Observed, calls: Iterable[Call]) -> datetime | None:
    """When the last of these calls expires."""
    latest = max([call.deadline for call in calls], default=None)
    return observed.expiry(latest) if latest is not None else None


# --- what else the words rest on, one condition each


@guard("incomplete_misses_nothing", promise="C4", history="partial_listings", without=True)
def _may_miss(listing: Listing) -> bool:
    """Whether an object that it does not show is missing."""
    return listing.complete


@guard("absence_in_three_listings", promise="C4", line=2, history="absence_counted_from_second_listing", without=True)
def _has_second(mark: Mark) -> bool:
    """Whether two listings showed the absence before this one."""
    return mark.second is not None


@guard("absence_counted_from_second_listing", promise="C4", line=2, without=lambda mark: mark.first)
def _counted_from(mark: Mark) -> datetime:
    """Where the span begins: the pass of the second listing read a record that holds the first's mark."""
    return mark.second or mark.first


@guard("seen_open_may_have_run", promise="X3", history="opened_by_an_admin_and_gone", line=2, without=False)
def _was_seen_open(object: Object) -> bool:
    """Whether a listing has shown it open, whoever opened it."""
    return object.opened


@guard(
    "requeued_may_have_run",
    promise="X3",
    history="opened_by_an_admin_and_gone",
    pair="seen_open_may_have_run",
    line=2,
    without=True,
)
def _is_on_first_run(object: Object) -> bool:
    """Whether it was never requeued: there is no later run without an earlier one."""
    return object.run == 1


@guard("over_in_its_highest_run", promise="G8", line=2, without=True)
def _is_newest_run(sighting: Sighting, object: Object) -> bool:
    """Whether no later run of it was ever listed."""
    return sighting.run == object.run


def _is_told(attempt: Attempt) -> bool:
    """Whether a reply says that nothing happened."""
    return attempt.reply is not None and attempt.reply.answer in (Answer.REFUSED, Answer.LATE)


@guard("late_is_not_refused", promise="L1 G5", without=lambda attempt: _is_told(attempt))
def is_refused(attempt: Attempt) -> bool:
    """Whether the scheduler refused it, and says why; `late` says only that we were slow."""
    return attempt.reply is not None and attempt.reply.answer is Answer.REFUSED


@guard("late_is_not_counted", promise="G5", history="late_is_not_refused", line=2, without=True)
def is_counted(attempt: Attempt) -> bool:
    """Whether it is one of the three: a `late` one is not, nothing happened."""
    return not is_late(attempt)


@guard("never_created_after_all_attempts", promise="G5", history="created_and_lost", line=2, without=True)
def _is_spent(submission: Submission) -> bool:
    """Whether all the attempts that count were made: no reply never means not created."""
    return sum(is_counted(attempt) for attempt in submission.attempts) >= ATTEMPTS
