"""Starts programs, adopts whatever they leave behind, and ends all of it when its input ends.

Each line of its input is a command as JSON; it answers with the pid. Slurm's daemons part from what they start, and a
job may part from its step; the kernel then gives them to the nearest ancestor that asked for them, which is this one.
So all that it has started are its descendants for good, and ended by pid. Its input ends with whoever started it,
however that came about, and then its folder is removed as well, and the kernel's groups that the daemons made. Run as
`python keeper.py FOLDER [GROUP...]`.
"""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

PR_SET_CHILD_SUBREAPER = 36


def descendants(pid: int) -> list[int]:
    """The pids below this one."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found, new = set[int](), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return sorted(found)


def reap(_signal: int, _frame: FrameType | None) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def start(order: dict[str, Any]) -> int:
    with Path(order["log"]).open("ab") as log:
        child = subprocess.Popen(
            order["argv"],
            env=order["env"],
            cwd=order["cwd"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    return child.pid


def end() -> None:
    while left := descendants(os.getpid()):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def main(folder: str, *groups: str) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    signal.signal(signal.SIGCHLD, reap)
    try:
        for line in sys.stdin:
            print(start(json.loads(line)), flush=True)
    finally:
        end()
        shutil.rmtree(folder, ignore_errors=True)
        for group in groups:
            for path, _, _ in os.walk(group, topdown=False):
                os.rmdir(path)  # its files are the kernel's


if __name__ == "__main__":
    main(*sys.argv[1:])
