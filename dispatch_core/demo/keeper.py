"""Ends whatever was started here, and removes its folder, once whoever asked for it is gone, in whatever way it went.

A program of its own: it starts what it is told to on its standard input, one JSON object a line, and answers each on
its standard output. One rule: all that descends from it stays its descendant, orphans included, so that at the end of
its input nothing is left alive, found by descent and never by a name. It imports the standard library only, and is run
by path, so that it is up before anything can go wrong.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PR_SET_CHILD_SUBREAPER = 36
REAPING_SECONDS = 0.2
AGAIN_SECONDS = 0.02
ENDING_SECONDS = 20.0
"""How long it tries to end all that is left, before it gives up and says so."""


class Keeper:
    """What was started, by name, and how it ended."""

    def __init__(self) -> None:
        self.started: dict[str, int] = {}
        self.ended: dict[int, int] = {}

    def serve(self) -> None:
        """Do as told until the input ends, or SIGTERM comes."""
        asked = b""
        while True:
            ready, _, _ = select.select([0], [], [], REAPING_SECONDS)
            self.reap()
            if not ready:
                continue
            got = os.read(0, 65536)
            if not got:
                return
            *lines, asked = (asked + got).split(b"\n")
            for line in lines:
                os.write(1, json.dumps(self.answer(json.loads(line))).encode() + b"\n")

    def answer(self, told: dict[str, Any]) -> dict[str, Any]:
        """Do one thing."""
        if told["do"] == "start":
            return self.start(told["name"], told["command"], told["environment"], told["folder"], told["log"])
        if told["do"] == "signal":
            return {"left": self.signal(self.started[told["name"]], told["number"])}
        self.reap()
        return {"ended": {name: self.ended[pid] for name, pid in self.started.items() if pid in self.ended}}

    def start(
        self, name: str, command: list[str], environment: dict[str, str], folder: str, log: str
    ) -> dict[str, Any]:
        """Start a program in a session of its own."""
        try:
            with open(log, "ab") as out:
                child = subprocess.Popen(
                    command,
                    cwd=folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
        except OSError as error:
            return {"error": str(error)}
        child.returncode = 0  # it is waited for below, with all others
        self.started[name] = child.pid
        return {"pid": child.pid}

    def signal(self, session: int, number: int) -> int:
        """Signal all that is alive of a session; with SIGKILL, until nothing is. How many are left."""
        until = time.monotonic() + ENDING_SECONDS
        while True:
            members = [pid for pid in pids() if told_of(pid)[1:] == ("alive", session)]
            for pid in members:
                with contextlib.suppress(OSError):
                    to = os.pidfd_open(pid)
                    try:
                        if told_of(pid)[2] == session:
                            signal.pidfd_send_signal(to, number)
                    finally:
                        os.close(to)
            self.reap()
            if number != signal.SIGKILL or not members or time.monotonic() > until:
                return len(members)
            time.sleep(AGAIN_SECONDS)

    def reap(self) -> None:
        """Take note of all children that have ended, adopted ones included."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                self.ended[pid] = os.waitstatus_to_exitcode(status)

    def end(self) -> int:
        """End the children, and theirs as they come to us, until none is left. How many are."""
        until = time.monotonic() + ENDING_SECONDS
        while True:
            mine = [pid for pid in pids() if told_of(pid)[0] == os.getpid()]
            for pid in mine:
                os.kill(pid, signal.SIGKILL)  # ours until it is waited for, so nobody else has this pid
            self.reap()
            if not mine or time.monotonic() > until:
                return len(mine)
            time.sleep(AGAIN_SECONDS)


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def told_of(pid: int) -> tuple[int, str, int]:
    """Its parent, whether it is alive, and its session; zeros for one that is not there any more."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, parent, _, session = file.read().rpartition(b")")[2].split()[:4]
    except OSError:
        return 0, "gone", 0
    return int(parent), "ended" if state in (b"Z", b"X") else "alive", int(session)


def stop(*_: object) -> None:
    raise SystemExit


def main() -> None:
    """Keep what is started in a new folder, whose name begins with the argument; its path is the first line out."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, stop)
    keeper, folder = Keeper(), tempfile.mkdtemp(prefix=sys.argv[1])
    left = 0
    try:
        os.write(1, json.dumps({"folder": folder}).encode() + b"\n")
        keeper.serve()
    except (BrokenPipeError, SystemExit):
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        left = keeper.end()
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(1 if left or os.path.exists(folder) else 0)


if __name__ == "__main__":
    main()
