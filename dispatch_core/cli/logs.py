"""What prints a run's log: `logs`.

One rule: standard output has the bytes that the run wrote and nothing else; what there is to say about them is on
standard error. Nothing is changed; what is followed is the run that was asked for, never the next one.
"""

from __future__ import annotations

import codecs
import json
import sys
import tempfile
from typing import IO, NamedTuple

from dispatch_core.adapters.contract import Job, Target
from dispatch_core.adapters.logs import CHUNK, written
from dispatch_core.cli import exits
from dispatch_core.cli.screen import json_text
from dispatch_core.cli.session import Detached, Session, run
from dispatch_core.errors import BadInput
from dispatch_core.record import Record

KEPT = 2**20
"""Bytes of a log that stay in memory where it is printed as JSON."""


class Wanted(NamedTuple):
    """Which log, and how much of it."""

    submission: int | None
    """None: the newest."""
    run: int | None
    """None: the newest of its object."""
    last_lines: int | None
    follow: bool


def logs(session: Session, key: str, wanted: Wanted) -> int:
    if wanted.follow and session.screen.as_json:
        raise BadInput("a log that is followed has no end that JSON could have; leave out -o json or --follow")

    async def work() -> int:
        async with session.opened() as store:
            record = await store.read(key)
            target = _target(record, wanted)
            with tempfile.SpooledTemporaryFile(KEPT) as kept:
                out: IO[bytes] = kept if session.screen.as_json else sys.stdout.buffer
                async with session.scheduler(record.scheduler) as adapter:
                    job, tell = Job.of(record), session.screen.say
                    async for piece in written(
                        adapter, job, target, tell, last_lines=wanted.last_lines, follow=wanted.follow
                    ):
                        out.write(piece)
                        out.flush()
                if session.screen.as_json:
                    kept.seek(0)
                    _print_json({"key": key, "object": target.id, "run": target.run}, kept)
            if wanted.follow:
                _tell_of_later(session, await store.read(key, record.uid), target)
        return exits.FINE

    try:
        return run(work())
    except Detached as left:
        return exits.SIGNALLED + left.number


def _target(record: Record, wanted: Wanted) -> Target:
    submission = (
        record.last if wanted.submission is None else next(iter(record.submissions[wanted.submission - 1 :]), None)
    )
    object = record.object(submission.canonical) if submission is not None and submission.canonical else None
    if object is None or (wanted.run is not None and wanted.run > object.run):
        raise BadInput(f"job {record.key!r} has launched no such run yet; `dispatch status` lists what there is")
    return Target(id=object.id, name=object.name, run=wanted.run or object.run)


def _tell_of_later(session: Session, record: Record, target: Target) -> None:
    """Say so where the run that was followed is not the job's newest."""
    newest, shown = record.last, record.object(target.id)
    if newest is None or shown is None:
        return
    if newest.number > shown.submission:
        what = f"submission {newest.number}"
    elif shown.run > target.run:
        what = f"run {shown.run}"
    else:
        return
    command = session.command("logs", record.key)
    session.screen.say(f"run {target.run} of {target.id} has ended, and {what} has followed: {command}")


def _print_json(told: dict[str, str | int], text: IO[bytes]) -> None:
    """The value with the text in it, which may be larger than memory."""
    head = json_text(told).rstrip().removesuffix("}").rstrip()
    sys.stdout.write(f'{head},\n  "text": "')
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    while True:
        piece = text.read(CHUNK)
        escaped = json.dumps(decoder.decode(piece, final=not piece), ensure_ascii=True)[1:-1]
        sys.stdout.write(escaped.replace("\x7f", "\\u007f"))
        if not piece:
            break
    sys.stdout.write('"\n}\n')
