"""The runner: what executes one run of one object, and writes down how it ended.

One rule: a run is launched once. The runner holds the flock on the run's `runner` file for as long as it lives, and
writes `launched` under the object's claim before the payload starts; a run that is launched and has neither runner nor
end is a node failure, never launched again. The payload dies with its runner, and carries flocked files, so that
nothing of it goes unseen. This room imports the standard library only, and knows no supervisor.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import time

from . import spool
from .leftovers import OBJECT_MARK, RUN_MARK, Marks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WAITING_SECONDS, LONGEST_WAITING_SECONDS = 0.1, 0.5
"""How soon a runner that waits (for a slot, for a release) looks again, at first and in the end: many may wait long."""
LOOKING_SECONDS, LONGEST_LOOKING_SECONDS = 0.2, 1.0
"""How soon the runner of a payload looks for a stop, at first and once it has run for a minute: a thousand runners that
look five times a second keep a processor busy."""
MESSAGE_LENGTH = 1000
OUT_OF_MEMORY_SECONDS = 2.0
"""An out-of-memory kill in the control group counts for a payload that ended by SIGKILL within this time of it."""

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def main(arguments: list[str]) -> None:
    """Run `<object folder> <run>` in a process of its own session that nobody has to wait for."""
    folder, run = arguments
    if os.fork():
        os._exit(0)
    os.setsid()
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.chdir("/")
    with contextlib.suppress(spool.Gone):
        Runner(folder, int(run)).execute()


class Runner:
    """One run of one object."""

    def __init__(self, folder: str, run: int) -> None:
        self.object, self.number = folder, run
        self.folder = spool.run_folder(folder, run)
        self.tags: dict[str, Any] = {}
        self.secrets: dict[str, str] = {}
        self.carried: list[int] = []

    def execute(self) -> None:
        """Everything, from the claim on the run to its written end."""
        if not self._claim_run():
            return
        self.tags = spool.read_json(os.path.join(self.object, spool.TAGS)) or {}
        opened = spool.read_json(os.path.join(self.folder, spool.OPEN)) or {}
        slot = self._wait(int(opened.get("slots", 1)))
        if slot is None:
            return
        carried = [slot, *self.carried]
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._write_end(Payload(self, carried).end())
        self._end_leftovers(float(self.tags["grace_seconds"]))

    def _claim_run(self) -> bool:
        """Become the one runner of this run."""
        while True:
            with contextlib.suppress(spool.Busy), spool.claimed(self.object, seconds=1.0):
                if not self._is_wanted():
                    return False
                return spool.make_held(os.path.join(self.folder, spool.RUNNER)) is not None

    def _is_wanted(self) -> bool:
        """Whether this run is open, the newest, and neither stopped nor begun."""
        unwanted = (spool.STOP, spool.LAUNCHED, spool.END)
        return (
            spool.newest_run(self.object) == self.number
            and spool.has(self.folder, spool.OPEN)
            and not any(spool.has(self.folder, name) for name in unwanted)
        )

    def _wait(self, slots: int) -> int | None:
        """Wait for a release and a slot, and launch; the slot. None: the run is not wanted any more."""
        pause = WAITING_SECONDS
        while self._is_wanted():
            slot = None if spool.has(self.folder, spool.HOLD) else self._slot(slots)
            if slot is not None:
                if self._launch():
                    return slot
                os.close(slot)
            time.sleep(pause)
            pause = min(pause * 1.2, LONGEST_WAITING_SECONDS)
        return None

    def _slot(self, slots: int) -> int | None:
        folder = os.path.join(os.path.dirname(os.path.dirname(self.object)), spool.SLOTS)
        for number in range(slots):
            with contextlib.suppress(OSError):
                slot = spool.make_held(os.path.join(folder, str(number)))
                if slot is not None:
                    return slot
        return None

    def _launch(self) -> bool:
        """Write down that the payload starts now; False: not now, or never."""
        self.carried = []
        with contextlib.suppress(spool.Busy, spool.Unwritten), spool.claimed(self.object, seconds=1.0):
            if not spool.has(self.folder, spool.HOLD) and self._is_wanted() and self._take_carried():
                secrets = os.path.join(self.object, spool.SECRETS)
                self.secrets = spool.read_json(secrets) or {}
                told = {"boot": spool.boot(), "runner": os.getpid()}
                spool.write_json(os.path.join(self.folder, spool.LAUNCHED), told)
                if not self.tags["may_requeue"]:
                    with contextlib.suppress(OSError):
                        os.unlink(secrets)
                return True
        for number in self.carried:
            os.close(number)
        return False

    def _take_carried(self) -> bool:
        for name in spool.CARRIED:
            number = spool.make_held(os.path.join(self.folder, name))
            if number is None:
                return False
            self.carried.append(number)
        return True

    def environment(self) -> dict[str, str]:
        """What the payload finds in its environment."""
        previous = self.tags["previous_cause"]
        if self.number > 1:
            before = spool.read_end(spool.run_folder(self.object, self.number - 1)) or {}
            previous = before.get("cause", "node_failure")
        told = {
            "DISPATCH_KEY": self.tags["key"],
            "DISPATCH_SUBMISSION": str(self.tags["submission"]),
            "DISPATCH_ATTEMPT": str(self.tags["attempt"]),
            OBJECT_MARK: self.tags["id"],
            RUN_MARK: str(self.number),
            "DISPATCH_PREVIOUS_CAUSE": previous,
        }
        return {**self.tags["inherited"], **self.tags["spec"]["environment"], **self.secrets, **told}

    def _write_end(self, end: dict[str, Any]) -> None:
        """Write the end, however long the disk is full; not into a folder that somebody removed."""
        while True:
            try:
                spool.write_json(os.path.join(self.folder, spool.END), end)
                return
            except (OSError, spool.Unwritten):
                if not os.path.isdir(self.folder):
                    return
                time.sleep(1.0)

    def _end_leftovers(self, grace: float) -> None:
        """End all that the payload left alive; the run reads `ending` until this returns."""
        marks, asked, began = Marks(self.folder, self.tags["id"], self.number), set[int](), time.monotonic()
        pause = WAITING_SECONDS / 4
        while True:
            reaped()
            left = {*marks.found(), *children()}
            if not left:
                return
            if time.monotonic() - began < grace:
                signal_each(left - asked, marks, signal.SIGTERM)
                asked |= left
            else:
                signal_each(left, marks, signal.SIGKILL)
            time.sleep(pause)
            pause = min(pause * 1.5, 2.0)


class Payload:
    """The user's program while it runs."""

    def __init__(self, runner: Runner, carried: list[int]) -> None:
        self.runner, self.carried = runner, carried
        self.spec: dict[str, Any] = runner.tags["spec"]
        self.grace = float(runner.tags["grace_seconds"])
        self.limit: float | None = self.spec["time_limit_seconds"]
        self.began = time.monotonic()
        self.ended_by: str | None = None
        self.asked_at = 0.0
        self.warning_at: float | None = None
        if self.limit is not None and self.spec["signal_before_limit"]:
            self.warning_at = self.limit - self.spec["signal_before_limit_seconds"]
        self.memory = OutOfMemory()

    def end(self) -> dict[str, Any]:
        """Start it, wait for it, and say how it ended."""
        self.began = time.monotonic()
        try:
            child = self._start()
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            return self._told("cannot_start", message=f"it could not be started: {error}")
        watched = os.pidfd_open(child.pid)
        waiting = select.poll()
        waiting.register(watched, select.POLLIN)
        while not waiting.poll(self._look(child.pid) * 1000):
            pass
        self.memory.look()
        code = child.wait()
        os.close(watched)
        return self._result(code)

    def _start(self) -> subprocess.Popen[bytes]:
        alive, out, err = self.carried[-3:]
        parent, prctl = os.getpid(), ctypes.CDLL(None).prctl

        def die_with_runner() -> None:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)

        environment = self.runner.environment()
        where = self.spec["working_directory"] or environment.get("HOME") or "/"
        return subprocess.Popen(
            self.spec["command"],
            cwd=where,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            pass_fds=(alive, *self.carried[:-3]),
            start_new_session=True,
            preexec_fn=die_with_runner,
        )

    def _look(self, pid: int) -> float:
        """Do what is due; seconds until the next look."""
        ran = time.monotonic() - self.began
        self.memory.look()
        if self.ended_by is None and spool.has(self.runner.folder, spool.STOP):
            self._ask(pid, "stopped_outside")
        if self.ended_by is None and self.limit is not None and ran >= self.limit:
            self._ask(pid, "time_limit")
        if self.ended_by is not None and time.monotonic() - self.asked_at >= self.grace:
            signal_group(pid, signal.SIGKILL)
        if self.ended_by is None and self.warning_at is not None and ran >= self.warning_at:
            self.warning_at = None
            signal_group(pid, signal.Signals[f"SIG{self.spec['signal_before_limit']}"])
        if self.ended_by is not None:
            return LOOKING_SECONDS
        due = [at - ran for at in (self.limit, self.warning_at) if at is not None]
        pause = min(max(LOOKING_SECONDS, ran / 60.0), LONGEST_LOOKING_SECONDS)
        return max(min([pause, *due]), 0.01)

    def _ask(self, pid: int, cause: str) -> None:
        self.ended_by, self.asked_at = cause, time.monotonic()
        signal_group(pid, signal.SIGTERM)

    def _result(self, code: int) -> dict[str, Any]:
        told: dict[str, Any] = {"exit_code": code} if code >= 0 else {"signal": -code}
        message = self._last_line()
        if self.ended_by is not None:
            return self._told(self.ended_by, message=message, **told)
        if code in (-signal.SIGKILL, 128 + signal.SIGKILL) and self.memory.is_recent():
            return self._told("out_of_memory", message=message, **told)
        return self._told("signal" if code < 0 else "exit" if code else "completed", message=message, **told)

    def _told(self, cause: str, **told: Any) -> dict[str, Any]:
        return {"cause": cause, "seconds": round(time.monotonic() - self.began, 3), **told}

    def _last_line(self) -> str:
        """The last line that the payload wrote to its standard error, with its secrets blotted out."""
        with contextlib.suppress(OSError), open(os.path.join(self.runner.folder, spool.STDERR), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 64 * MESSAGE_LENGTH))
            lines = file.read().decode(errors="replace").split("\n")
            line = next((line.strip() for line in reversed(lines) if line.strip()), "")
            for secret in self.runner.secrets.values():
                for part in filter(None, map(str.strip, secret.split("\n"))):
                    line = line.replace(part, "***")
            return line[:MESSAGE_LENGTH]
        return ""


