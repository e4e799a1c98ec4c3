"""The driver of a soak: jobs with random plans, random faults of a cluster, persons, and three supervising programs
that are ended and stopped at random. What meets what is the machine's doing; the seed draws the rest."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from dispatch_core.client import Client
from dispatch_core.errors import BadInput, Conflict
from dispatch_core.plan import Action, Cause, Delay, Plan, Rule, Spec, When
from dispatch_core.reasons import FOR_A_PERSON, Reason
from dispatch_core.record import Kind, Record, Result, State
from dispatch_core.stores.sql import SqlStore
from tests.slurm.cluster import Cluster, Daemon, Options
from tests.slurm.stage import PAYLOAD, broken_by, settings_for

ROOT = Path(__file__).parents[2]
PLACES = 3
"""Supervising programs at a time."""
OPTIONS = Options(nodes=4, cpus=4, message_timeout=2, credential_ttl=5, min_job_age=15)
THINKS_SECONDS = 15.0
"""A person who is asked looks at the cluster first: for longer than its nodes take to tell what they run."""
LOST_DELAY_SECONDS = 15.0
"""A plan's delay after a lost node: for longer than a node that comes back takes to end what it ran."""
CALM_SECONDS = 300.0
"""The longest that everything may take to settle when the disturbance is over."""
PERSONS = ("nobody", "nobody", "nobody", "canceller", "holder", "scancel", "requeue", "hold")


@dataclass
class Job:
    """One job, and the person who has to do with it."""

    key: str
    spec: Spec
    plan: Plan
    person: str
    submitted_after: float
    after: float
    """Seconds until the person does something."""
    asked: dict[int, float] = field(default_factory=dict)
    """When it was first seen to wait for a person, by revision."""
    released: int = 0


def draw_job(dice: random.Random, key: str, seconds: float, folder: Path) -> Job:
    behaviour = {
        "seconds": [dice.choice((0.0, 1.0, 3.0, dice.uniform(3.0, 20.0))) for _ in range(3)],
        "codes": dice.choice(([0], [0], [3, 0], [3, 3, 0], [-11, 0], [137, 0])),
    }
    again = dice.choice((Action.RESUBMIT, Action.REQUEUE))
    lost = (Cause.NODE_FAILURE, Cause.PREEMPTED)
    delay = Delay(seconds=LOST_DELAY_SECONDS)
    rules = [
        Rule(name="failed", when=When(cause=(Cause.EXIT, Cause.SIGNAL)), do=again, budget=dice.choice((1, 2))),
        Rule(name="lost", when=When(cause=lost), do=dice.choice((again, Action.RESUBMIT)), budget=3, delay=delay),
    ]
    command = (sys.executable, "-I", "-S", str(PAYLOAD), str(folder), json.dumps(behaviour))
    return Job(
        key=key,
        spec=Spec(command=command),
        plan=Plan(rules=tuple(rules[: dice.choice((0, 1, 2, 2, 2))])),
        person=dice.choice(PERSONS),
        submitted_after=dice.uniform(0.0, seconds * 0.8),
        after=dice.uniform(1.0, 30.0),
    )


