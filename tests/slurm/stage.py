"""A stage for scenes: real supervisors, clients and a store beside a real cluster, and the laws that every scene keeps.

The laws are judged by the lines that the jobs themselves wrote: never two runs of one job at once, no run twice, no run
whose Open no record holds, nothing left in the queue, the record settled. Beside them, `explain` is asked with every
listing that a pass decides on, and must have said what that pass then committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dispatch_core.adapters.contract import Adapter, Log, Piece
from dispatch_core.adapters.contract import Job as Asked
from dispatch_core.adapters.slurm.cluster import SlurmCluster
from dispatch_core.adapters.slurm.scheduler import SlurmScheduler
from dispatch_core.adapters.slurm.transport import LocalTransport
from dispatch_core.client import Client, Explanation, explain
from dispatch_core.evidence import Bounds, Capabilities, Listing
from dispatch_core.plan import Cause, Plan, Spec
from dispatch_core.reasons import Reason
from dispatch_core.record import Answer, Kind, Record, Result, run_key
from dispatch_core.stores.migrations import upgrade
from dispatch_core.stores.sql import SqlStore, open_store
from dispatch_core.story import story
from dispatch_core.supervisor import Supervisor
from tests.slurm.cluster import Cluster
from tests.slurm.cluster import Job as Row

PAYLOAD = Path(__file__).with_name("payload.py")
PATIENCE_SECONDS = 60.0

WRAPPER = """#!/bin/sh
here=${{0%/bin/*}}
verb={program}
[ {program} = scontrol ] && verb=$1
for last; do :; done
for name in "$verb" "$verb-${{last##*/}}"; do
    if mv "$here/catch/$name" "$here/caught/$name" 2>/dev/null; then
        while ! [ -e "$here/go/$name" ]; do sleep 0.05; done
    fi
