"""What a run left alive: found, and ended.

One rule: nothing is signalled that was not recognized after its pidfd was opened, so that a pid used anew is never hit.
Something is of a run when it carries one of the run's flocked files, or has the run's own marks in the environment that
it was started with. What closes every file it inherited, clears its environment and outlives its runner escapes, and so
does what changes its user: nothing here can see it. This room imports the standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal

from . import spool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

OBJECT_MARK, RUN_MARK = "DISPATCH_OBJECT", "DISPATCH_RUN"


class Marks:
    """What anything of one run is recognized by."""

    def __init__(self, folder: str, id: str, run: int) -> None:
        self.environment = {f"{OBJECT_MARK}={id}".encode(), f"{RUN_MARK}={run}".encode()}
        self.files = set()
        for name in spool.CARRIED:
            with contextlib.suppress(FileNotFoundError):
                found = os.stat(os.path.join(folder, name))
                self.files.add((found.st_dev, found.st_ino))

    def found(self) -> list[int]:
        """The pids of all that is alive of the run, but for whoever asks."""
        pids = (int(name) for name in os.listdir("/proc") if name.isdecimal())
        return [pid for pid in pids if pid != os.getpid() and self.on(pid)]

    def on(self, pid: int) -> bool:
        """Whether this pid is of the run; what has ended, or is somebody else's, is not."""
        with contextlib.suppress(OSError):
            if self.environment <= set(_read(f"/proc/{pid}/environ").split(b"\0")):
                return True
        with contextlib.suppress(OSError):
            return any(self._carried(pid, number) for number in os.listdir(f"/proc/{pid}/fd"))
        return False

    def _carried(self, pid: int, number: str) -> bool:
        """Whether an open file is one of the run's and has its flock: who merely reads along has none."""
        try:
            found = os.stat(f"/proc/{pid}/fd/{number}")
            if (found.st_dev, found.st_ino) not in self.files:
                return False
            told = _read(f"/proc/{pid}/fdinfo/{number}")
        except OSError:
            return False
        return any(b" FLOCK " in line and b" WRITE " in line for line in told.splitlines() if line[:5] == b"lock:")

    def signal(self, pids: Iterable[int], number: int) -> None:
        """Send a signal to those of these pids that are still of the run."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                to = os.pidfd_open(pid)
                try:
                    if self.on(pid):
                        signal.pidfd_send_signal(to, number)
                finally:
                    os.close(to)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