class Soak:
    """One seed's life."""

    def __init__(self, seed: int, cluster: Cluster, folder: Path, store: SqlStore, jobs: int, seconds: float) -> None:
        self.cluster, self.folder, self.store, self.seconds = cluster, folder, store, seconds
        self.seed = seed
        self.jobs = [draw_job(random.Random(f"{seed} job {n}"), f"soak-{n:03}", seconds, folder) for n in range(jobs)]
        self.client = Client(store, "person ann")
        self.counts: Counter[str] = Counter()
        self.children: dict[int, subprocess.Popen[bytes]] = {}
        self.wrong: list[str] = []
        self.deaths: list[float] = []
        self.began = time.monotonic()

    @property
    def left(self) -> float:
        """Seconds until the disturbance is over."""
        return self.began + self.seconds - time.monotonic()

    def lines(self) -> list[dict[str, Any]]:
        place = self.folder / "lines"
        return [json.loads(line) for line in place.read_text().splitlines()] if place.exists() else []

    async def live(self) -> list[str]:
        """Everything; one sentence for each law that was broken."""
        deciding = asyncio.ensure_future(self.decide_what_waits())
        try:
            async with asyncio.TaskGroup() as group:
                for place in range(PLACES):
                    group.create_task(self.disturb(place))
                group.create_task(self.break_the_cluster())
                for job in self.jobs:
                    group.create_task(self.attend_as_person(job))
            await asyncio.to_thread(self.mend)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CALM_SECONDS):
                    while await self.store.jobs(settled=False):
                        await asyncio.sleep(0.5)
            await self.judge()
        finally:
            deciding.cancel()
            await asyncio.gather(deciding, return_exceptions=True)
            for child in self.children.values():
                child.kill()
                child.wait()
        return self.wrong

    async def judge(self) -> None:
        lines, rows = self.lines(), await asyncio.to_thread(self.cluster.jobs)
        names = {row.name: row for row in rows if row.live}
        for job in self.jobs:
            record = await self.store.read(job.key)
            mine = [line for line in lines if line["key"] == job.key]
            repeated = set(self.repeated_by_a_controller_that_died(mine, record))
            self.counts["runs repeated by a controller that died"] += len(repeated)
            told = [sentence for sentence in broken_by(mine, record) if sentence not in repeated]
            told += [] if record.settled else [f"it is not settled: {record.wait}"]
            told += [f"{names[name].id} is left: {names[name].state}" for name in record.names() if name in names]
            if told:
                history = await self.store.history(job.key)
                story = "\n".join(f"{c.revision} {c.at:%H:%M:%S} {c.actor}: {'; '.join(c.lines)}" for c in history)
                self.wrong += [f"{job.key}: {sentence}" for sentence in told] + [f"{mine}\n{story}"]
            self.counts[str(record.outcome.result) if record.outcome else "no outcome"] += 1
            self.counts["submissions"] += len(record.submissions)
            opened = {(c.object, c.run) for c in record.calls if c.kind is Kind.OPEN}
            began = {(line["object"], int(line["run"])) for line in mine}
            self.counts["reruns before the gate was shut"] += len(began - opened)
        self.counts["runs"] = sum(line["what"] == "start" for line in lines)

    def repeated_by_a_controller_that_died(self, lines: list[dict[str, Any]], record: Record) -> Iterator[str]:
        """What nobody can keep a controller from: killed before it has saved that a job was begun, it begins it again,
        or shows it held, so that it is opened again. Only where it died between each two, and never beside the run that
        was."""
        begun: dict[tuple[str, str], list[float]] = {}
        for line in lines:
            if line["what"] == "start" and line["alone"]:
                begun.setdefault((line["object"], line["run"]), []).append(line["at"])
        for run, times in begun.items():
            died = all(any(one < death < other for death in self.deaths) for one, other in pairwise(times))
            if len(times) > 1 and died and record.call(Kind.OPEN, run[0], int(run[1])) is not None:
                yield f"run {run} was launched {len(times)} times"

    def report(self) -> str:
        told = ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()))
        return f"soak seed {self.seed}, {self.seconds:g} s, {len(self.jobs)} jobs: {told}"

    # --- what supervises, and what happens to it

    async def start(self, place: int, dice: random.Random) -> subprocess.Popen[bytes]:
        self.counts["supervisors"] += 1
        told = self.folder / f"{self.counts['supervisors']}-{place}.log"
        kind = dice.choice(("leased", "free"))
        settings = msgspec.json.encode(replace(settings_for(self.cluster, self.folder), poll_seconds=1.0)).decode()
        variables = json.dumps(self.cluster.env | {"HOME": str(self.folder)})
        url = f"sqlite:///{self.folder}/jobs.db"
        command = [sys.executable, "-m", "tests.slurm.supervising", url, settings, variables, kind]
        child = self._begin(told, command)
        while child.poll() is None and not told.stat().st_size:
            await asyncio.sleep(0.05)
        self.children[place] = child
        return child

    def _begin(self, told: Path, command: list[str]) -> subprocess.Popen[bytes]:
        with told.open("wb") as log:
            return subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *command], stdout=log, stderr=log, cwd=ROOT)

    async def disturb(self, place: int) -> None:
        """One place: a program that lives, stalls and is ended, then another; the last one stays."""
        dice = random.Random(f"{self.seed} place {place}")
        child = await self.start(place, dice)
        while self.left > 0:
            await self.pause(dice.uniform(5.0, 40.0))
            if self.left > 0 and dice.random() < 0.5:
                child.send_signal(signal.SIGSTOP)
                self.counts["supervisors stopped"] += 1
                await self.pause(dice.choice((dice.uniform(0.1, 5.0), 60.0)))
                child.send_signal(signal.SIGCONT)
                continue
            if child.poll() is not None:
                self.wrong.append(f"a supervising program ended by itself, with {child.returncode}")
            child.kill()
            child.wait()
            self.counts["supervisors killed"] += 1
            await self.pause(dice.uniform(0.0, 3.0))
            child = await self.start(place, dice)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, min(seconds, self.left)))

    # --- what happens to the cluster, one thing after the other

    async def break_the_cluster(self) -> None:
        dice = random.Random(f"{self.seed} faults")
        faults = [self.silent, self.down, self.dies, self.power, self.deaf, self.urgent, self.strangers]
        while self.left > 0:
            await self.pause(dice.uniform(2.0, 8.0))
            fault = dice.choice(faults)
            self.counts[f"fault: {fault.__name__}"] += 1
            await fault(dice)

    async def silent(self, dice: random.Random) -> None:
        self.cluster.controller.stop()
        await asyncio.sleep(dice.choice((dice.uniform(0.5, 3.0), dice.uniform(3.0, 12.0))))
        self.cluster.controller.go_on()

    async def down(self, dice: random.Random) -> None:
        controller = self.cluster.controller
        controller.send(signal.SIGTERM)
        await self.wait_until(lambda: not controller.alive)
        await self.up_again(controller, dice.uniform(2.0, 20.0))

    async def dies(self, dice: random.Random) -> None:
        await asyncio.to_thread(self.cluster.controller.kill)
        self.deaths.append(time.time())
        await self.up_again(self.cluster.controller, dice.uniform(0.0, 5.0))

    async def up_again(self, daemon: Daemon, after: float) -> None:
        await asyncio.sleep(after)
        await self.wait_until(lambda: self.answers(daemon))

    def answers(self, daemon: Daemon) -> bool:
        """Whether the controller answers; one that has ended meanwhile is begun once more."""
        if not daemon.alive:
            self.counts["times the controller was begun"] += 1
            daemon.start()
        return self.cluster.command("scontrol", "ping").returncode == 0

    async def power(self, dice: random.Random) -> None:
        node = self.cluster.nodes[dice.choice(self.cluster.names)]
        await asyncio.to_thread(node.kill_all)
        await self.come_back(node.name, dice.uniform(1.0, 4.0))

    async def deaf(self, dice: random.Random) -> None:
        """A node whose slurmd dies; its steps live on until it is back."""
        node = self.cluster.nodes[dice.choice(self.cluster.names)]
        steps = await asyncio.to_thread(node.steps)
        await asyncio.to_thread(node.kill)
        await self.come_back(node.name, dice.uniform(0.5, 2.0))
        await self.wait_until(lambda: not set(steps) & set(node.steps()))

    async def come_back(self, name: str, after: float) -> None:
        await self.command("scontrol", "update", f"NodeName={name}", "State=down", "Reason=test")
        await asyncio.sleep(after)
        self.cluster.nodes[name].start()
        await self.wait_until(lambda: self.is_usable(name))

    def is_usable(self, name: str) -> bool:
        """Whether a node may be given jobs; one that Slurm has drained meanwhile, as for a job that it was given twice,
        is put to use again."""
        state = self.cluster.node_states().get(name, "")
        if state.startswith("drain"):
            self.cluster.command("scontrol", "update", f"NodeName={name}", "State=undrain")
            self.counts["nodes drained by Slurm"] += 1
        elif state.startswith("down") and "*" not in state:
            self.cluster.command("scontrol", "update", f"NodeName={name}", "State=resume")
        return state in {"idle", "mixed", "allocated", "completing"}

    async def urgent(self, dice: random.Random) -> None:
        node = dice.choice(self.cluster.names)
        options = ("-p", "urgent", "-c4", f"--nodelist={node}", "--output=/dev/null", "--wrap", "sleep 2")
        await self.command("sbatch", *options)

    async def strangers(self, dice: random.Random) -> None:
        for _ in range(dice.randrange(1, 4)):
            await self.command("sbatch", "--output=/dev/null", "--wrap", "sleep 3", user="other")

    async def wait_until(self, holds: Any) -> None:
        states = self.cluster.node_states
        try:
            await asyncio.to_thread(self.cluster.wait_until, holds, "a fault to be over", 90.0)
        except TimeoutError as error:
            self.wrong.append(f"the cluster did not recover: {await asyncio.to_thread(states)}; {str(error)[:3000]}")

    async def command(self, *argv: str, user: str | None = None) -> str:
        """As a person types it; it may be in vain."""
        return (await asyncio.to_thread(self.cluster.command, *argv, user=user)).stdout.strip()

    def mend(self) -> None:
        """Everything runs and answers; no job is ended."""
        for daemon in self.cluster.daemons():
            daemon.go_on()
            daemon.start()
        self.cluster.wait_until(lambda: self.cluster.command("scontrol", "ping").returncode == 0, "the controller")
        for name, state in self.cluster.node_states().items():
            if state.startswith(("down", "drain")):
                self.cluster.set_node(name, "resume" if state.startswith("down") else "undrain")
        self.cluster.wait_until_up()

    # --- persons

    async def attend_as_person(self, job: Job) -> None:
        """Submit it, and do with it what this job's person does."""
        await asyncio.sleep(job.submitted_after)
        await self.client.submit(job.key, job.spec, job.plan, scheduler="test")
        with contextlib.suppress(BadInput):  # it has an outcome already
            if job.person == "holder":
                await self.client.hold(job.key, reason="not yet")
            await self.pause(job.after)
            if job.person == "holder":
                await self.client.release(job.key)
            if job.person == "canceller":
                await self.client.cancel(job.key)
        if job.person in ("scancel", "requeue", "hold"):
            await self.by_hand(job, await self.store.read(job.key))

    async def by_hand(self, job: Job, record: Record) -> None:
        """What a person does on the cluster itself, to what runs."""
        running = [object for object in record.objects if object.state is State.RUNNING]
        if not running or self.left <= 0:
            return
        number, _, name = running[0].id.partition(":")
        shown = await self.command("squeue", "-h", "-j", number, "-O", "Name:200")
        if shown.strip() != name:
            return
        self.counts[f"by hand: {job.person}"] += 1
        if job.person == "scancel":
            await self.command("scancel", number)
        else:
            await self.command("scontrol", job.person, number)

    async def decide_what_waits(self) -> None:
        """Jobs that wait for a person's word get it, when the person has looked."""
        jobs = {job.key: job for job in self.jobs}
        while True:
            for listed in await self.store.jobs(settled=False):
                record = listed.record
                if record is not None and record.wait is not None and record.wait.reason in FOR_A_PERSON:
                    with contextlib.suppress(BadInput, Conflict):
                        await self.decide(jobs[record.key], record)
            await asyncio.sleep(1.0)

    async def decide(self, job: Job, record: Record) -> None:
        assert record.wait is not None
        since = job.asked.setdefault(record.revision, time.monotonic())
        if time.monotonic() - since < THINKS_SECONDS:
            return
        self.counts[f"asked: {record.wait.reason}"] += 1
        if record.wait.reason is Reason.FOREIGN:
            assert record.wait.object is not None
            await self.client.dispose(job.key, record.wait.object, revision=record.revision)
        elif record.wait.reason is Reason.GONE:
            await self.client.release(job.key, revision=record.revision)
        elif job.released >= 2:
            await self.client.resolve(job.key, Result.FAILED, revision=record.revision)
        else:
            job.released += 1
            await self.client.release(job.key, revision=record.revision)


def seconds_asked(otherwise: float) -> float:
    """How long a soak is: what the environment says, else its own."""
    return float(os.environ.get("DISPATCH_SOAK_SECONDS", otherwise))
