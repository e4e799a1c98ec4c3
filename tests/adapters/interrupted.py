"""Makes calls on a spool that end, or stop, between two lines: a program of its own, so that a signal hits nobody else.

`python -m tests.adapters.interrupted` reads what to do from its standard input and forks once for each call. The
product knows nothing of it: the interpreter's own trace says when a line is about to be executed.
"""

from __future__ import annotations

import json
import linecache
import os
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Any

import msgspec

from dispatch_core.adapters.contract import Launch, Target
from dispatch_core.adapters.local import calls, spool
from dispatch_core.record import Reply

ROOMS = (calls.__file__, spool.__file__)


def interrupt(number: signal.Signals, *, line: int = 0, text: str = "") -> None:
    """Send this program a signal before it executes a line of these rooms: the `line`-th that it has not executed
    before, or the first that has `text`."""
    seen: set[tuple[str, int]] = set()

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        place = (frame.f_code.co_filename, frame.f_lineno)
        if place[0] not in ROOMS:
            return None
        if event == "line" and place not in seen:
            seen.add(place)
            if len(seen) == line or (text and text in linecache.getline(*place)):
                sys.settrace(None)
                os.kill(os.getpid(), number)
        return trace

    sys.settrace(trace)


def make(told: dict[str, Any], call: dict[str, Any]) -> Reply:
    """One call, as the scheduler's thread would make it."""
    host = calls.Calls(told["root"], lambda: datetime.now(UTC), told["slots"], 1.0)
    deadline = datetime.now(UTC) + timedelta(seconds=told["seconds"])
    if told["kind"] == "start":
        return host.start(msgspec.convert(call, Launch), {}, {}, deadline)
    reply: Reply = getattr(host, told["kind"])(msgspec.convert(call, Target), deadline)
    return reply


def main() -> None:
    """Fork once for each call, at the same time if `at_once`; write down how each came out."""
    told = json.load(sys.stdin)
    begun, begin = os.pipe()
    children = []
    for call in told["calls"]:
        pid = os.fork()
        if pid == 0:
            os.close(begin)
            if told.get("at_once"):
                os.read(begun, 1)
            line = call.pop("line")
            if "signal" in told:
                interrupt(signal.Signals(told["signal"]), line=line, text=told.get("text", ""))
            reply = make(told, call)
            sys.settrace(None)
            os.write(1, f"{reply.answer}\n".encode())
            os._exit(0)
        children.append(pid)
        if not told.get("at_once"):
            _, status = os.waitpid(pid, os.WUNTRACED)
            if os.WIFSTOPPED(status):
                os.write(1, f"{pid}\n".encode())
                os.waitpid(pid, 0)
    os.close(begin)
    for pid in children if told.get("at_once") else ():
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
