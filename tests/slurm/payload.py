"""What the jobs of a scene run: it appends a line when it begins and one when it ends, and says whether it is alone.

A program of its own, with the standard library only: `payload.py <folder> <behaviour>`. The flock that it takes lives
exactly as long as it does, so a second run that begins beside it cannot get it, whatever any record says.
"""

import fcntl
import json
import os
import signal
import sys
import time
from types import FrameType

PASSED_ON = ("KEY", "SUBMISSION", "ATTEMPT", "OBJECT", "RUN", "PREVIOUS_CAUSE")


def main(folder: str, behaviour: dict[str, list[float]]) -> None:
    """`codes`, `seconds`: of the first launch, the second, ...; the last one is for all that follow. `waits`: until the
    file `go-KEY` is there. A negative code is a signal to itself."""
    told = {name.lower(): os.environ[f"DISPATCH_{name}"] for name in PASSED_ON}
    before = int(told["submission"]) + int(told["run"]) - 2
    alone = os.open(os.path.join(folder, f"{told['key']}.alone"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        append(folder, "start", told, alone=False)
        return

    def leave(number: int, _: FrameType | None) -> None:
        append(folder, "end", told, code=-number)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, leave)
    append(folder, "start", told, alone=True)
    if before < len(behaviour.get("waits", [])):
        while not os.path.exists(os.path.join(folder, f"go-{told['key']}")):
            time.sleep(0.05)
    time.sleep(of(behaviour.get("seconds", [0.0]), before))
    code = int(of(behaviour.get("codes", [0]), before))
    append(folder, "end", told, code=code)
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)


def of(each: list[float], number: int) -> float:
    return each[min(number, len(each) - 1)]


def append(folder: str, what: str, told: dict[str, str], **more: object) -> None:
    """One line in one write, so that the order of the lines is the order of what happened."""
    line = json.dumps({"what": what, "at": time.time(), "pid": os.getpid(), **told, **more}) + "\n"
    number = os.open(os.path.join(folder, "lines"), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    os.write(number, line.encode())
    os.close(number)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
