"""What must hold of a twin, judged from the lines that its payloads wrote, and at the end from the store and the spool.

Each function returns one sentence for each thing that is wrong; none of them believes a record about what ran.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dispatch_core.adapters.local.spool import LAUNCHED, OPEN, RUNNER
from dispatch_core.record import Kind, Record, Result
from tests.twin.jobs import Job
from tests.twin.supervising import starts_of

Line = Mapping[str, Any]


def broken_by(lines: Iterable[Line], jobs: Iterable[Job]) -> list[str]:
    """What the lines show to be wrong, whatever any record says."""
    by_key: dict[str, list[Line]] = {job.key: [] for job in jobs}
    for line in lines:
        by_key[line["key"]].append(line)
    return [sentence for job in jobs for sentence in _broken_job(job, by_key[job.key])]


def _broken_job(job: Job, lines: list[Line]) -> Iterator[str]:
    begun = [line for line in lines if line["what"] == "start"]
    for line in begun:
        if not line["alone"]:
            yield f"{job.key}: {which(line)} began beside another run"
    for run, times in Counter(map(which, begun)).items():
        if times > 1:
            yield f"{job.key}: {run} was launched {times} times"
    yield from _broken_order(job, lines)
    allowed = 1 + job.budget + sum(line["what"] == "let go on" for line in lines)
    if len(begun) > allowed:
        yield f"{job.key}: {len(begun)} runs, and only {allowed} are allowed"


def _broken_order(job: Job, lines: list[Line]) -> Iterator[str]:
    """What may not follow what."""
    under_way: str | None = None
    forbidden = ""
    for line in lines:
        match line["what"]:
            case "start":
                if forbidden:
                    yield f"{job.key}: {which(line)} began {forbidden}"
                under_way = which(line)
            case "end" if under_way != which(line):
                yield f"{job.key}: {which(line)} ended, and {under_way} had begun since"
            case "held":
                forbidden = "though the job was held before any gate was opened"
            case "released" | "cancelled":
                forbidden = ""
            case "clean":
                forbidden = "after the receipt of its cancel said clean"
                if not line["alone"]:
                    yield f"{job.key}: something of it ran when the receipt of its cancel said clean"


def which(line: Line) -> str:
    """The run that a line of a payload is about."""
    return f"submission {line['DISPATCH_SUBMISSION']} object {line['DISPATCH_OBJECT']} run {line['DISPATCH_RUN']}"


def broken_at_the_end(job: Job, record: Record, lines: Iterable[Line]) -> Iterator[str]:
    """What is wrong once all has calmed down: what ran against what the record authorized, and what was forgotten."""
    mine = [line for line in lines if line["key"] == job.key]
    if not record.settled or record.outcome is None:
        yield f"{job.key}: it is not settled"
        return
    ends = [line["code"] for line in mine if line["what"] == "end"]
    if record.outcome.result is Result.SUCCEEDED and (not ends or ends[-1] != 0):
        yield f"{job.key}: it has succeeded, and its newest run did not say so"
    for line in mine:
        if line["what"] == "start":
            yield from _unauthorized(record, line)


def _unauthorized(record: Record, line: Line) -> Iterator[str]:
    number, object, run = int(line["DISPATCH_SUBMISSION"]), line["DISPATCH_OBJECT"], int(line["DISPATCH_RUN"])
    if number > len(record.submissions) or record.submissions[number - 1].canonical != object:
        yield f"{record.key}: {which(line)} ran, and its object is not the one that the record chose"
    if record.call(Kind.OPEN, object, run) is None:
        yield f"{record.key}: {which(line)} ran, and no Open of it was ever committed"


def broken_in(spool: Path, records: Sequence[Record]) -> Iterator[str]:
    """Starts and Opens that were sent without a commit, and runs that have a runner and were never opened."""
    yield from _sent_uncommitted(spool, records)
    opens = {(c.object, c.run) for record in records for c in record.calls if c.kind is Kind.OPEN}
    for folder in sorted(spool.glob("objects/*/runs/*")):
        id, run = folder.parts[-3], int(folder.name)
        opened = (folder / OPEN).exists()
        if opened and (id, run) not in opens:
            yield f"run {run} of {id} is open, and no record holds that Open"
        if not opened and ((folder / LAUNCHED).exists() or (folder / RUNNER).exists()):
            yield f"run {run} of {id} has a runner, and was never opened"


def _sent_uncommitted(spool: Path, records: Sequence[Record]) -> Iterator[str]:
    """A committed attempt is one Start: whoever sends one after its commit was refused sends another, of an attempt
    that somebody else committed or nobody did."""
    file = starts_of(spool)
    sent = Counter(file.read_text().splitlines() if file.exists() else ())
    committed = {name for record in records for name in record.names()}
    for name, times in sorted(sent.items()):
        if name not in committed:
            yield f"{name} was started, and no record holds that attempt"
        elif times > 1:
            yield f"{name} was started {times} times, and committed once"