class OutOfMemory:
    """Whether the kernel ended something of this control group for want of memory, and when that was noticed."""

    def __init__(self) -> None:
        self.path = _memory_events()
        self.count = self._read()
        self.noticed: float | None = None

    def look(self) -> None:
        count = self._read()
        if count > self.count:
            self.count, self.noticed = count, time.monotonic()

    def is_recent(self) -> bool:
        return self.noticed is not None and time.monotonic() - self.noticed <= OUT_OF_MEMORY_SECONDS

    def _read(self) -> int:
        if self.path is not None:
            with contextlib.suppress(OSError, ValueError), open(self.path) as file:
                return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
        return 0


def _memory_events() -> str | None:
    with contextlib.suppress(OSError), open("/proc/self/cgroup") as file:
        for line in file:
            if line.startswith("0::"):
                return f"/sys/fs/cgroup{line[3:].strip()}/memory.events"
    return None


def signal_group(pid: int, number: int) -> None:
    """Signal the payload and what it started in its own group; it has not been waited for, so the group is its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def children() -> set[int]:
    """Who this runner must wait for: all orphaned descendants of the payload come to it."""
    found = set()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                found.add(int(name))
    return found


def reaped() -> None:
    """Take note of all children that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def signal_each(pids: set[int], marks: Marks, number: int) -> None:
    """Signal what is of the run. A child is ours until it is waited for, so its pid is nobody else's."""
    mine = children()
    for pid in pids & mine:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    marks.signal(pids - mine, number)
