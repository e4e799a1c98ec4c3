"""The words of a history that say what was launched: the job and its rules, ends, times, and the names of calls.

One rule: what is written here is what `tests/wording.py` reads, and reading it gives the same values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dispatch_core.evidence import Bounds, Capabilities
from dispatch_core.plan import Cause, Changes, Delay, End, Plan, Rule, Spec, When
from dispatch_core.record import Attempt, Call, Kind, Record, Reply

GIB = 2**30


def seconds(value: float) -> str:
    """A duration, as `1.25s`."""
    return f"{value:.12g}s"


def end_words(end: End) -> str:
    """How a run ended: `exit 1 in 3s: it raised`."""
    number = end.signal if end.cause is Cause.SIGNAL else end.exit_code
    words: list[str] = [end.cause]
    if number is not None and end.cause is not Cause.COMPLETED:
        words.append(str(number))
    if end.seconds is not None:
        words += ["in", seconds(end.seconds)]
    return " ".join(words) + (f": {end.message}" if end.message else "")


def job_lines(spec: Spec, plan: Plan, bounds: Bounds, capabilities: Capabilities) -> Iterator[str]:
    """The first command of a history, and what is indented below it."""
    yield f"job {' '.join(spec.command)}"
    for name in ("call", "window", "absence", "repeat", "resync"):
        yield f"  {name} {seconds(getattr(bounds, f'{name}_seconds'))}"
    yield from (f"  {word}" for word in ("requeues", "shuts") if getattr(capabilities, word))
    if not capabilities.starts_once:
        yield "  starts_twice"
    if spec.memory_bytes is not None:
        yield f"  memory {spec.memory_bytes / GIB:g}"
    if spec.time_limit_seconds is not None:
        yield f"  limit {seconds(spec.time_limit_seconds)}"
    for name, secret in spec.secret_environment.items():
        yield f"  secret {name} {secret.source} {secret.name}"
    if plan.unmatched != "expire":
        yield f"  unmatched {plan.unmatched}"
    if plan.foreign != "report":
        yield f"  foreign {plan.foreign}"
    for rule in plan.rules:
        yield f"  rule {_rule(rule)}"


def _rule(rule: Rule) -> str:
    budget = f" x{rule.budget}" if rule.budget is not None else ""
    terms = [*_delay(rule.delay), *_changes(rule.changes)]
    return f"{rule.name}: {', '.join(_when(rule.when))} -> {rule.do}{budget}{''.join(f' {term}' for term in terms)}"


def _when(when: When) -> Iterator[str]:
    yield from when.cause
    if when.exit_code:
        yield f"exit {'|'.join(map(str, when.exit_code))}"
    if when.signal:
        yield f"signal {'|'.join(map(str, when.signal))}"
    if when.message is not None:
        yield f"message {when.message}"
    if when.shorter_than_seconds is not None:
        yield f"shorter {seconds(when.shorter_than_seconds)}"
    if when.pending_longer_than_seconds is not None:
        yield f"pending {seconds(when.pending_longer_than_seconds)}"
    if when.no_progress_for_seconds is not None:
        yield f"silent {seconds(when.no_progress_for_seconds)}"


def _delay(delay: Delay) -> Iterator[str]:
    usual = Delay()
    if delay.seconds:
        yield f"after {seconds(delay.seconds)}"
    if delay.factor != usual.factor or delay.cap_seconds != usual.cap_seconds:
        cap = f"<={seconds(delay.cap_seconds)}" if delay.cap_seconds != usual.cap_seconds else ""
        yield f"delay*{delay.factor:.12g}{cap}"
    if delay.jitter:
        yield f"jitter {delay.jitter:.12g}"


def _changes(changes: Changes) -> Iterator[str]:
    if changes.memory_factor != 1 or changes.memory_cap_bytes is not None:
        cap = f"<={changes.memory_cap_bytes // GIB}" if changes.memory_cap_bytes is not None else ""
        yield f"memory*{changes.memory_factor:.12g}{cap}"
    if changes.time_limit_factor != 1 or changes.time_limit_cap_seconds is not None:
        limit = changes.time_limit_cap_seconds
        yield f"time*{changes.time_limit_factor:.12g}{f'<={seconds(limit)}' if limit is not None else ''}"
    if changes.queue is not None:
        yield f"queue {changes.queue}"
    if changes.exclude_nodes:
        yield "elsewhere"


def call_title(kind: Kind | None, object: str | None, submission: int = 0, attempt: int = 0) -> str:
    """What a call is called in a history: `start 1.1`, `open o1`, `stop_job`."""
    if kind is None:
        return f"start {submission}.{attempt}"
    return f"{kind} {object}" if object is not None else "stop_job"


class Named(NamedTuple):
    """A call by its title, and the run that it names."""

    title: str
    run: int


def new_calls(before: Record, after: Record) -> list[Named]:
    """The calls that a commit allows."""
    known = {(call.identity, call.count) for call in before.calls}
    made = [call for call in after.calls if (call.identity, call.count) not in known]
    attempts = {(s.number, a.number) for s in before.submissions for a in s.attempts}
    return [Named(call_title(call.kind, call.object), call.run) for call in made] + [
        Named(call_title(None, None, s.number, a.number), 0)
        for s in after.submissions
        for a in s.attempts
        if (s.number, a.number) not in attempts
    ]


def reply_to(record: Record, named: Named) -> Reply | None:
    """What the record holds of the latest such call."""
    rows: list[Attempt | Call] = [
        attempt
        for submission in record.submissions
        for attempt in submission.attempts
        if call_title(None, None, submission.number, attempt.number) == named.title
    ]
    rows += [call for call in record.calls if (call_title(call.kind, call.object), call.run) == named]
    return max(rows, key=lambda row: row.deadline).reply if rows else None


def request(before: Record, after: Record) -> str:
    """What a person asked for whose commit made this of the record."""
    if after.outcome is not None and after.outcome != before.outcome:
        if after.outcome.result == "cancelled":
            return f"cancels: {after.outcome.message}" if after.outcome.message else "cancels"
        return f"resolves {after.outcome.result}"
    if len(after.holds) > len(before.holds):
        return f"holds: {after.holds[-1].reason}"
    objects = {object.id for object in before.objects if object.disposed}
    attempts = {(s.number, a.number) for s in before.submissions for a in s.attempts if a.disposed}
    disposed = [object.id for object in after.objects if object.disposed and object.id not in objects]
    disposed += [
        f"{s.number}.{a.number}"
        for s in after.submissions
        for a in s.attempts
        if a.disposed and (s.number, a.number) not in attempts
    ]
    return f"disposes {disposed[0]}" if disposed else "releases"
