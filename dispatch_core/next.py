"""One decision: from a record and a listing that began after it was read, what to commit, what may be sent, when to ask
again, and why. A pure function of its arguments.

House rules:
- One question after another, in the order of `decide` and `_pursue`. The `if`s are here; helpers answer one question.
- What rests on absence asks a complete listing; what rests on a listed object may go on without.
- A call is drafted with its row (`turn`), so nothing is sent that was not committed first.
- The Open is the only call of its commit, and that commit decides nothing else but the choice of the canonical object.
- One end of one run spends at most one unit of budget; an intent for a run is carried out whatever ended the run.

The order:
1. settled: nothing but sweeping (`settle`)            6. did the newest run end? (recover)
2. an outcome: close (`settle`)                         7. is it pending, or without progress, for too long?
3. no submission: authorize the first                   8. is a hold to be placed, or released?
4. no canonical object: choose one, or attempt again    9. the gate (`gate`): open it, or say what is false
5. retire and stop everything else
"""

from __future__ import annotations

from datetime import datetime

from msgspec.structs import replace

from dispatch_core import gate, recover, settle
from dispatch_core.evidence import Listing, Sighting, is_news
from dispatch_core.find import Observed, is_counted, is_refused
from dispatch_core.guards import guard
from dispatch_core.reasons import FOR_A_PERSON, Reason
from dispatch_core.record import (
    ATTEMPTS,
    BEFORE_THE_RUN,
    Answer,
    Attempt,
    Call,
    Kind,
    Object,
    Record,
    State,
    Submission,
    Wait,
    submission_key,
)
from dispatch_core.turn import INSTANT, Decision, Note, Turn

UNREACHABLE_WAKE_SECONDS = 5.0
"""How long to wait before a scheduler that did not answer is asked again."""


def decide(read: Record, observed: Observed) -> Decision:
    """What one pass decides, from the record as it was read and the listing that began after that.

    `observed.record` is `read` with the listing's evidence, and the replies that its supervisor holds, merged into it.
    """
    turn = Turn(read, observed)
    if _is_settled(turn.record):
        settle.sweep(turn)
    elif _has_outcome(turn.record):
        turn.mark_missing()
        settle.close(turn)
    else:
        _pursue(turn)
    return turn.decision()


def unreachable(read: Record, merged: Record, at: datetime, why: str) -> Decision:
    """What a pass decides without a listing: nothing, but the record says since when nothing is known.

    `merged` is `read` with the replies that its supervisor holds; `at` is the supervisor's own clock, shown only.
    """
    note = Note(reason=Reason.UNREACHABLE, text=f"the scheduler does not answer: {why}")
    kept = FOR_A_PERSON | {Reason.UNREACHABLE}  # a person may decide during an outage as well
    if not merged.settled and (merged.wait is None or merged.wait.reason not in kept):
        merged = replace(merged, wait=Wait(reason=note.reason, text=note.text, since=at))
    record = merged if is_news(read, merged) else None
    return Decision(record=record, calls=(), wake_seconds=UNREACHABLE_WAKE_SECONDS, notes=(note,))


def _pursue(turn: Turn) -> None:
    last = turn.record.last
    if last is None:
        if _may_start(turn.observed.listing):
            turn.authorize("first", turn.record.spec)
        else:
            turn.note(Reason.LISTING_INCOMPLETE, "the listing is not complete: nothing is started on it")
        return
    wanted = next((hold for hold in turn.record.holds if not hold.lifted), None)
    if wanted is not None:
        turn.note(Reason.HELD, f"held by {wanted.asked_by}: {wanted.reason}")
    settle.foreign(turn)
    turn.mark_missing()
    if _is_undecided(last):
        _choose(turn, last)
    _retire(turn)
    object = _canonical(turn)
    if object is not None:
        recover.judge(turn, object)
    if turn.record.outcome is not None:
        settle.first_clear(turn)
        return
    if object is None or not _is_newest(turn.record, last):
        return
    sighting = turn.observed.sighting(object.id)
    if sighting is None or turn.observed.is_moved_back(object):
        return
    recover.out_of_time(turn, object, sighting)
    if turn.record.outcome is None:
        _place_holds(turn, object, sighting)
        _open(turn, object, sighting)


