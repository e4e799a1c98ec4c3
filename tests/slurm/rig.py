"""A connection to the cluster of the tests, and payloads whose doings can be read from here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from dispatch_core.adapters.conformance import CHECKS, CLOSING, SHOWS, Check, Rig
from dispatch_core.adapters.slurm.cluster import SlurmCluster
from dispatch_core.adapters.slurm.scheduler import SlurmScheduler
from dispatch_core.adapters.slurm.transport import LocalTransport, Transport
from dispatch_core.plan import Spec
from tests.adapters.local import PAYLOAD, RECITAL, read
from tests.slurm.cluster import Cluster


class SlurmRig(Rig):
    """One connection, and a folder that root and the ordinary users can write to."""

    patience_seconds = 60.0
    quiet_seconds = 3.0

    def __init__(self, cluster: Cluster, folder: Path, transport: Transport | None = None) -> None:
        """`folder`: where payloads write, and dispatch's own folder on the cluster is."""
        self.cluster, self.folder = cluster, folder
        self.settings = SlurmCluster(
            name="test",
            directory=str(folder / "home"),
            slurm_conf=str(cluster.conf),
            poll_seconds=0.2,
            absence_seconds=5.0,
            submits_per_second=1000.0,
        )
        self.adapter: SlurmScheduler = SlurmScheduler(
            self.settings, transport or LocalTransport(cluster.env | {"HOME": str(folder)})
        )

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
        return Spec(command=("/usr/bin/python3", "-I", "-S", "-c", RECITAL, *told, *arguments))

    async def recited(self, place: str) -> tuple[list[str], dict[str, str | None]] | None:
        with contextlib.suppress(FileNotFoundError):
            arguments, variables = json.loads((self.folder / f"recital-{place}").read_text())
            return arguments, variables
        return None

    async def leaks(self, secret: str) -> list[str]:
        """In command lines, in what Slurm keeps of its jobs, and in files that are not the user's alone."""
        form = secret.encode()
        places = [f"/proc/{pid}/cmdline" for pid in filter(str.isdecimal, os.listdir("/proc"))]
        for folder in (self.cluster.folder, self.folder):
            for at, _, names in os.walk(folder):
                private = os.path.basename(at) == "secrets" and os.stat(at).st_mode & 0o077 == 0
                places += [os.path.join(at, name) for name in names if not private]
        return [place for place in places if "recital-" not in place and form in read(place)]

    def listings(self) -> int:
        return self.adapter.listings


def folder_of(cluster: Cluster, user: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="rig-", dir=cluster.work))
    folder.chmod(0o755)
    shutil.chown(folder, user, user)
    return folder


@contextlib.asynccontextmanager
async def slurm_rig(
    cluster: Cluster, transport: Transport | None = None, user: str = "root"
) -> AsyncIterator[SlurmRig]:
    """A rig in a folder of its own; what it leaves in the queue is the cluster's to end."""
    rig = SlurmRig(cluster, folder_of(cluster, user), transport)
    try:
        yield rig
    finally:
        await rig.adapter.close()


def marked(check: Check) -> ParameterSet:
    """A check as a parameter, with the promises that it shows."""
    return pytest.param(
        check, id=check.__name__, marks=[pytest.mark.promise(number) for number in SHOWS[check.__name__]]
    )


class Outcomes:
    """How the checks came out that ran side by side."""

    def __init__(self, told: dict[str, BaseException | None]) -> None:
        self._told = told

    def tell(self, check: Check) -> None:
        """Raise what the check raised."""
        error = self._told[check.__name__]
        if error is not None:
            raise error


def outcomes_of(connect: Callable[[], contextlib.AbstractAsyncContextManager[SlurmRig]]) -> Outcomes:
    """Run every check of the suite, several at a time, each on a connection of its own."""

    async def run() -> list[BaseException | None]:
        places = asyncio.Semaphore(AT_ONCE)

        async def one(check: Check) -> None:
            async with places, connect() as rig:
                await check(rig)

        return await asyncio.gather(*(one(check) for check in ALL), return_exceptions=True)

    return Outcomes(dict(zip((check.__name__ for check in ALL), asyncio.run(run()), strict=True)))


ALL = (*CHECKS, *CLOSING)
AT_ONCE = 6
