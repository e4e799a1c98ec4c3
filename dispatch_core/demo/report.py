"""What the demo tells while it goes on, and at the end: steps with their seconds, checks, rows and the record's story.

One rule: with `-o json` standard output carries one JSON document and nothing else; all that is for people goes to
standard error then. What is printed here was measured or read elsewhere: nothing is worked out.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

from dispatch_core.demo.acts import Check, Play


class Report:
    """Steps as they happen, and the end."""

    def __init__(self, *, as_json: bool, engine: str = "Airflow", run: str = "dag_run") -> None:
        """`run`: the engine's own table of runs."""
        self.as_json, self.engine, self.run = as_json, engine, run
        self.out: TextIO = sys.stderr if as_json else sys.stdout
        self.began = time.monotonic()
        self.steps: list[dict[str, Any]] = []

    @property
    def seconds(self) -> float:
        return round(time.monotonic() - self.began, 1)

    def step(self, text: str) -> None:
        """One thing that has just happened."""
        self.steps.append({"seconds": self.seconds, "step": text})
        self.say(f"{self.seconds:6.1f} s  {text}")

    def say(self, text: str) -> None:
        print(text, file=self.out, flush=True)

    def tell(self, play: Play, checks: Sequence[Check]) -> None:
        """The two rows, the story and the checks, for people."""
        row = play.job.row
        self._title(f"{self.engine}'s own database: the row of this job beside its run")
        self._table(self.run, play.dag_run)
        self._table(
            "dispatch_job", {name: row[name] for name in ("key", "revision", "settled", "result", "lease_epoch")}
        )
        self._title("The story that the record tells")
        for told in play.history:
            self.say(f"  {told.revision:3d}  {told.at[11:19]}  {told.line}")
        self._title("Checked")
        for check in checks:
            self.say(f"  {'yes' if check.held else 'NO '}  {check.name.replace('_', ' '):20s} {check.found}")
        held = sum(check.held for check in checks)
        self.say(f"\n{held} of {len(checks)} checks held, after {self.seconds:.0f} s")

    def document(self, play: Play | None, checks: Sequence[Check], problem: str = "") -> None:
        """The same for programs, on standard output."""
        told: dict[str, Any] = {
            "ok": not problem and bool(checks) and all(check.held for check in checks),
            "seconds": self.seconds,
            "checks": [{"name": check.name, "held": check.held, "found": check.found} for check in checks],
            "steps": self.steps,
        }
        if problem:
            told["problem"] = problem
        if play is not None:
            told["job"] = play.job.row
            told[self.run] = play.dag_run
            told["lines"] = [{"submission": line.submission, "run": line.run, "what": line.what} for line in play.lines]
            told["history"] = [
                {"revision": line.revision, "at": line.at, "actor": line.actor, "line": line.line}
                for line in play.history
            ]
        json.dump(told, sys.stdout, indent=2)
        print(flush=True)

    def _title(self, text: str) -> None:
        self.say(f"\n{text}")

    def _table(self, name: str, row: dict[str, Any]) -> None:
        for column, value in row.items():
            self.say(f"  {name:13s} {column:12s} {value}")
            name = ""
