"""A place to start programs in, of which nothing outlives whoever opened it: the side that asks.

One rule: everything is started through the keeper, never by this program itself, so that the end of this one, whether
by `close`, by Ctrl-C or by SIGKILL, is the end of all of them and of their folder.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dispatch_core.errors import DispatchError

CLOSING_SECONDS = 40.0
"""Twice what the keeper takes at most."""


class Shelter:
    """Programs by name, each in a session of its own, and a temporary folder."""

    def __init__(self, prefix: str) -> None:
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py")), prefix],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in a terminal is for whoever opened this
        )
        try:
            self.folder = Path(self._answered()["folder"])
        except BaseException:
            self.close()
            raise

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Start a program; what it prints goes to `NAME.log` in the folder. Its pid, which is its session's."""
        answer = self._ask(
            do="start",
            name=name,
            command=list(command),
            environment=dict(environment),
            folder=str(self.folder),
            log=str(self.log(name)),
        )
        if "error" in answer:
            raise DispatchError(f"{name} could not be started: {answer['error']}")
        return int(answer["pid"])

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to the program and all that is of its session."""
        self._ask(do="signal", name=name, number=int(number))

    def crash(self, name: str) -> None:
        """SIGKILL, for the program and all that is of its session; nothing of it is left when this returns."""
        if left := self._ask(do="signal", name=name, number=int(signal.SIGKILL))["left"]:
            raise DispatchError(f"{left} of {name} would not end")

    def ended(self) -> dict[str, int]:
        """The programs that are not running any more, with their exit codes."""
        ended: dict[str, int] = self._ask(do="look")["ended"]
        return ended

    def run(self, name: str, command: Sequence[str], environment: Mapping[str, str], seconds: float) -> None:
        """Start a program and wait for it. Raises DispatchError with its last lines if it fails or takes too long."""
        self.start(name, command, environment)
        until = time.monotonic() + seconds
        while (code := self.ended().get(name)) is None:
            if time.monotonic() > until:
                raise DispatchError(f"{name} has not ended after {seconds:g} s: {self.last_lines(name)}")
            time.sleep(0.05)
        if code:
            raise DispatchError(f"{name} failed with exit code {code}: {self.last_lines(name)}")

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def last_lines(self, name: str, count: int = 5) -> str:
        """The end of what a program has printed, for an error."""
        try:
            lines = self.log(name).read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return "it has printed nothing"
        return "\n  ".join(["", *lines[-count:]]) if lines else "it has printed nothing"

    def close(self) -> None:
        """End everything and remove the folder. Raises DispatchError if something is left. A second time: nothing."""
        for pipe in (self._keeper.stdin, self._keeper.stdout):
            if pipe is not None:
                pipe.close()
        try:
            code = self._keeper.wait(CLOSING_SECONDS)
        except subprocess.TimeoutExpired:
            code = -1
        if code:
            raise DispatchError("not everything that was started could be ended and removed; look at ps and at /tmp")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, **told: Any) -> dict[str, Any]:
        assert self._keeper.stdin is not None  # noqa: S101 - it was opened with a pipe
        try:
            self._keeper.stdin.write(json.dumps(told).encode() + b"\n")
            self._keeper.stdin.flush()
        except (BrokenPipeError, ValueError) as error:
            raise DispatchError("the keeper of the programs is gone, and they with it") from error
        return self._answered()

    def _answered(self) -> dict[str, Any]:
        assert self._keeper.stdout is not None  # noqa: S101 - it was opened with a pipe
        line = self._keeper.stdout.readline()
        if not line:
            raise DispatchError("the keeper of the programs is gone, and they with it")
        answer: dict[str, Any] = json.loads(line)
        return answer
