"""The gate's condition: when the canonical object of the newest submission may be opened (G8, G9).

One rule: every condition holds in this listing, or the gate stays shut. Nothing here is a stored flag; `explain` prints
the very list that `next` obeys.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from dispatch_core.find import Observed
from dispatch_core.guards import guard
from dispatch_core.plan import Cause, Value
from dispatch_core.reasons import Reason
from dispatch_core.record import Intent, Kind, Object, Record, RunEnd, State, run_key


class Condition(Value, frozen=True):
    """One of the conditions, and whether it holds."""

    name: str
    holds: bool
    text: str
    """What is so: why it does not hold, or that it does."""
    reason: Reason = Reason.AWAITING_EARLIER
    object: str | None = None
    until: datetime | None = None
    """When it holds by itself, where that is known."""


LOST_NODE = "dispatch:lost-node"
"""Who asks for the hold that a plan wants after a node was lost."""


def conditions(record: Record, observed: Observed, object: Object) -> tuple[Condition, ...]:
    """What must hold before `object`, canonical in `record`, is opened; `observed` is the listing of this pass."""
    return (
        Condition(
            name="listing",
            holds=_may_open(observed),
            text="the listing is complete" if observed.listing.complete else "the listing is not complete",
            reason=Reason.LISTING_INCOMPLETE,
        ),
        Condition(
            name="outcome",
            holds=_is_meant_to_run(record),
            text="the job is meant to run" if record.outcome is None else f"the job has {record.outcome.result}",
            reason=Reason.OUTCOME,
        ),
        _duplicates(record, observed),
        *_earlier(record, observed),
        _runs(record, observed, object),
        _nodes(record, observed),
        *_begun(object),
        _held(record, observed, object),
    )


def _duplicates(record: Record, observed: Observed) -> Condition:
    newest = record.submissions[-1]
    living = [o.id for o in record.objects if o.retired and not _is_gone_or_ended(observed, o)]
    unretired = [o.id for o in record.of(newest.number) if not o.retired and o.id != newest.canonical]
    return Condition(
        name="duplicates",
        holds=not living and _is_sole(unretired),
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
        gone = observed.is_gone(object) and not observed.is_over(object)
        over, requeued = _is_over(observed, object), _may_be_requeued(observed, object)
        rows.append(
            Condition(
                name=f"submission {submission.number} over",
                holds=over and not requeued,
                text=_why_not_over(object, observed, gone, requeued)
                if requeued or not over
                else f"{object.id} is over",
                reason=Reason.GONE if gone else Reason.AWAITING_EXPIRY if requeued else Reason.AWAITING_EARLIER,
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
    open_keys = [key for key in keys if not _is_judged(record, key)]
    outstanding = [intent.key for intent in record.intents if intent.key in keys and _is_outstanding(intent)]
    return Condition(
        name="earlier runs",
        holds=not open_keys and not outstanding,
        text=f"not yet judged: {', '.join(open_keys + outstanding)}" if open_keys or outstanding else "all are judged",
        reason=Reason.AWAITING_END,
        object=object.id,
    )


def _lost(record: Record, observed: Observed) -> list[tuple[Object, RunEnd, datetime]]:
    """Runs that ended by a node failure and may still run, each with the time until when that is to be thought."""
    long = timedelta(seconds=record.plan.lost_node_seconds)
    return [
        (object, row, row.end.lost_since + long)
        for object in record.objects
        for row in object.ends
        if row.end.lost_since is not None
        and not object.foreign
        and _may_run_unseen(observed, row.end.lost_since + long)
    ]


def _lost_words(object: Object, row: RunEnd) -> str:
    return f"a node that run {row.run} of {object.id} was lost with does not answer"


def _is_asked(record: Record, why: str) -> bool:
    return any((hold.asked_by, hold.reason) == (LOST_NODE, why) for hold in record.holds)


def holds_to_ask(record: Record, observed: Observed) -> list[str]:
    """The holds that the plan wants for nodes that were lost, and that nobody has asked for yet: why, for each."""
    if record.plan.lost_node != "hold":
        return []
    words = [_lost_words(object, row) for object, row, _ in _lost(record, observed)]
    return [why for why in words if not _is_asked(record, why)]


def _nodes(record: Record, observed: Observed) -> Condition:
    """No node that was lost may still run an earlier run, as far as the plan waits for that."""
    policy = record.plan.lost_node
    lost = [] if policy == "go" else _lost(record, observed)
    if policy == "hold":
        lost = [(object, row, until) for object, row, until in lost if not _is_asked(record, _lost_words(object, row))]
    return Condition(
        name="nodes",
        holds=not lost,
        text=", ".join(_lost_words(object, row) for object, row, _ in lost) or "no node is waited for",
        reason=Reason.AWAITING_NODE,
        object=lost[0][0].id if lost else None,
        until=max((until for _, _, until in lost), default=None),
    )


def _begun(object: Object) -> tuple[Condition, ...]:
    """Nothing, but where this run was seen running: a controller that forgot lists it shut, and it may run on."""
    if not _was_seen_running(object):
        return ()
    text = f"run {object.run} was seen {object.state}, and may still run: a person says what follows"
    return (Condition(name="this run", holds=False, text=text, reason=Reason.UNRECOGNIZED, object=object.id),)


def _held(record: Record, observed: Observed, object: Object) -> Condition:
    wanted = [hold for hold in record.holds if not hold.lifted]
    on = is_hold_on(observed, object)
    text = "no hold is asked for" if not wanted else "the hold is on the object" if on else "the hold is not on yet"
    return Condition(name="hold", holds=not wanted or on, text=text, reason=Reason.AWAITING_HOLD, object=object.id)


def is_hold_on(observed: Observed, object: Object) -> bool:
    """Whether the listing shows the hold bit, and no release of it can still land (L3)."""
    return _is_listed_held(observed, object) and not _may_be_released(observed, object)


def is_shut(observed: Observed, object: Object) -> bool:
    sighting = observed.sighting(object.id)
    return sighting is not None and sighting.state is State.GATED


# --- the conditions, one by one


@guard("incomplete_opens_nothing", promise="C4", history="partial_listings", without=True)
def _may_open(observed: Observed) -> bool:
    """Whether the listing shows everything that could run beside it."""
    return observed.listing.complete


@guard("open_before_the_outcome", promise="X3", history="nothing_asked_after_outcome", line=2, without=True)
def _is_meant_to_run(record: Record) -> bool:
    return record.outcome is None


@guard("retired_all_gone_before_open", promise="G8", line=2, without=True)
def _is_gone_or_ended(observed: Observed, object: Object) -> bool:
    """Whether a retired object is out of the way: a Stop may not have landed, or do nothing."""
    return observed.is_done(object)


@guard(
    "all_retired_before_open",
    promise="G8",
    line=2,
    history="partial_listings",
    pair="incomplete_opens_nothing",
    without=True,
)
def _is_sole(unretired: list[str]) -> bool:
    """Whether every other object of the submission is retired."""
    return not unretired


@guard("earlier_submissions_over", promise="G8 G9", without=True)
def _is_over(observed: Observed, object: Object) -> bool:
    """Whether an earlier submission's object can run no more: else two of them run at once."""
    return observed.is_over(object)