done
exec /usr/bin/{program} "$@"
"""
"""A command that can be caught right before it speaks to the controller, after all that its script looks at."""


class Short(SlurmScheduler):
    """The adapter as it is, with short times; it tells whoever asks what a listing was for."""

    def __init__(self, settings: SlurmCluster, transport: LocalTransport) -> None:
        super().__init__(settings, transport)
        self.shown: Callable[[Asked, Listing], Any] | None = None
        self.window_seconds = 4.0

    @property
    def bounds(self) -> Bounds:
        return replace(super().bounds, window_seconds=self.window_seconds, repeat_seconds=1.0, resync_seconds=5.0)

    async def find(self, job: Asked) -> Listing:
        listing = await super().find(job)
        if self.shown is not None:
            await self.shown(job, listing)
        return listing


class Shown:
    """As much of an adapter as `explain` asks: one listing, whoever asks."""

    def __init__(self, listing: Listing, bounds: Bounds, capabilities: Capabilities) -> None:
        self.listing, self.bounds, self.capabilities = listing, bounds, capabilities

    async def find(self, job: Asked) -> Listing:
        return self.listing

    async def read_log(self, *_: object) -> Piece:
        return Piece(log=Log.NOT_BEGUN)


def settings_for(cluster: Cluster, folder: Path) -> SlurmCluster:
    """A cluster of the tests, with short times."""
    return SlurmCluster(
        name="test",
        directory=str(folder / "home"),
        slurm_conf=str(cluster.conf),
        poll_seconds=0.4,
        absence_seconds=4.0,
        message_timeout_seconds=cluster.options.message_timeout,
        credential_seconds=cluster.options.credential_ttl,
    )


class Actor:
    """One job in a scene."""

    def __init__(self, stage: Stage, record: Record) -> None:
        self.stage, self.key, self.uid = stage, record.key, record.uid
        self.began = time.monotonic()
        self.settled_after: float | None = None
        self.told: list[Explanation] = []
        """What was explained with each listing that a pass decided on."""
        self.work: asyncio.Future[Record] | None = None

    # --- who supervises it

    def attend(self) -> None:
        self.work = asyncio.ensure_future(self.stage.supervisor(self.key).attend(self.key, self.uid))

    async def leave(self) -> None:
        """Nobody supervises it any more; its call in flight is drained."""
        if self.work is not None:
            self.work.cancel()
            await asyncio.gather(self.work, return_exceptions=True)
            self.work = None

    # --- what is so

    async def record(self) -> Record:
        return await self.stage.store.read(self.key, self.uid)

    async def until(self, holds: Callable[[Record], object], what: str, seconds: float = PATIENCE_SECONDS) -> Record:
        until = time.monotonic() + seconds
        while not holds(record := await self.record()):
            if self.work is not None and self.work.done():
                self.work.result()
            if time.monotonic() > until:
                raise AssertionError(f"{self.key}: waited {seconds:g} s for {what}\n{await self.stage.history(self)}")
            await asyncio.sleep(0.1)
        return record

    async def explained(self, reason: Reason, seconds: float = PATIENCE_SECONDS) -> None:
        """Until `explain` gives this reason for what the next pass does, or does not."""
        await self.until(lambda _: reason in self.reasons(), f"explain to say {reason}", seconds)

    def reasons(self) -> set[Reason]:
        return {note.reason for told in self.told for note in told.decision.notes}

    async def runs(self, count: int, seconds: float = PATIENCE_SECONDS) -> None:
        """Until so many runs have begun."""
        await self.until(lambda _: len(self.starts()) >= count, f"run {count} to begin", seconds)

    async def settled(self, seconds: float = 90.0) -> Record:
        record = await self.until(lambda record: record.settled, "it to settle", seconds)
        self.settled_after = time.monotonic() - self.began
        return record

    def lines(self) -> list[dict[str, Any]]:
        return [line for line in self.stage.lines() if line["key"] == self.key]

    def starts(self) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["what"] == "start"]

    async def number(self) -> str:
        """The Slurm job of its newest canonical object."""
        record = await self.until(lambda r: r.last is not None and r.last.canonical, "an object to be chosen")
        assert record.last is not None
        assert record.last.canonical is not None
        return record.last.canonical.partition(":")[0]

    async def row(self) -> Row:
        """It, as the queue shows it."""
        return await asyncio.to_thread(self.stage.cluster.job, await self.number())

    def go(self) -> None:
        (self.stage.folder / f"go-{self.key}").touch()

    def as_ours(self) -> str:
        return f"dispatch-{self.uid}-"


class Stage:
    """One cluster, one store, one connection, and the jobs of one scene or several."""

    def __init__(self, cluster: Cluster, folder: Path, store: SqlStore) -> None:
        self.cluster, self.folder, self.store = cluster, folder, store
        self.settings = replace(settings_for(cluster, folder), bin=str(folder / "bin"))
        self.adapter = Short(self.settings, LocalTransport(cluster.env | {"HOME": str(folder)}))
        self.adapter.shown = self.explain
        self.client = Client(store, "person ann")
        self.actors: dict[str, Actor] = {}

    def prepare(self) -> None:
        for name in ("bin", "catch", "caught", "go"):
            (self.folder / name).mkdir()
        for program in ("sbatch", "scontrol", "scancel"):
            place = self.folder / "bin" / program
            place.write_text(WRAPPER.format(program=program))
            place.chmod(0o755)

    def supervisor(self, key: str) -> Supervisor:
        made = Supervisor(self.store, self.adapter)
        made.record_seconds = 0.5
        return made

    async def play(
        self,
        key: str,
        *,
        plan: Plan | None = None,
        on: str = "",
        spec: Spec | None = None,
        attended: bool = True,
        waits: bool = False,
        **behaviour: list[float],
    ) -> Actor:
        """Submit a job. `on`: the node that it must run on; else any that no scene breaks. `waits`: its first run does,
        for `go`."""
        told = json.dumps(behaviour | ({"waits": [1]} if waits else {}))
        command = (sys.executable, "-I", "-S", str(PAYLOAD), str(self.folder), told)
        pinned = {"sbatch": (f"--nodelist={on}",)} if on else {}
        spec = spec or Spec(command=())
        spec = replace(spec, command=command, options=spec.options | pinned)
        if not on:
            spec = replace(spec, exclude=self.broken)
        record = await self.client.submit(key, spec, plan or Plan(), scheduler="test", adapter=self.adapter)
        actor = self.actors[record.uid] = Actor(self, record)
        if attended:
            actor.attend()
        return actor

    broken: tuple[str, ...] = ()
    """Nodes that are for the scenes which ask for them."""

    # --- calls that are caught on their way

    def catch(self, *verbs: str) -> None:
        """The next command of each of these is caught: `sbatch`, `scancel`, or what `scontrol` is told; with `-NUMBER`,
        that of one job."""
        for verb in verbs:
            (self.folder / "catch" / verb).touch()

    async def caught(self, *verbs: str) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not all((self.folder / "caught" / verb).exists() for verb in verbs):
                await asyncio.sleep(0.02)

    def let_go(self, *verbs: str) -> None:
        for verb in verbs:
            (self.folder / "go" / verb).touch()

    def catch_no_more(self) -> None:
        for folder in ("catch", "caught", "go"):
            for place in (self.folder / folder).iterdir():
                place.unlink()

    # --- what is so

    def lines(self) -> list[dict[str, Any]]:
        place = self.folder / "lines"
        return [json.loads(line) for line in place.read_text().splitlines()] if place.exists() else []

    async def command(self, *argv: str, user: str | None = None, check: bool = True) -> str:
        """As a person types it."""
        done = await asyncio.to_thread(self.cluster.command, *argv, user=user, check=check)
        return done.stdout.strip()

    async def queue(self) -> dict[str, Row]:
        return {row.id: row for row in await asyncio.to_thread(self.cluster.jobs)}

    async def wait_until(self, holds: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS) -> None:
        await asyncio.to_thread(self.cluster.wait_until, holds, what, seconds)

    async def explain(self, job: Asked, listing: Listing) -> None:
        """What `explain` says with the very listing that a pass is about to decide on."""
        actor = self.actors.get(job.uid)
        if actor is not None:
            shown: Adapter = Shown(listing, self.adapter.bounds, self.adapter.capabilities)  # type: ignore[assignment]
            actor.told.append(await explain(self.store, shown, job.key, job.uid))

    async def history(self, actor: Actor) -> str:
        told = [f"{actor.key}: {actor.starts()}"]
        for change in await self.store.history(actor.key, actor.uid):
            told += [f"{change.revision:>4} {change.at:%H:%M:%S.%f} {change.actor}: {'; '.join(change.lines)}"]
        told.append(f"notes: {actor.told[-1].decision.notes if actor.told else ()}")
        return "\n".join(told)

    # --- the laws

    async def keeps_the_laws(
        self, actor: Actor, result: Result, cause: Cause | None = None, *, runs: int, submissions: int, units: int = 0
    ) -> None:
        """Wait until it is settled, and judge it."""
        record = await actor.settled()
        wrong = [*broken_by(actor.lines(), record), *await self._unexplained(actor)]
        told = record.outcome and (record.outcome.result, record.outcome.cause)
        wrong += [f"it has {told}, and should have {(result, cause)}"] if told != (result, cause) else []
        counted = (len(actor.starts()), len(record.submissions), len(record.budget))
        if counted != (runs, submissions, units):
            wrong.append(f"{counted} runs, submissions, units; there should be {(runs, submissions, units)}")
        left = [row for row in (await self.queue()).values() if row.live and row.name.startswith(actor.as_ours())]
        wrong += [f"{row.id} is left: {row.state} {row.reason}" for row in left]
        assert not wrong, "\n".join([*wrong, await self.history(actor)])
        await actor.leave()

    async def _unexplained(self, actor: Actor) -> list[str]:
        """Commits of a pass that `explain` had not foretold; those that carry replies, or tell that there is no
        listing, hold more than it can know, and a call that is repeated may have come due since."""
        wrong = []
        for change in await self.store.history(actor.key, actor.uid):
            known = [told for told in actor.told if told.record.revision == change.revision - 1]
            unforeseeable = any(" replied " in line or "does not answer" in line for line in change.lines)
            if not change.actor.startswith("supervisor") or unforeseeable:
                continue
            told = [story(e.record, e.decision.record) for e in known if e.decision.record is not None]
            if _first_calls(change.lines) not in map(_first_calls, [(), *told]):
                wrong.append(f"revision {change.revision} has {change.lines}, and explain had said {told}")
        return wrong

    async def report(self, actor: Actor) -> str:
        """Its row of the table."""
        record, commits = await actor.record(), len(await self.store.history(actor.key, actor.uid))
        outcome = record.outcome
        told = f"{outcome.result}{f' ({outcome.cause})' if outcome.cause else ''}" if outcome else "none"
        seconds = f"{actor.settled_after:.0f}" if actor.settled_after is not None else "-"
        return ROW.format(actor.key, len(actor.starts()), len(record.submissions), commits, seconds, told)


def _first_calls(lines: tuple[str, ...]) -> tuple[str, ...]:
    """What a commit tells, but for calls that it repeats."""
    return tuple(line for line in lines if re.search(r", time \d+$", line) is None)


ROW = "{:<44} {:>4} {:>11} {:>7} {:>7}  {}"
HEAD = ROW.format("scene", "runs", "submissions", "commits", "seconds", "outcome")


def broken_by(lines: list[dict[str, Any]], record: Record) -> Iterator[str]:
    """What a job's lines show to be wrong, whatever the record says; then what ran against what it authorized."""
    under_way: tuple[str, str] | None = None
    for line in lines:
        run = (line["object"], line["run"])
        if line["what"] == "start":
            if not line["alone"]:
                yield f"run {run} began beside another one"
            under_way = run
            yield from _unauthorized(record, line)
        elif under_way != run:
            yield f"run {run} ended, and {under_way} had begun since"
    begun = [(line["object"], line["run"]) for line in lines if line["what"] == "start"]
    for run, times in Counter(begun).items():
        if times > 1:
            yield f"run {run} was launched {times} times"
    ends = [line["code"] for line in lines if line["what"] == "end"]
    if record.outcome is not None and record.outcome.result is Result.SUCCEEDED and ends[-1:] != [0]:
        yield f"it has succeeded, and its runs ended {ends}"