def _canonical(turn: Turn) -> Object | None:
    last = turn.record.submissions[-1]
    return turn.record.object(last.canonical) if last.canonical else None


# --- 4. the canonical object, or one more attempt


def _choose(turn: Turn, last: Submission) -> None:
    observed = turn.observed
    if not _may_choose(observed.listing):
        turn.note(Reason.LISTING_INCOMPLETE, "the listing is not complete: nothing is chosen or started on it")
        return
    candidates = sorted(
        (o for o in turn.record.of(last.number) if observed.sighting(o.id) and _may_count(o)),
        key=lambda o: (o.attempt, o.id, o.first_seen),
    )
    if candidates:
        turn.choose(last, candidates[0])
        turn.note(Reason.CHOSEN, f"{candidates[0].id} is canonical for submission {last.number}", candidates[0].id)
        obsolete = turn.record.intent(submission_key(last.number))
        if obsolete is not None:
            turn.drop(obsolete)
        return
    end = observed.end_without_object(last)
    if last.attempts and end is not None:
        recover.judge_end(turn, submission_key(last.number), end, None)
    else:
        _attempt_again(turn, last)


def _attempt_again(turn: Turn, last: Submission) -> None:
    """None of its objects is listed: wait for the newest attempt's reply or object, or attempt once more (G5)."""
    observed = turn.observed
    if not last.attempts:
        turn.attempt(last)
        return
    newest = last.attempts[-1]
    name = f"attempt {newest.number} of submission {last.number}"
    if newest.reply is None and _may_be_replied_to(observed, newest):
        turn.note(Reason.AWAITING_START, f"{name} has not replied", until=newest.deadline + INSTANT)
    elif is_refused(newest) or not _has_attempts_left(last) or not _may_repeat(observed, last, newest):
        _await_absence(turn, last)
    else:
        again = observed.repeat_at(newest.committed, newest.number)
        if observed.began < again:
            turn.note(Reason.AWAITING_REPEAT, f"{name} made no object that is listed", until=again)
        else:
            turn.attempt(last)


@guard("start_repeated_after_its_deadline", promise="G5", line=2, history="three_attempts", without=False)
def _may_be_replied_to(observed: Observed, newest: Attempt) -> bool:
    """Whether the sender of a Start without a reply may be on it still."""
    return observed.began <= newest.deadline


@guard("three_attempts", promise="G5", without=True)
def _has_attempts_left(last: Submission) -> bool:
    """Whether fewer than three that count were made: else one that restarts in a loop would submit for ever."""
    return sum(is_counted(attempt) for attempt in last.attempts) < ATTEMPTS


@guard("created_and_lost", promise="G5", line=2, without=True)
def _may_repeat(observed: Observed, last: Submission, newest: Attempt) -> bool:
    """An attempt that replied with an object is repeated only once that object is known to be absent."""
    created = newest.reply is not None and newest.reply.answer is Answer.DONE
    return not created or observed.is_absent(last, newest)


def _await_absence(turn: Turn, last: Submission) -> None:
    """Count the listings in which an expired attempt has no object; under `manual` a person says so."""
    observed = turn.observed
    rows = []
    for attempt in last.attempts:
        name = f"attempt {attempt.number} of submission {last.number}"
        mark = attempt.missing
        expiry = observed.expiry(attempt.deadline)
        missing = observed.is_unmatched(last, attempt) and not observed.is_absent(last, attempt)
        if (missing or attempt.disposed) and not observed.has_landed(attempt):
            turn.note(Reason.AWAITING_EXPIRY, f"{name} can still land", until=expiry + INSTANT)
        elif missing and observed.is_for_a_person():
            turn.note(Reason.UNMATCHED, f"{name} may have made an object; say that it did not")
        elif missing:
            mark = turn.counted(mark, expiry)
            until = observed.ripe(mark) + INSTANT if mark is not None else None
            turn.note(Reason.AWAITING_ABSENCE, f"{name} has no object; absence is being counted", until=until)
        rows.append(attempt if mark == attempt.missing else replace(attempt, missing=mark))
    if tuple(rows) != last.attempts:
        turn.change_submission(replace(last, attempts=tuple(rows)))


