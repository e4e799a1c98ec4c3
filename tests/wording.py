"""The words that histories are told in: how records, notes, calls and durations are printed and read.

One rule: what is printed is short and stable, so that a change of behaviour is a short diff. Times count from the
world's beginning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime

from msgspec.structs import replace

from dispatch_core.plan import Action, Cause, Changes, Delay, End, Rule, When
from dispatch_core.reasons import Reason
from dispatch_core.record import Call, Kind, Mark, Record, Reply
from dispatch_core.turn import Note, Send, Start
from tests.world import EPOCH, Impossible, Lists

TOLD = {Reason.AUTHORIZED, Reason.ATTEMPTED, Reason.CHOSEN, Reason.OPENED, Reason.SETTLED, Reason.OUTCOME}
"""Reasons that the story tells already."""

GIB = 2**30

# --- printing


def notes(told: tuple[Note, ...]) -> Iterator[str]:
    for note in told:
        if note.reason not in TOLD:
            yield f"{note.reason}: {note.text}"


def replied(reply: Reply) -> str:
    return f"{reply.answer}{f' ({reply.text})' if reply.text else ''}"


def answered(call: Call) -> str:
    return f": {replied(call.reply)}" if call.reply is not None else ""


def call_name(call: Start | Send) -> str:
    return row_name(call.call) if isinstance(call, Send) else f"start {call.submission}.{call.attempt}"


def row_name(call: Call) -> str:
    if call.kind is Kind.STOP_JOB:
        return "stop_job"
    return f"{call.kind} {call.object} run {call.run}{f' hold {call.hold}' if call.hold else ''}"


def when(time: datetime) -> str:
    return f"+{(time - EPOCH).total_seconds():.12g}s"


def mark(mark: Mark | None) -> str:
    if mark is None:
        return ""
    return f", missing since {when(mark.first)}" + (f" and {when(mark.second)}" if mark.second else "")


def tell_record(record: Record) -> Iterator[str]:
    yield f"revision {record.revision}"
    for submission in record.submissions:
        chosen = f", canonical {submission.canonical}" if submission.canonical else ""
        memory = f", {submission.spec.memory_bytes / GIB:g} GiB" if submission.spec.memory_bytes else ""
        without = f", not on {' '.join(submission.spec.exclude)}" if submission.spec.exclude else ""
        yield f"submission {submission.number} ({submission.why}){memory}{without}{chosen}"
        for attempt in submission.attempts:
            answer = f": {replied(attempt.reply)}" if attempt.reply else ""
            yield f"  attempt {attempt.number}{answer}{', disposed' if attempt.disposed else ''}{mark(attempt.missing)}"
    for object in record.objects:
        ends = "".join(f", run {row.run} {row.end.cause}" for row in object.ends)
        words = [w for w in ("hold", "opened", "retired", "foreign", "disposed") if getattr(object, w)]
        told = "".join(f", {word}" for word in words)
        yield f"{object.id} {object.state}, run {object.run}{told}{ends}{mark(object.missing)}"
    for hold in record.holds:
        yield f"hold {hold.number} by {hold.asked_by}: {hold.reason}{', lifted' if hold.lifted else ''}"
    for unit in record.budget:
        yield f"spent {unit.key} on {unit.rule}"
    for intent in record.intents:
        yield f"intent {intent.do} for {intent.key}, not before {when(intent.not_before)}"
    if record.outcome is not None:
        cause = f" ({record.outcome.cause})" if record.outcome.cause else ""
        yield f"{record.outcome.result}{cause}{', settled' if record.settled else ''}"
    if record.wait is not None:
        yield f"waits since {when(record.wait.since)}: {record.wait.text}"


# --- reading


def seconds(text: str) -> float:
    found = re.fullmatch(r"([0-9.]+)(ms|s|m|h|d)", text)
    if found is None:
        raise Impossible(f"no duration: {text!r}")
    return float(found[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]


def read_lies(text: str) -> Lists:
    told, _, why = text.partition(":")
    lists, words = Lists(), told.split()
    while words:
        match words.pop(0):
            case "incomplete":
                lists.complete = False
            case "silent":
                lists.silent = why.strip() or "no answer"
            case "full":
                lists.full = seconds(words.pop(0))
            case "taking":
                lists.taking = seconds(words.pop(0))
            case "without":
                lists.without, words = tuple(w for w in words if w[0] in "of"), []
            case word:
                raise Impossible(f"no listing lies like this: {word!r}")
    return lists


def read_end(text: str) -> End:
    told, _, message = text.partition(":")
    cause, *rest = told.split()
    lasted = seconds(rest[-1]) if rest[-2:-1] == ["in"] else None
    number = int(rest[0]) if rest and rest[0] != "in" else 0 if cause == "completed" else None
    return End(
        cause=Cause(cause),
        exit_code=None if cause == "signal" else number,
        signal=number if cause == "signal" else None,
        message=message.strip(),
        seconds=lasted,
    )


def read_rule(text: str) -> Rule:
    name, _, rest = text.partition(": ")
    conditions, _, doing = rest.partition(" -> ")
    action, *words = doing.split()
    return Rule(name=name, when=read_when(conditions), do=Action(action), **read_terms(words))  # type: ignore[arg-type]


def read_when(conditions: str) -> When:
    when: dict[str, object] = {}
    causes: list[Cause] = []
    for condition in conditions.split(", "):
        word, _, value = condition.partition(" ")
        match word:
            case "exit" if value:
                when["exit_code"] = tuple(int(code) for code in value.split("|"))
            case "signal" if value:
                when["signal"] = tuple(int(number) for number in value.split("|"))
            case "message":
                when["message"] = value
            case "shorter" | "pending":
                when[f"{word}_than_seconds" if word == "shorter" else "pending_longer_than_seconds"] = seconds(value)
            case "silent":
                when["no_progress_for_seconds"] = seconds(value)
            case _:
                causes.append(Cause(word))
    return When(cause=tuple(causes), **when)  # type: ignore[arg-type]


def read_terms(words: list[str]) -> dict[str, object]:
    """A rule's budget, delay and changes."""
    budget, delay, changes = None, Delay(), Changes()
    while words:
        word = words.pop(0)
        factor = re.fullmatch(r"(memory|time|delay)\*([0-9.e+]+)(?:<=(\S+))?", word)
        if re.fullmatch(r"x\d+", word):
            budget = int(word[1:])
        elif word == "after":
            delay = replace(delay, seconds=seconds(words.pop(0)))
        elif word == "jitter":
            delay = replace(delay, jitter=float(words.pop(0)))
        elif word == "elsewhere":
            changes = replace(changes, exclude_nodes=True)
        elif word == "queue":
            changes = replace(changes, queue=words.pop(0))
        elif factor is None:
            raise Impossible(f"no part of a rule: {word!r}")
        elif factor[1] == "delay":
            delay = replace(delay, factor=float(factor[2]))
            delay = replace(delay, cap_seconds=seconds(factor[3])) if factor[3] else delay
        elif factor[1] == "memory":
            cap = int(factor[3]) * GIB if factor[3] else None
            changes = replace(changes, memory_factor=float(factor[2]), memory_cap_bytes=cap)
        else:
            limit = seconds(factor[3]) if factor[3] else None
            changes = replace(changes, time_limit_factor=float(factor[2]), time_limit_cap_seconds=limit)
    return {"budget": budget, "delay": delay, "changes": changes}