@guard(
    "gate_waits_for_requeue_expiry",
    promise="L4",
    line=2,
    history="refused_requeue_is_resubmitted",
    pair="requeued_may_be_back",
    without=False,
)
def _may_be_requeued(observed: Observed, object: Object) -> bool:
    """Whether a requeue of an earlier submission's object can still land, whatever it replied."""
    return bool(observed.unexpired(Kind.REQUEUE, object=object.id))


@guard("earlier_runs_judged_first", promise="X3", pair="held_run_rerun", without=True)
def _is_judged(record: Record, key: str) -> bool:
    """Whether an earlier run of the object has had what follows its end decided."""
    return record.spent(key) is not None


@guard("earlier_intents_carried_out_first", promise="X3", history="intent_before_newer_runs", line=2, without=False)
def _is_outstanding(intent: Intent) -> bool:
    """Whether what was decided for an earlier run is still to be done; what was decided for an object that had vanished
    keeps no gate shut once it is listed again."""
    return intent.cause is not Cause.VANISHED


@guard("lost_node_may_still_run", promise="G9", history="lost_node", line=2, without=False)
def _may_run_unseen(observed: Observed, until: datetime) -> bool:
    """Whether a lost node's runs are still to be reckoned with: NODE_FAIL ends a run on paper, not on the node."""
    return observed.began <= until


@guard("begun_run_is_not_opened_again", promise="G8 P1", line=2, without=False)
def _was_seen_running(object: Object) -> bool:
    """Whether a run that is listed gated has begun already: opened again, it would begin beside itself."""
    return object.state in (State.RUNNING, State.ENDING)


@guard("hold_on_before_open", promise="G8", without=True)
def _is_listed_held(observed: Observed, object: Object) -> bool:
    """Whether the listing shows the hold bit; the gate is not a hold, and that a hold was asked for is not enough."""
    sighting = observed.sighting(object.id)
    return sighting is not None and sighting.hold


@guard("release_unexpired_keeps_gate_shut", promise="L3 G8", without=False)
def _may_be_released(observed: Observed, object: Object) -> bool:
    """Whether a release of an earlier hold can still land, and take the hold off behind the open gate."""
    return bool(observed.unexpired(Kind.RELEASE, object=object.id))