# --- 5. everything but the canonical objects


def _retire(turn: Turn) -> None:
    """Retire every other object, for good (G7); stop each that lives, and an earlier canonical one that runs again."""
    canonical = {s.canonical for s in turn.record.submissions}
    newest = turn.record.submissions[-1]
    for object in turn.observed.ours():
        decided = object.submission < newest.number or _is_decided(newest)
        if _is_other(object, canonical) and decided and not object.retired and _may_retire(turn.observed.listing):
            turn.change_object(replace(object, retired=True))
        current = turn.record.object(object.id) or object
        if _is_retired(current):
            settle.stop(turn, current, "it is retired")
        elif object.id in canonical and _is_replaced(object, newest):
            settle.stop(turn, current, f"submission {newest.number} took its place")


# --- 8. holds


def _place_holds(turn: Turn, object: Object, sighting: Sighting) -> None:
    """Place what is asked for on an object that has not started; release what is not asked for any more and is ours."""
    wanted = [hold for hold in turn.record.holds if not hold.lifted]
    if sighting.state not in BEFORE_THE_RUN:
        return
    if not wanted:
        ours = [call.hold for call in turn.record.calls if call.kind is Kind.HOLD and _is_on(call, object, sighting)]
        if ours and sighting.hold:
            note = Note(reason=Reason.RELEASING, text=f"release the hold on {object.id}", object=object.id)
            turn.send(Kind.RELEASE, object.id, sighting.run, max(ours), why=note)
        return
    if sighting.hold:
        return
    number = wanted[0].number
    earlier = _of_earlier_holds(turn.observed, object, number)
    if earlier:
        until = max(turn.observed.expiry(call.deadline) for call in earlier) + INSTANT
        turn.note(Reason.AWAITING_EXPIRY, f"an earlier hold or release of {object.id} can still land", until=until)
        return
    note = Note(reason=Reason.HOLDING, text=f"hold {object.id}: {wanted[0].reason}", object=object.id)
    turn.send(Kind.HOLD, object.id, sighting.run, number, why=note)


# --- 9. the gate


def _open(turn: Turn, object: Object, sighting: Sighting) -> None:
    if sighting.state is not State.GATED:
        _shut_behind(turn, object, sighting)
        if not recover.say_if_unknown(turn, object.id, sighting) and sighting.state is not State.ENDED:
            reason = Reason.RUNNING if sighting.state is State.RUNNING else Reason.QUEUED
            turn.note(reason, f"{object.id} is {sighting.state}", object.id)
        return
    for why in gate.holds_to_ask(turn.record, turn.observed):
        turn.ask_hold(gate.LOST_NODE, why)
    false = [c for c in gate.conditions(turn.record, turn.observed, object) if not c.holds]
    for condition in false:
        text = f"the gate of {object.id} is shut: {condition.text}"
        turn.note(condition.reason, text, condition.object, until=condition.until)
    if false:
        return
    if not _is_alone(turn):
        turn.again()
        return
    turn.send(
        Kind.OPEN, object.id, sighting.run, why=Note(reason=Reason.OPENED, text=f"open {object.id}", object=object.id)
    )


def _shut_behind(turn: Turn, object: Object, sighting: Sighting) -> None:
    """Shut the gate behind a running run, where a requeue would else come back open (G1)."""
    if not _may_come_back_open(turn, sighting):
        return
    row = turn.record.call(Kind.SHUT, object.id, sighting.run)
    if row is None or row.reply is None or row.reply.answer is not Answer.DONE:
        note = Note(
            reason=Reason.SHUTTING, text=f"shut the gate behind run {sighting.run} of {object.id}", object=object.id
        )
        turn.send(Kind.SHUT, object.id, sighting.run, why=note)


# --- what the order rests on, one condition each


@guard("late_launch_after_settlement", promise="S2", line=2, without=False)
def _is_settled(record: Record) -> bool:
    """Whether nothing may be decided ever again."""
    return record.settled


