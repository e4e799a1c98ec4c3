"""An explanation in words: the decision of the next pass, and the gate's conditions.

One rule: it prints what `decide` returned and `gate` obeys, and judges nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from dispatch_core.amounts import say_seconds
from dispatch_core.cli.screen import local_time
from dispatch_core.client import Explanation
from dispatch_core.saying import call_words
from dispatch_core.status import state_of
from dispatch_core.story import story


def lines_of(told: Explanation) -> Iterator[str]:
    """The explanation for people."""
    record, decision = told.record, told.decision
    yield f"job {record.key!r} at revision {record.revision}: {state_of(record)}"
    yield "the next pass would"
    commits = story(record, decision.record) if decision.record is not None else ()
    if decision.record is None:
        yield "  commit nothing"
    else:
        yield "  commit:"
        yield from (f"    {line}" for line in commits or ("what this listing shows",))
    for call in decision.calls:
        yield f"  then call: {call_words(call, _time)}"
    yield f"  look again in {say_seconds(decision.wake_seconds)}" if decision.wake_seconds else "  look again at once"
    yield "because"
    for note in decision.notes:
        yield f"  {note.text}  ({note.reason})"
    if told.why:
        yield f"  it has not begun: {told.why}"
    if told.gate:
        false = [condition for condition in told.gate if not condition.holds]
        yield (
            "the gate is shut; it opens once every condition holds" if false else "the gate is shut, and may be opened"
        )
        for condition in told.gate:
            yield f"  {'yes' if condition.holds else 'NO '}  {condition.name}: {condition.text}"


def _time(at: datetime) -> str:
    return local_time(at, date=False)


def value_of(told: Explanation) -> dict[str, object]:
    """The explanation as JSON has it."""
    record, decision = told.record, told.decision
    return {
        "key": record.key,
        "uid": record.uid,
        "revision": record.revision,
        "state": state_of(record),
        "commits": decision.record is not None,
        "lines": story(record, decision.record) if decision.record is not None else (),
        "calls": [call_words(call, _time) for call in decision.calls],
        "wake_seconds": decision.wake_seconds,
        "notes": decision.notes,
        "gate": told.gate,
        "why": told.why,
    }
