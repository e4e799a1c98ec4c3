"""What a commit changed, in plain sentences: the story that a record's history tells.

One rule: a line says what happened to which thing, never more than the two records hold. This room is pure and decides
nothing; it is what people read in `history`, in an engine's log and in the readable histories of the tests.
"""

from __future__ import annotations

from collections.abc import Iterator

from dispatch_core.plan import End
from dispatch_core.record import Attempt, Call, Kind, Object, Record, Reply, Submission


def story(before: Record | None, after: Record) -> tuple[str, ...]:
    """The lines that tell what lies between two revisions; `before` is None for the first."""
    if before is None:
        return (f"created: {' '.join(after.spec.command)} on {after.scheduler}",)
    return tuple(_lines(before, after))


def _lines(before: Record, after: Record) -> Iterator[str]:
    known_replies = {(s.number, a.number): a.reply for s in before.submissions for a in s.attempts}
    for submission in after.submissions:
        for attempt in submission.attempts:
            if attempt.reply is not None and known_replies.get((submission.number, attempt.number)) != attempt.reply:
                yield f"start {submission.number}.{attempt.number} replied {_reply(attempt.reply)}"
    changed = [call for call in after.calls if call not in before.calls]
    known_calls = {call.identity: call for call in before.calls} if changed else {}
    for call in changed:
        known = known_calls.get(call.identity)
        if call.reply is not None and (known is None or known.reply != call.reply):
            yield f"{_name(call)} replied {_reply(call.reply)}"
    known_objects = {object.id: object for object in before.objects}
    for object in after.objects:
        yield from _object(known_objects.get(object.id), object)
    for submission in after.submissions:
        yield from _submission(before, submission)
    yield from _decisions(before, after)
    for call in changed:
        known = known_calls.get(call.identity)
        if known is None or known.count != call.count:
            yield f"{_name(call)} is asked for" + (f", time {call.count}" if call.count > 1 else "")
    yield from _ending(before, after)


def _object(before: Object | None, after: Object) -> Iterator[str]:
    if before is None:
        whose = "foreign object" if after.foreign else f"object {after.submission}.{after.attempt}"
        yield f"{whose} {after.id} is listed {_state(after)}"
    elif (before.run, before.state, before.hold) != (after.run, after.state, after.hold):
        run = f", run {after.run}" if after.run > 1 else ""
        yield f"{after.id} is {_state(after)}{run}"
    known = before.ends if before is not None else ()
    for row in after.ends:
        if all((old.run, old.end) != (row.run, row.end) for old in known):
            yield f"run {row.run} of {after.id} ended: {describe_end(row.end)}"
    if after.retired and not (before is not None and before.retired):
        yield f"{after.id} is retired"
    if after.disposed and not (before is not None and before.disposed):
        yield f"{after.id} is disposed"
    if before is not None and before.missing != after.missing:
        if after.missing is None:
            yield f"{after.id} is listed again"
        else:
            yield f"{after.id} is missing from a complete listing" + (", again" if after.missing.second else "")
    if after.gone is not None and (before is None or before.gone is None):
        yield f"a person says that {after.id} is gone"


def _submission(before: Record, after: Submission) -> Iterator[str]:
    known = next((s for s in before.submissions if s.number == after.number), None)
    if known is None:
        yield f"submission {after.number} is authorized: {after.why}"
    attempts: dict[int, Attempt] = {a.number: a for a in known.attempts} if known is not None else {}
    for attempt in after.attempts:
        old = attempts.get(attempt.number)
        if old is None:
            yield f"attempt {after.number}.{attempt.number} is to be started"
        elif attempt.disposed and not old.disposed:
            yield f"attempt {after.number}.{attempt.number} is disposed: it made no object"
        elif attempt.missing != old.missing and attempt.missing is not None:
            again = ", again" if attempt.missing.second else ""
            yield f"attempt {after.number}.{attempt.number} has no object in a complete listing{again}"
    if after.canonical is not None and (known is None or known.canonical is None):
        yield f"{after.canonical} is canonical for submission {after.number}"


def _decisions(before: Record, after: Record) -> Iterator[str]:
    for unit in after.budget:
        if unit not in before.budget:
            yield f"{unit.key} spends one unit of {unit.rule}"
    for intent in after.intents:
        if intent not in before.intents:
            yield f"{intent.do} is intended for {intent.key} ({intent.cause or 'before its end'}), by {intent.rule}"
    gone = [intent for intent in before.intents if all(other.key != intent.key for other in after.intents)]
    for intent in gone:
        carried = len(after.submissions) > len(before.submissions) or any(o.run > 1 for o in after.objects)
        yield f"the {intent.do} for {intent.key} is {'done' if carried else 'dropped'}"
    known = {hold.number: hold for hold in before.holds}
    for hold in after.holds:
        if hold.number not in known:
            yield f"hold {hold.number} is asked for by {hold.asked_by}: {hold.reason}"
        elif hold.lifted and not known[hold.number].lifted:
            yield f"hold {hold.number} is lifted"


def _ending(before: Record, after: Record) -> Iterator[str]:
    if after.outcome is not None and before.outcome is None:
        cause = f" ({after.outcome.cause})" if after.outcome.cause is not None else ""
        yield f"the job has {after.outcome.result}{cause}, by {after.outcome.by}"
    if after.clear != before.clear:
        if after.clear is None:
            yield "not every launch is accounted for"
        else:
            yield "every launch is accounted for" + (", again" if after.clear.second else "")
    if after.settled and not before.settled:
        yield "settled"
    if after.wait is not None and (before.wait is None or before.wait.text != after.wait.text):
        yield f"waits: {after.wait.text}"


def _state(object: Object) -> str:
    return f"{object.state}{', hold on' if object.hold else ''}"


def _reply(reply: Reply) -> str:
    return f"{reply.answer}{f' ({reply.text})' if reply.text else ''}"


def describe_end(end: End) -> str:
    """How a run ended, in a few words."""
    told = [f"code {end.exit_code}"] if end.exit_code is not None else []
    told += [f"signal {end.signal}"] if end.signal is not None else []
    return f"{end.cause} ({', '.join(told)})" if told else str(end.cause)


def _name(call: Call) -> str:
    if call.kind is Kind.STOP_JOB:
        return "stop of the whole job"
    instance = f" (hold {call.hold})" if call.hold else ""
    return f"{call.kind} of {call.object}, run {call.run}{instance}"