@guard("no_authorization_after_outcome", promise="P2", without=False)
def _has_outcome(record: Record) -> bool:
    """Whether nothing may be launched any more: a cancel is final."""
    return record.outcome is not None


@guard("incomplete_starts_nothing", promise="C4", history="incomplete_listing_decides_nothing", without=True)
def _may_start(listing: Listing) -> bool:
    """Whether the first submission may be authorized on it."""
    return listing.complete


@guard("canonical_committed_once", promise="G6", without=True)
def _is_undecided(last: Submission) -> bool:
    """Whether its object is still to be chosen: chosen again after a purge, a duplicate would become the one that
    counts."""
    return last.canonical is None


@guard("nothing_opened_beside_a_new_submission", promise="G8", line=2, history="earlier_submissions_over", without=True)
def _is_newest(record: Record, last: Submission) -> bool:
    """Whether this pass has not just authorized the next one."""
    return record.submissions[-1].number == last.number


@guard("incomplete_chooses_nothing", promise="C4 G6", history="incomplete_listing_decides_nothing", without=True)
def _may_choose(listing: Listing) -> bool:
    """Whether a lower attempt's object would be in it, and an attempt without one has none."""
    return listing.complete


@guard(
    "canonical_from_unretired",
    promise="G6",
    line=2,
    history="hidden_before_the_choice",
    pair="retired_once_chosen",
    without=True,
)
def _may_count(object: Object) -> bool:
    """Whether it may be chosen: what is retired was, or is being, stopped."""
    return not object.retired


@guard("retired_once_chosen", promise="G7", line=2, history="created_and_lost", without=True)
def _is_decided(newest: Submission) -> bool:
    """Whether its other objects are duplicates: until one was chosen, each may be the one."""
    return newest.canonical is not None


@guard("canonical_is_never_retired", promise="G7", history="stop_never_names_canonical", line=2, without=True)
def _is_other(object: Object, canonical: set[str | None]) -> bool:
    return object.id not in canonical


@guard("incomplete_retires_nothing", promise="C4", history="partial_listings", without=True)
def _may_retire(listing: Listing) -> bool:
    """Whether it shows what the retired object is a duplicate of."""
    return listing.complete


@guard("stop_never_names_canonical", promise="G7", without=True)
def _is_retired(object: Object) -> bool:
    """Whether it is to be stopped: the Stop of a duplicate must not reach the good run."""
    return object.retired


@guard("alive_again_is_stopped", promise="G8 G9", without=False)
def _is_replaced(object: Object, newest: Submission) -> bool:
    """Whether a later submission took the place of what is listed alive again; left alone, that one waits for ever."""
    return object.submission < newest.number


@guard("release_only_our_hold", promise="G2", line=2, without=True)
def _is_on(call: Call, object: Object, sighting: Sighting) -> bool:
    """Whether a hold of ours was asked for on this object and run: an admin's is not ours to release."""
    return (call.object, call.run) == (object.id, sighting.run)


@guard("new_hold_after_old_calls_expired", promise="L3", line=2, without=lambda *_: ())
def _of_earlier_holds(observed: Observed, object: Object, number: int) -> tuple[Call, ...]:
    """Calls of earlier holds that can still land: a release of one would take the new hold off."""
    return tuple(c for c in observed.unexpired(Kind.HOLD, Kind.RELEASE, object=object.id) if c.hold != number)


@guard("sole_call", promise="X3", line=2, without=True)
def _is_alone(turn: Turn) -> bool:
    """Whether the Open's commit decides nothing else but the choice: one that decides more opens on what no listing
    has confirmed."""
    return not turn.decided


@guard("gate_shut_behind_the_run", promise="G1", history="requeued_by_an_admin_while_ending", line=2, without=False)
def _may_come_back_open(turn: Turn, sighting: Sighting) -> bool:
    """Whether a requeue of the running run, the scheduler's own too, would come back open, and can be kept from it."""
    can = turn.observed.capabilities.shuts and turn.record.plan.requeues
    return can and sighting.state is State.RUNNING
