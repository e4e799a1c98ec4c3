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
from dispatch_core.evidence import Sighting, is_news
from dispatch_core.find import Observed
from dispatch_core.reasons import FOR_A_PERSON, Reason
from dispatch_core.record import (
    ATTEMPTS,
    BEFORE_THE_RUN,
    Answer,
    Attempt,
    Kind,
    Object,
    Record,
    State,
    Submission,
    Wait,
    is_late,
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
    if turn.record.settled:
        settle.sweep(turn)
    elif turn.record.outcome is not None:  # history: no_authorization_after_outcome
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
        if turn.observed.listing.complete:
            turn.authorize("first", turn.record.spec)
        else:
            turn.note(Reason.LISTING_INCOMPLETE, "the listing is not complete: nothing is started on it")
        return
    wanted = next((hold for hold in turn.record.holds if not hold.lifted), None)
    if wanted is not None:
        turn.note(Reason.HELD, f"held by {wanted.asked_by}: {wanted.reason}")
    settle.foreign(turn)
    turn.mark_missing()
    if last.canonical is None:  # history: canonical_committed_once
        _choose(turn, last)
    _retire(turn)
    object = _canonical(turn)
    if object is not None:
        recover.judge(turn, object)
    if turn.record.outcome is not None:
        settle.first_clear(turn)
        return
    if object is None or turn.record.submissions[-1].number != last.number:
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
    if not observed.listing.complete:
        turn.note(Reason.LISTING_INCOMPLETE, "the listing is not complete: nothing is chosen or started on it")
        return
    candidates = sorted(
        # history: canonical_from_unretired
        (o for o in turn.record.of(last.number) if observed.sighting(o.id) and not o.retired),
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
    answer = newest.reply.answer if newest.reply is not None else None
    counted = sum(not is_late(a) for a in last.attempts)
    if answer is None and observed.began <= newest.deadline:
        turn.note(Reason.AWAITING_START, f"{name} has not replied", until=newest.deadline + INSTANT)
    # history: three_attempts
    elif answer is Answer.REFUSED or counted >= ATTEMPTS or not _may_repeat(observed, last, newest):
        _await_absence(turn, last)
    else:
        again = observed.repeat_at(newest.committed, newest.number)
        if observed.began < again:
            turn.note(Reason.AWAITING_REPEAT, f"{name} made no object that is listed", until=again)
        else:
            turn.attempt(last)


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
        if observed.is_unmatched(last, attempt) and not observed.is_absent(last, attempt):
            expiry = observed.expiry(attempt.deadline)
            if not observed.expired(attempt.deadline):
                turn.note(Reason.AWAITING_EXPIRY, f"{name} can still land", until=expiry + INSTANT)
            elif turn.record.plan.unmatched == "manual":
                turn.note(Reason.UNMATCHED, f"{name} may have made an object; say that it did not")
            else:
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
        decided = object.submission < newest.number or newest.canonical is not None
        if object.id not in canonical and decided and not object.retired and turn.observed.listing.complete:
            turn.change_object(replace(object, retired=True))
        current = turn.record.object(object.id) or object
        if current.retired:  # history: stop_never_names_canonical
            settle.stop(turn, current, "it is retired")
        elif object.submission < newest.number and object.id in canonical:  # history: alive_again_is_stopped
            settle.stop(turn, current, f"submission {newest.number} took its place")


# --- 8. holds


def _place_holds(turn: Turn, object: Object, sighting: Sighting) -> None:
    """Place what is asked for on an object that has not started; release what is not asked for any more and is ours."""
    wanted = [hold for hold in turn.record.holds if not hold.lifted]
    if sighting.state not in BEFORE_THE_RUN:
        return
    if not wanted:
        ours = [c.hold for c in turn.record.calls if (c.kind, c.object, c.run) == (Kind.HOLD, object.id, sighting.run)]
        if ours and sighting.hold:
            note = Note(reason=Reason.RELEASING, text=f"release the hold on {object.id}", object=object.id)
            turn.send(Kind.RELEASE, object.id, sighting.run, max(ours), why=note)
        return
    if sighting.hold:
        return
    number = wanted[0].number
    earlier = [c for c in turn.observed.unexpired(Kind.HOLD, Kind.RELEASE, object=object.id) if c.hold != number]
    if earlier:  # history: new_hold_after_old_calls_expired
        until = max(turn.observed.expiry(call.deadline) for call in earlier) + INSTANT
        turn.note(Reason.AWAITING_EXPIRY, f"an earlier hold or release of {object.id} can still land", until=until)
        return
    note = Note(reason=Reason.HOLDING, text=f"hold {object.id}: {wanted[0].reason}", object=object.id)
    turn.send(Kind.HOLD, object.id, sighting.run, number, why=note)


# --- 9. the gate


def _open(turn: Turn, object: Object, sighting: Sighting) -> None:
    if sighting.state is not State.GATED:
        _shut_behind(turn, object, sighting)
        if sighting.state is State.UNRECOGNIZED:  # history: unrecognized_decides_nothing
            text = f"{object.id} is in a state that this version does not know: a person says what follows"
            turn.note(Reason.UNRECOGNIZED, text, object.id)
        elif sighting.state is not State.ENDED:
            reason = Reason.RUNNING if sighting.state is State.RUNNING else Reason.QUEUED
            turn.note(reason, f"{object.id} is {sighting.state}", object.id)
        return
    false = [c for c in gate.conditions(turn.record, turn.observed, object) if not c.holds]
    for condition in false:
        turn.note(condition.reason, f"the gate of {object.id} is shut: {condition.text}", condition.object)
    if false:
        return
    if turn.decided:  # history: sole_call
        turn.again()
        return
    turn.send(
        Kind.OPEN, object.id, sighting.run, why=Note(reason=Reason.OPENED, text=f"open {object.id}", object=object.id)
    )


def _shut_behind(turn: Turn, object: Object, sighting: Sighting) -> None:
    """Shut the gate behind a running run, where a requeue would else come back open (G1)."""
    if not (turn.observed.capabilities.shuts and turn.record.plan.requeues and sighting.state is State.RUNNING):
        return
    row = turn.record.call(Kind.SHUT, object.id, sighting.run)
    if row is None or row.reply is None or row.reply.answer is not Answer.DONE:
        note = Note(
            reason=Reason.SHUTTING, text=f"shut the gate behind run {sighting.run} of {object.id}", object=object.id
        )
        turn.send(Kind.SHUT, object.id, sighting.run, why=note)
