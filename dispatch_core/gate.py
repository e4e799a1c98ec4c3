"""The gate's condition: when the canonical object of the newest submission may be opened (G8, G9).

One rule: every condition holds in this listing, or the gate stays shut. Nothing here is a stored flag; `explain` prints
the very list that `next` obeys.
"""

from __future__ import annotations

from dispatch_core.find import Observed
from dispatch_core.plan import Cause, Value
from dispatch_core.reasons import Reason
from dispatch_core.record import Kind, Object, Record, State, run_key


class Condition(Value, frozen=True):
    """One of the conditions, and whether it holds."""

    name: str
    holds: bool
    text: str
    """What is so: why it does not hold, or that it does."""
    reason: Reason = Reason.AWAITING_EARLIER
    object: str | None = None


def conditions(record: Record, observed: Observed, object: Object) -> tuple[Condition, ...]:
    """What must hold before `object`, canonical in `record`, is opened; `observed` is the listing of this pass."""
    return (
        Condition(
            name="listing",
            holds=observed.listing.complete,
            text="the listing is complete" if observed.listing.complete else "the listing is not complete",
            reason=Reason.LISTING_INCOMPLETE,
        ),
        Condition(
            name="outcome",
            holds=record.outcome is None,
            text="the job is meant to run" if record.outcome is None else f"the job has {record.outcome.result}",
            reason=Reason.OUTCOME,
        ),
        _duplicates(record, observed),
        *_earlier(record, observed),
        _runs(record, observed, object),
        _held(record, observed, object),
    )


def _duplicates(record: Record, observed: Observed) -> Condition:
    newest = record.submissions[-1]
    living = [o.id for o in record.objects if o.retired and not observed.is_done(o)]
    unretired = [o.id for o in record.of(newest.number) if not o.retired and o.id != newest.canonical]
    return Condition(
        name="duplicates",
        holds=not living and not unretired,  # history: retired_all_gone_before_open
        text=f"not yet gone: {', '.join(living + unretired)}" if living or unretired else "no duplicate is left",
        reason=Reason.AWAITING_DUPLICATES,
        object=next(iter(living + unretired), None),
    )


def _earlier(record: Record, observed: Observed) -> tuple[Condition, ...]:
    """Each earlier submission's canonical object is over, and no requeue of it can still land (L4)."""
    rows = []
    for submission in record.submissions[:-1]:
        object = record.object(submission.canonical) if submission.canonical else None
        if object is None:
            continue
        requeues = observed.unexpired(Kind.REQUEUE, object=object.id)  # history: refused_requeue_is_resubmitted
        gone = observed.is_gone(object) and not observed.is_over(object)
        over = observed.is_over(object) and not requeues  # history: earlier_submissions_over
        rows.append(
            Condition(
                name=f"submission {submission.number} over",
                holds=over,
                text=f"{object.id} is over" if over else _why_not_over(object, observed, gone, bool(requeues)),
                reason=Reason.GONE if gone else Reason.AWAITING_EXPIRY if requeues else Reason.AWAITING_EARLIER,
                object=object.id,
            )
        )
    return tuple(rows)


def _why_not_over(object: Object, observed: Observed, gone: bool, requeued: bool) -> str:
    if gone:
        return (
            f"{object.id} is gone and was last seen {object.state}; it may still run: a person must say that it is over"
        )
    if requeued:
        return f"a requeue of {object.id} can still land"
    sighting = observed.sighting(object.id)
    return f"{object.id} is {sighting.state if sighting else 'not listed, and not yet known to be gone'}"


def _runs(record: Record, observed: Observed, object: Object) -> Condition:
    """Every earlier run of this object is judged, and nothing decided for one is outstanding."""
    keys = [run_key(object.id, run) for run in range(1, object.run)]
    open_keys = [key for key in keys if record.spent(key) is None]
    outstanding = [i.key for i in record.intents if i.key in keys and i.cause is not Cause.VANISHED]
    return Condition(
        name="earlier runs",
        holds=not open_keys and not outstanding,  # history: earlier_runs_judged_first
        text=f"not yet judged: {', '.join(open_keys + outstanding)}" if open_keys or outstanding else "all are judged",
        reason=Reason.AWAITING_END,
        object=object.id,
    )


def _held(record: Record, observed: Observed, object: Object) -> Condition:
    wanted = [hold for hold in record.holds if not hold.lifted]
    on = is_hold_on(observed, object)  # history: hold_on_before_open
    text = "no hold is asked for" if not wanted else "the hold is on the object" if on else "the hold is not on yet"
    return Condition(name="hold", holds=not wanted or on, text=text, reason=Reason.AWAITING_HOLD, object=object.id)


def is_hold_on(observed: Observed, object: Object) -> bool:
    """Whether the listing shows the hold bit, and no release of it can still land (L3)."""
    sighting = observed.sighting(object.id)
    listed = sighting is not None and sighting.hold
    # history: release_unexpired_keeps_gate_shut
    return listed and not observed.unexpired(Kind.RELEASE, object=object.id)


def is_shut(observed: Observed, object: Object) -> bool:
    sighting = observed.sighting(object.id)
    return sighting is not None and sighting.state is State.GATED