def _unauthorized(record: Record, line: dict[str, Any]) -> Iterator[str]:
    number, run = int(line["submission"]), (line["object"], int(line["run"]))
    if number > len(record.submissions) or record.submissions[number - 1].canonical != line["object"]:
        yield f"run {run} is not of the object that the record chose"
    if record.call(Kind.OPEN, *run) is None and not _came_back_open(record, *run):
        yield f"run {run} began, and no Open of it was ever committed"


def _came_back_open(record: Record, object: str, run: int) -> bool:
    """Whether the scheduler reran it before its gate could be shut behind it: seen, judged and counted, no more."""
    shut = record.call(Kind.SHUT, object, run - 1)
    could = shut is not None and shut.reply is not None and shut.reply.answer is Answer.DONE
    judged = record.spent(run_key(object, run - 1)) is not None or record.outcome is not None
    return run > 1 and record.plan.requeues and not could and judged


@contextlib.asynccontextmanager
async def stage_on(cluster: Cluster) -> AsyncIterator[Stage]:
    """A stage; after it nobody supervises anything, and its jobs are the cluster's to end."""
    folder = Path(tempfile.mkdtemp(prefix="stage-", dir=cluster.work))
    await asyncio.to_thread(folder.chmod, 0o777)
    url = f"sqlite:///{folder}/jobs.db"
    await upgrade(url)
    store = open_store(url)
    stage = Stage(cluster, folder, store)
    stage.prepare()
    try:
        yield stage
    finally:
        for actor in stage.actors.values():
            await actor.leave()
        await stage.adapter.close()
        await store.close()
