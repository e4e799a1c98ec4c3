"""The driver of a twin: supervising processes that are stopped and ended at random, jobs, and the persons in it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from dispatch_core.adapters.local.scheduler import prepare
from dispatch_core.adapters.local.spool import END, LAUNCHED, OPEN
from dispatch_core.client import Client
from dispatch_core.errors import BadInput, Conflict
from dispatch_core.reasons import FOR_A_PERSON, Reason
from dispatch_core.record import Kind, Record, Result, State
from dispatch_core.stores.sql import SqlStore, open_store
from tests.adapters.local import at_work_in
from tests.twin import laws
from tests.twin.jobs import SAID_AGAIN, Job, draw_jobs
from tests.twin.payload import append
from tests.twin.supervising import connect

ROOT = Path(__file__).parents[2]
PLACES = 3
"""Supervising processes at a time."""


@dataclass(frozen=True)
class Form:
    """How large a twin is."""

    jobs: int
    seconds: float
    """How long it is disturbed."""
    slowest: float
    """Seconds of the slowest run."""
    kinds: tuple[str, ...]
    """What its supervising processes are: `leased` and `free` (see `supervising`), `command` (`dispatch supervise`)."""
    longest_stop: float
    """Of one process, in seconds: longer than its lease."""
    calm_seconds: float
    """The longest that everything may take to settle when the disturbance is over."""


class Twin:
    """One seed's life."""

    def __init__(self, seed: int, url: str, folder: Path, form: Form) -> None:
        self.seed, self.url, self.folder, self.form = seed, url, folder, form
        self.spool = folder / "spool"
        self.jobs = draw_jobs(seed, form.jobs, form.seconds, form.slowest, folder)
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.began = time.monotonic()
        self.children: list[subprocess.Popen[bytes]] = []

    @property
    def left(self) -> float:
        """Seconds until the disturbance is over."""
        return self.began + self.form.seconds - time.monotonic()

    def lines(self) -> list[dict[str, Any]]:
        place = self.folder / "lines"
        return [json.loads(line) for line in place.read_text().splitlines()] if place.exists() else []

    def tell(self, job: Job, what: str, **told: object) -> None:
        append(str(self.folder), job.key, what, **told)

    # --- the whole

    async def live(self) -> list[str]:
        """Everything; one sentence for each law that was broken."""
        store = open_store(self.url)
        prepare(str(self.spool))
        dice = [random.Random(f"{self.seed} place {place}") for place in range(PLACES)]
        first = await asyncio.gather(*(self.start(place, self.kind(dice[place], place)) for place in range(PLACES)))
        self.began = time.monotonic()
        watching = asyncio.ensure_future(self.look_for_runners())
        deciding = asyncio.ensure_future(self.decide_what_waits(store))
        try:
            async with asyncio.timeout(self.form.seconds + self.form.calm_seconds), asyncio.TaskGroup() as group:
                for place in range(PLACES):
                    group.create_task(self.disturb(place, first[place], dice[place]))
                group.create_task(self.end_runners())
                for job in self.jobs:
                    group.create_task(self.attend_as_person(store, job))
                await self.settled(store)
                for child in self.children:
                    await self.leave(child)
            await self.judge(store)
        except TimeoutError:
            await self.judge(store)
            assert self.wrong, "it took too long, though every job is settled"
        finally:
            for work in (watching, deciding):
                work.cancel()
            await asyncio.gather(watching, deciding, return_exceptions=True)
            for child in self.children:
                child.kill()
                child.wait()
            await store.close()
        return self.wrong

    async def settled(self, store: SqlStore) -> None:
        """Until the disturbance is over and nothing is left to be done."""
        while self.left > 0 or len(self.children) < PLACES or await store.jobs(settled=False):
            await asyncio.sleep(0.1)
        while len(await store.jobs(settled=True)) < len(self.jobs):
            await asyncio.sleep(0.1)

    async def judge(self, store: SqlStore) -> None:
        lines, records = self.lines(), [await store.read(job.key) for job in self.jobs]
        self.wrong += laws.broken_by(lines, self.jobs)
        for job, record in zip(self.jobs, records, strict=True):
            self.wrong += laws.broken_at_the_end(job, record, lines)
        self.wrong += laws.broken_in(self.spool, records)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10):
                while at_work_in(self.spool):
                    await asyncio.sleep(0.1)
        self.wrong += [f"process {pid} of the spool is left" for pid in at_work_in(self.spool)]
        scheduler = connect(self.spool)
        listing = await scheduler.everything()
        await scheduler.close()
        alive = [sighting for sighting in listing.objects if sighting.state is not State.ENDED]
        self.wrong += [f"{sighting.id} of {sighting.key} is left: {sighting.state}" for sighting in alive]
        for log in sorted(self.folder.glob("*.log")):
            if "exception was never retrieved" in log.read_text():
                self.wrong.append(f"{log.name}: {log.read_text()[-2000:]}")
        for record in records:
            actors = [change.actor for change in await store.history(record.key)]
            ours = [actor for actor in actors if actor.startswith("supervisor ")]
            self.counts["takeovers"] += sum(before != after for before, after in pairwise(ours))
            self.counts[str(record.outcome.result) if record.outcome else "no outcome"] += 1
        self.counts["runs"] = sum(line["what"] == "start" for line in lines)

    def report(self) -> str:
        names = ("runs", "kills", "stops", "long stops", "takeovers", "runners ended", *Result)
        told = ", ".join(f"{self.counts[name]} {name}" for name in names)
        return f"twin seed {self.seed}: {len(self.jobs)} jobs, {told}"

    # --- what supervises, and what happens to it

    def kind(self, dice: random.Random, place: int) -> str:
        """What the next process at a place is."""
        return dice.choice(self.form.kinds)

    async def start(self, place: int, kind: str) -> subprocess.Popen[bytes]:
        """Another supervising process, once it says that it is there."""
        self.counts["started"] += 1
        told = self.folder / f"{self.counts['started']}-{place}-{kind}.log"
        told.with_suffix(".began").touch()
        child = self._start(kind, told)
        while child.poll() is None and not told.stat().st_size:
            await asyncio.sleep(0.05)
        return child

    def _start(self, kind: str, told: Path) -> subprocess.Popen[bytes]:
        command = ["setpriv", "--pdeathsig", "KILL", sys.executable, *self.program(kind)]
        with told.open("wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=os.environ | self.environment(kind))

    def program(self, kind: str) -> list[str]:
        """What to give to Python."""
        if kind == "command":
            return ["-m", "dispatch_core", "supervise", "--store", self.url, "--spool", str(self.spool)]
        return ["-m", "tests.twin.supervising", self.url, str(self.spool), kind]

    def environment(self, kind: str) -> dict[str, str]:
        """What a process finds in its environment beside what this one has."""
        return {}

    async def disturb(self, place: int, child: subprocess.Popen[bytes], dice: random.Random) -> None:
        """One place: a process that lives, stalls and is ended, then another; the last one stays."""
        while self.left > 0:
            try:
                await self.pause(dice.uniform(0.8, 4.0))
                for _ in range(dice.choice((1, 1, 2)) if dice.random() < 0.7 or not self.counts["stops"] else 0):
                    await self.stall(child, dice)
                    await self.pause(dice.uniform(0.0, 2.0))
            finally:
                if child.poll() is not None:
                    self.wrong.append(f"a supervising process ended by itself, with {child.returncode}")
                child.kill()
                child.wait()
            self.counts["kills"] += 1
            await self.pause(dice.uniform(0.0, 1.0))
            child = await self.start(place, self.kind(dice, place))
        self.children.append(child)

    async def stall(self, child: subprocess.Popen[bytes], dice: random.Random) -> None:
        """Stopped in mid-step, for a moment or for longer than a lease; then it goes on where it was, or is ended."""
        if self.left <= 0:
            return
        long = dice.random() < 0.4
        seconds = self.form.longest_stop if long else dice.uniform(0.05, 2.0)
        child.send_signal(signal.SIGSTOP)
        self.counts["stops"] += 1
        self.counts["long stops"] += long
        await asyncio.sleep(min(seconds, max(self.left, 0.0)))
        child.send_signal(signal.SIGCONT)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, min(seconds, self.left)))

    async def leave(self, child: subprocess.Popen[bytes]) -> None:
        """Told to leave, it does."""
        child.terminate()
        code = await asyncio.to_thread(child.wait)
        if code not in (0, 128 + signal.SIGTERM):
            self.wrong.append(f"a supervising process that was told to leave ended with {code}")

    # --- what happens to runs

    async def end_runners(self) -> None:
        """Now and then a runner is ended with SIGKILL while its payload runs."""
        dice = random.Random(f"{self.seed} runners")
        while self.left > 0:
            await self.pause(dice.uniform(0.5, 3.0))
            running = [folder for folder in self.spool.glob("objects/*/runs/*") if is_running(folder)]
            pid = runner_of(dice.choice(sorted(running))) if running else None
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.counts["runners ended"] += 1

    async def look_for_runners(self) -> None:
        """All the time: whoever runs an object of the spool runs one whose gate was opened."""
        while True:
            for object, run in runners_in(self.spool):
                if not (Path(object) / "runs" / run / OPEN).exists():
                    self.wrong.append(f"there is a runner for run {run} of {object}, which was never opened")
            await asyncio.sleep(0.3)

    # --- persons

    async def attend_as_person(self, store: SqlStore, job: Job) -> None:
        """Submit it, and do with it what this job's person does."""
        await asyncio.sleep(job.submitted_after)
        client = Client(store, "person twin")
        await client.submit(job.key, job.spec, job.plan, scheduler="local")
        with contextlib.suppress(BadInput):  # it has an outcome already
            if "holder" in job.person:
                held = await client.hold(job.key, reason="not yet")
                if not any(call.kind is Kind.OPEN for call in held.calls):
                    self.tell(job, "held")
                await asyncio.sleep(job.after[0])
                if "canceller" not in job.person:
                    self.tell(job, "released")
                    await client.release(job.key)
        if "canceller" in job.person:
            await asyncio.sleep(job.after[1])
            self.tell(job, "cancelled")
            receipt = await client.cancel(job.key)
            while not receipt.clean:
                await asyncio.sleep(0.2)
                receipt = await client.cancel(job.key)
            if receipt.result is Result.CANCELLED:
                self.tell(job, "clean", alone=nothing_runs(self.folder / f"{job.key}.alone"))

    async def decide_what_waits(self, store: SqlStore) -> None:
        """Jobs that wait for a person's word get it."""
        client, said = Client(store, "person twin"), Counter[str]()
        jobs = {job.key: job for job in self.jobs}
        while True:
            for listed in await store.jobs(settled=False):
                record = listed.record
                if record is not None and record.wait is not None and record.wait.reason in FOR_A_PERSON:
                    with contextlib.suppress(BadInput, Conflict):
                        await self.decide(client, jobs[record.key], record, said)
            await asyncio.sleep(0.5)

    async def decide(self, client: Client, job: Job, record: Record, said: Counter[str]) -> None:
        assert record.wait is not None
        if record.wait.reason is not Reason.HELD_BY_RULE:
            self.wrong.append(f"{job.key} waits for a person: {record.wait.text}")
            await client.cancel(job.key)
        elif said[job.key] == SAID_AGAIN:
            await client.resolve(job.key, Result.FAILED, revision=record.revision)
        else:
            said[job.key] += 1
            self.tell(job, "let go on")
            await client.release(job.key, revision=record.revision)


def is_running(folder: Path) -> bool:
    return (folder / LAUNCHED).exists() and not (folder / END).exists()


def runner_of(folder: Path) -> int | None:
    """The pid of a run's runner, if it is that still."""
    with contextlib.suppress(OSError, ValueError):
        pid = int(json.loads((folder / LAUNCHED).read_text())["runner"])
        if str(folder.parents[1]) in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
            return pid
    return None


def runners_in(spool: Path) -> Iterator[tuple[str, str]]:
    """The object's folder and the run of each runner that is alive."""
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            told = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
            if len(told) > 3 and told[-3].startswith(f"{spool}/objects/"):
                yield told[-3], told[-2]


def nothing_runs(alone: Path) -> bool:
    """Whether no payload of a job is alive: each keeps this flock while it is."""
    if not alone.exists():
        return True
    with alone.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@contextlib.asynccontextmanager
async def everything_ended(spool: Path) -> AsyncIterator[None]:
    """Whatever the test came to, nothing of its spool outlives it."""
    try:
        yield
    finally:
        for pid in at_work_in(spool):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
