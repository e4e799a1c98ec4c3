"""What happened, from outside of dispatch: lines that runs wrote, rows of Airflow's database, files of the spool.

One rule: nothing here asks the supervisor, the client or the adapter; what they say is what is to be checked. The
record is read with plain SQL, and a run's runner is recognized by the file that it holds open, never by a name.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dispatch_core.errors import DispatchError
from dispatch_core.plan import Value
from dispatch_core.record import Kind, Record, decode

Query = Callable[..., list[dict[str, Any]]]
"""Asks Airflow's database: a statement and its values; rows."""


class Line(Value, frozen=True):
    """What a run of the example appends to its file."""

    submission: int
    run: int
    what: str
    """start or end."""


class Job(Value, frozen=True):
    """One row of `dispatch_job`, and its record."""

    row: dict[str, Any]
    record: Record

    @property
    def opened(self) -> list[tuple[int, int]]:
        """Submission and run of every Open call that the record holds: what it has authorized to run."""
        calls = [(self.record.object(call.object or ""), call) for call in self.record.calls if call.kind is Kind.OPEN]
        return sorted((object.submission, call.run) for object, call in calls if object is not None)


class Told(Value, frozen=True):
    """One line of a record's history."""

    revision: int
    at: str
    actor: str
    line: str


def lines(path: Path) -> list[Line]:
    """The lines that runs have appended so far, in their order."""
    try:
        found = [line.split() for line in path.read_text().splitlines()]
    except FileNotFoundError:
        return []
    return [Line(submission=int(submission), run=int(run), what=what) for submission, run, what in found]


def jobs(query: Query, beginning: str = "") -> list[Job]:
    """The jobs whose keys begin so, read from the table itself, in the order of their making."""
    found = query("SELECT * FROM dispatch_job ORDER BY created, key")
    rows = [row for row in found if row["key"].startswith(beginning)]
    return [Job(row={n: v for n, v in row.items() if n != "document"}, record=decode(row["document"])) for row in rows]


def history(query: Query, uid: str) -> list[Told]:
    """The story of one record, a sentence each, oldest first."""
    rows = query("SELECT revision, at, actor, lines FROM dispatch_history WHERE uid = ? ORDER BY revision", uid)
    return [
        Told(revision=row["revision"], at=str(row["at"]), actor=row["actor"], line=line)
        for row in rows
        for line in json.loads(row["lines"])
    ]


def runner(spool: Path, object: str, run: int) -> int | None:
    """The pid of a run's runner: the one that the spool names, if it has the run's `runner` file open; else None."""
    folder = spool / "objects" / object / "runs" / str(run)
    try:
        pid = int(json.loads((folder / "launched.json").read_text())["runner"])
        held = (folder / "runner").stat()
        files = [os.stat(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")]
    except (OSError, ValueError, KeyError):
        return None
    return pid if any(os.path.samestat(held, file) for file in files) else None


def fail_node(spool: Path, object: str, run: int) -> int:
    """End a run's runner with SIGKILL, as the end of its node would; its pid. Raises DispatchError if it is not there.

    It is looked for again once its pidfd is open, so that a pid used anew is never hit.
    """
    pid = runner(spool, object, run)
    if pid is None:
        raise DispatchError(f"run {run} of object {object} has no runner in {spool}")
    at = os.pidfd_open(pid)
    try:
        if runner(spool, object, run) != pid:
            raise DispatchError(f"run {run} of object {object} has ended before its node could fail")
        signal.pidfd_send_signal(at, signal.SIGKILL)
    finally:
        os.close(at)
    return pid
