"""A local scheduler in a folder of its own, payloads whose doings can be read, and an end to all of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dispatch_core.adapters.conformance import Rig
from dispatch_core.adapters.contract import Adapter
from dispatch_core.adapters.local.scheduler import LocalScheduler
from dispatch_core.plan import Spec
from dispatch_core.record import State

PAYLOAD = """
printf '%s\\n' "$1" >> "$2"
printf '%s\\n' "$1"
[ -z "$3" ] || while [ ! -e "$3" ]; do sleep 0.05; done
[ "$5" = 0 ] || kill -"$5" $$
exit "$4"
"""

RECITAL = """
import json, os, sys
place, names, arguments = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:]
with open(place + ".new", "w") as file:
    json.dump([arguments, {name: os.environ.get(name) for name in names}], file)
os.rename(place + ".new", place)
"""


class LocalRig(Rig):
    """One local scheduler."""

    quiet_seconds = 0.5

    def __init__(self, folder: Path, scheduler: LocalScheduler) -> None:
        self.folder, self.scheduler, self.spool = folder, scheduler, folder / "spool"
        self.adapter: Adapter = scheduler

    def payload(self, line: str, *, waits: bool = False, exit_code: int = 0, signal: int = 0) -> Spec:
        go = str(self.folder / f"go-{line}") if waits else ""
        return Spec(
            command=("sh", "-c", PAYLOAD, "sh", line, str(self.folder / "lines"), go, str(exit_code), str(signal))
        )

    async def go(self, line: str) -> None:
        (self.folder / f"go-{line}").touch()

    async def lines(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "lines").read_text().splitlines()
        return []

    def recital(self, place: str, arguments: tuple[str, ...], names: tuple[str, ...]) -> Spec:
        told = (str(self.folder / f"recital-{place}"), json.dumps(names))
        return Spec(command=(sys.executable, "-I", "-S", "-c", RECITAL, *told, *arguments))

    async def recited(self, place: str) -> tuple[list[str], dict[str, str | None]] | None:
        with contextlib.suppress(FileNotFoundError):
            arguments, variables = json.loads((self.folder / f"recital-{place}").read_text())
            return arguments, variables
        return None

    async def leaks(self, secret: str) -> list[str]:
        forms = (secret.encode(), json.dumps(secret)[1:-1].encode())
        places = [f"/proc/{pid}/cmdline" for pid in filter(str.isdecimal, os.listdir("/proc"))]
        for folder, _, names in os.walk(self.spool):
            private = os.stat(folder).st_mode & 0o077 == 0
            paths = [os.path.join(folder, name) for name in names]
            places += [path for path in paths if not (private and os.stat(path).st_mode & 0o077 == 0)]
            places += [path for path in paths if not path.endswith("/secrets.json")]
        return [place for place in places if any(form in read(place) for form in forms)]

    def listings(self) -> int:
        return self.scheduler.listings


def read(place: str) -> bytes:
    with contextlib.suppress(OSError), open(place, "rb") as file:
        return file.read()
    return b""


def soon(seconds: float = 60.0) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def at_work_in(folder: Path) -> list[int]:
    """Whoever has a file below this folder open, or on its command line: runners, payloads, and what they started."""
    found = []
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            files = [os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")]
            told = read(f"/proc/{pid}/cmdline").decode(errors="replace").split("\0")
            if pid != os.getpid() and any(text.startswith(f"{folder}/") for text in files + told):
                found.append(pid)
    return found


@contextlib.asynccontextmanager
async def local_rig(folder: Path, slots: int = 64, grace_seconds: float = 1.0) -> AsyncIterator[LocalRig]:
    """A rig whose objects are all stopped in the end; fails if anything of it outlives that."""

    def connect() -> LocalScheduler:
        return LocalScheduler(folder / "spool", slots=slots, grace_seconds=grace_seconds, listing_seconds=0.02)

    rig = LocalRig(folder, connect())
    try:
        yield rig
    finally:
        await rig.scheduler.close()
        try:
            if rig.spool.is_dir():
                last = connect()
                await end_everything(last)
                await last.close()
            async for _ in rig.patiently():
                if not at_work_in(folder):
                    break
        finally:
            left = at_work_in(folder)
            for pid in left:  # the scheduler under test did not end it, and nobody else will
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        assert left == []


async def end_everything(scheduler: LocalScheduler) -> None:
    async with asyncio.timeout(30):
        while True:
            shown = (await scheduler.everything()).objects
            alive = [sighting for sighting in shown if sighting.name and sighting.state is not State.ENDED]
            if not alive:
                return
            await scheduler.stop_job(tuple(sighting.name for sighting in alive), soon())
