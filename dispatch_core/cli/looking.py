"""What looks: `ls`, `status`, `explain`, `history`.

One rule: nothing is changed, neither a record nor anything on a scheduler; only `explain` asks a scheduler.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

from dispatch_core import status as statuses
from dispatch_core.amounts import say_ago
from dispatch_core.cli import exits
from dispatch_core.cli.screen import Screen, local_time
from dispatch_core.cli.session import Session
from dispatch_core.cli.session import run as run_to_end
from dispatch_core.record import Result
from dispatch_core.status import Sight, Status, Tried
from dispatch_core.stores.contract import Listed, Store

Work = Callable[[], Coroutine[Any, Any, int]]


async def read_status(store: Store, key: str, uid: str | None = None) -> Status:
    """One job's status. Raises NotFound."""
    record = await store.read(key, uid)
    (row,) = await store.jobs(uids=frozenset({record.uid}))
    return statuses.status_of(row.record or record, row)


# --- ls


def list_jobs(session: Session, attention: bool) -> int:
    async def work() -> list[Listed]:
        async with session.opened() as store:
            return await store.jobs()

    rows = run_to_end(work())
    if attention:
        rows = [row for row in rows if statuses.attention(row)]
    now = datetime.now(UTC)
    session.screen.result([_summary(row) for row in rows])
    session.screen.table(
        ("key", "state", "since", "supervisor", "attention", "waits for"), [_cells(row, now) for row in rows]
    )
    if not rows:
        session.screen.say("nothing needs attention" if attention else "there are no jobs")
    return exits.ATTENTION if attention and rows else exits.FINE


def _summary(row: Listed) -> dict[str, object]:
    shown = statuses.status_of(row.record, row) if row.record is not None else None
    return {
        "key": row.key,
        "uid": row.uid,
        "revision": row.revision,
        "state": shown.state if shown else "unreadable",
        "since": shown.since if shown else row.updated,
        "settled": shown.settled if shown else None,
        "supervisor": row.owner,
        "unattended": shown.unattended if shown else None,
        "attention": statuses.attention(row),
        "wait": shown.wait if shown else None,
        "problem": row.problem,
    }


def _cells(row: Listed, now: datetime) -> tuple[str, ...]:
    problems = ", ".join(statuses.attention(row))
    if row.record is None:
        return (row.key, "unreadable", say_ago(row.updated, now), row.owner or "", problems, row.problem)
    shown = statuses.status_of(row.record, row)
    waits = shown.wait.text if shown.wait is not None else ""
    return (row.key, shown.state, say_ago(shown.since, now), row.owner or "", problems, waits)


# --- status


def status(session: Session, key: str) -> int:
    async def work() -> Status:
        async with session.opened() as store:
            return await read_status(store, key)

    shown = run_to_end(work())
    if session.screen.as_json:
        session.screen.result(shown)
    else:
        print_status(session, shown)
    return code_of(shown)


def code_of(shown: Status) -> int:
    """What `status` exits with."""
    if shown.outcome is not None:
        codes = {Result.SUCCEEDED: exits.FINE, Result.FAILED: exits.FAILED, Result.CANCELLED: exits.CANCELLED}
        return codes[shown.outcome.result]
    return exits.NEEDS_A_PERSON if shown.needs_a_person else exits.FINE


def print_status(session: Session, shown: Status) -> None:
    screen, now = session.screen, datetime.now(UTC)
    for name, text in _facts(session, shown, now):
        screen.line(f"{name:<11} {text}")
    _tables(screen, shown, now)


def _facts(session: Session, shown: Status, now: datetime) -> list[tuple[str, str]]:
    facts = [("job", f"{shown.key}  (record {shown.uid}, revision {shown.revision}, on {shown.scheduler})")]
    facts.append(("state", f"{shown.state} since {local_time(shown.since)} ({say_ago(shown.since, now)})"))
    if shown.outcome is not None:
        message = f": {shown.outcome.message}" if shown.outcome.message else ""
        facts.append(("outcome", f"{statuses.outcome_words(shown.outcome)}{message}"))
    if shown.receipt is not None:
        clean = "complete; the record is settled" if shown.receipt.clean else f"waits for: {shown.receipt.waits_for}"
        facts.append(("clean-up", clean))
    if shown.wait is not None:
        facts.append(("waits for", shown.wait.text))
    if shown.advice:
        facts.append(("you can", shown.advice))
    facts += [("next", intent) for intent in shown.intents]
    if shown.unattended:
        facts.append(("supervisor", f"none (unattended): {session.command('supervise', shown.key)}"))
    elif not shown.settled:
        facts.append(("supervisor", str(shown.supervisor)))
    facts.append(("command", shlex.join(shown.command)))
    return facts


def _tables(screen: Screen, shown: Status, now: datetime) -> None:
    rows = []
    for submission in shown.submissions:
        if not submission.attempts:
            rows.append((str(submission.number), submission.why, "to be started", "", "", "", ""))
        for attempt in submission.attempts:
            start = (f"{submission.number}.{attempt.number}", submission.why, _reply(attempt))
            made = [o for o in shown.objects if (o.submission, o.attempt) == (submission.number, attempt.number)]
            rows += [(*start, o.id, _state(o), o.end, " ".join(o.nodes)) for o in made]
            rows += [] if made else [(*start, "", "", "", "")]
    _titled(screen, ("start", "why", "reply", "object", "state", "end", "nodes"), rows)
    strangers = [o for o in shown.objects if o.submission == 0]
    _titled(
        screen, ("object", "role", "state", "seen"), [(o.id, o.role, o.state, say_ago(o.seen, now)) for o in strangers]
    )
    _titled(
        screen,
        ("hold", "asked by", "reason", "lifted"),
        [(h.number, h.asked_by, h.reason, "lifted" if h.lifted else "") for h in shown.holds],
    )
    used = [(b.rule, f"{b.used} of {b.limit}" if b.limit is not None else f"{b.used}, no limit") for b in shown.budget]
    _titled(screen, ("rule", "budget used"), used)


def _reply(attempt: Tried) -> str:
    reply = attempt.reply or "none yet"
    return f"{reply}, disposed" if attempt.disposed else reply


def _state(object: Sight) -> str:
    """`running, run 2`, `gated, retired`: what is not said is the usual."""
    run = f", run {object.run}" if object.run > 1 else ""
    role = "" if object.role == "canonical" else f", {object.role or 'not chosen'}"
    return f"{object.state}{run}{role}"


def _titled(screen: Screen, heads: tuple[str, ...], rows: list[Any]) -> None:
    if rows:
        screen.line("")
        screen.table(heads, rows)


# --- explain


def explain(session: Session, key: str) -> int:
    from dispatch_core import client

    async def work() -> client.Explanation:
        async with session.opened() as store:
            record = await store.read(key)
            async with session.scheduler(record.scheduler) as adapter:
                return await client.explain(store, adapter, key, record.uid)

    from dispatch_core.cli.explaining import lines_of, value_of

    told = run_to_end(work())
    session.screen.result(value_of(told), lines_of(told))
    return exits.FINE


# --- history


def history(session: Session, key: str) -> int:
    async def work() -> list[Any]:
        async with session.opened() as store:
            return list(await store.history(key))

    changes = run_to_end(work())
    lines = []
    for change in changes:
        lines.append(f"{change.revision:>4}  {local_time(change.at)}  {change.actor}")
        lines += [f"      {line}" for line in change.lines]
    session.screen.result(changes, lines)
    return exits.FINE
