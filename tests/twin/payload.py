"""What a twin's jobs run: it writes its own start and end into the lines of the twin, and says whether it is alone.

A program of its own, with the standard library only: `payload.py <folder> <behaviour>`. The flock that it takes lives
exactly as long as it does, so a second run that begins beside it cannot get it, whatever any record says.
"""

import fcntl
import json
import os
import signal
import sys
import time


def main(folder: str, behaviour: dict[str, float | str | bool]) -> None:
    told = {name: value for name, value in os.environ.items() if name.startswith("DISPATCH_")}
    key = told["DISPATCH_KEY"]
    alone = os.open(os.path.join(folder, f"{key}.alone"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        append(folder, key, "start", alone=False, **told)
        return
    append(folder, key, "start", alone=True, **told)
    time.sleep(float(behaviour["seconds"]))
    before = int(told["DISPATCH_SUBMISSION"]) + int(told["DISPATCH_RUN"]) - 2
    if before < int(behaviour["fails"]) and behaviour["lingers"]:
        linger()
    if before >= int(behaviour["fails"]):
        append(folder, key, "end", code=0, **told)
    elif behaviour["how"] == "signal":
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        append(folder, key, "end", code=3, **told)
        sys.exit(3)


def linger() -> None:
    """Leave something behind that does not end when it is asked to: the run is ending meanwhile, and not alone."""
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)
        os._exit(0)


def append(folder: str, key: str, what: str, **told: object) -> None:
    """One line in one write, so that the order of the lines is the order of what happened."""
    line = json.dumps({"what": what, "key": key, "at": time.time_ns(), "pid": os.getpid(), **told}) + "\n"
    number = os.open(os.path.join(folder, "lines"), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.write(number, line.encode())
    os.close(number)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
