"""Whether dispatch can use a cluster: found out by doing, with one tiny job of its own.

One rule: it leaves nothing behind, whatever fails: the job is cancelled by its name, the files that it made are
removed, and where that cannot be known, it is said. The job runs nothing but `/bin/true`, for a minute at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets as chance
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta

from dispatch_core.adapters.contract import Finding, Job, Launch, Target
from dispatch_core.adapters.slurm import guard
from dispatch_core.adapters.slurm.cluster import SlurmCluster
from dispatch_core.adapters.slurm.configured import of_configuration
from dispatch_core.adapters.slurm.guard import Marked, Section
from dispatch_core.adapters.slurm.scheduler import SlurmScheduler, transport_to
from dispatch_core.adapters.slurm.transport import Lost, Transport
from dispatch_core.errors import DispatchError, SchedulerUnavailable
from dispatch_core.evidence import Sighting
from dispatch_core.names import object_name
from dispatch_core.plan import Cause, Spec
from dispatch_core.record import Answer, Reply, State

SECONDS = 30.0
"""For one script that asks nothing of Slurm."""
QUIET_SECONDS = 3.0
"""How long the job is watched not to start."""
PATIENCE_SECONDS = 60.0
"""How long it may take to start, and to end."""
SEEN_SECONDS = 5
"""How long what a node wrote may take to be seen from the host, in whole seconds."""
CLOCK_SECONDS = 60.0
"""How far apart two clocks may be."""

NEEDED = (
    *(
        "sbatch",
        "squeue",
        "scontrol",
        "scancel",
        "timeout",
        "awk",
        "sed",
        "grep",
        "stat",
        "find",
        "xargs",
        "head",
        "tail",
    ),
    *("readlink", "tr", "sort"),
)
FOLDERS = ("logs", "runs", "secrets", "progress", "starts", "cluster")


async def examine(cluster: SlurmCluster) -> AsyncIterator[Finding]:
    """What is found of a cluster, as it is found. Raises BadInput where no connection can be tried."""
    async with contextlib.aclosing(examine_over(cluster, transport_to(cluster))) as findings:
        async for finding in findings:
            yield finding


async def examine_over(cluster: SlurmCluster, transport: Transport) -> AsyncGenerator[Finding, None]:
    """The same over a transport that is there; it is closed in the end."""
    doctor = _Doctor(cluster, transport)
    try:
        async with contextlib.aclosing(doctor.findings()) as findings:
            async for finding in findings:
                yield finding
    finally:
        await doctor.adapter.close()


class _Doctor:
    """One examination."""

    def __init__(self, cluster: SlurmCluster, transport: Transport) -> None:
        self.cluster, self.transport = cluster, transport
        self.adapter = SlurmScheduler(cluster, transport)
        self.uid = chance.token_hex(8)
        self.name = object_name(self.uid, 1, 1)
        self._mine = Job(key="dispatch doctor", uid=self.uid)
        self.target: Target | None = None
        self._is_usable = False
        self._made: tuple[str, ...] = ()
        """What of the directory was not there before."""
        self._is_unsure = False
        """A call had no answer."""
        self._has_ended = False

    async def findings(self) -> AsyncGenerator[Finding, None]:
        try:
            async for finding in self._look():
                yield finding
            if not self._is_usable:
                return
            async for finding in self._job():
                yield finding
        except DispatchError as error:
            yield Finding(name="reach", ok=False, text=f"it does not answer: {error}")
        finally:
            left = await self._leave() if self._is_usable else None
        if left is not None:
            yield left

    async def _look(self) -> AsyncIterator[Finding]:
        """Everything that needs no job."""
        sections = await self._asked(_LOOK, SECONDS)
        yield Finding(name="reach", ok=True, text=f"{guard.line(sections[0].body)} answers")
        yield _clock(sections[0].at)
        missing = sections[1].body.split()
        if missing:
            where = "" if self.cluster.bin is not None else "; write the folder of Slurm's commands as bin"
            yield Finding(name="commands", ok=False, text=f"these are not found: {', '.join(missing)}{where}")
            return
        await self._seen()
        configuration = self.adapter.configuration
        assert configuration is not None  # noqa: S101 - a listing asks for it first
        yield Finding(name="queue", ok=True, text="squeue and scontrol answer")
        for finding in of_configuration(self.cluster, configuration, self.adapter.bounds):
            yield finding
        yield await self._accounting(configuration.accounting)
        sections = await self._asked(_DIRECTORY, SECONDS)
        there, wrote = sections[0].body.split(), sections[-1]
        self._made = tuple(name for name in (*FOLDERS, ".") if name not in there)
        self._is_usable = wrote.mark == "wrote 0"
        told = "can be written" if self._is_usable else "nothing can be submitted"
        yield Finding(name="directory", ok=self._is_usable, text=f"{guard.line(wrote.body)}: {told}")

    async def _accounting(self, configured: bool) -> Finding:
        if not configured:
            text = "none: an end that no listing shows before it is purged is lost, and its job waits for a person"
            return Finding(name="accounting", ok=None, text=text)
        seconds = self.adapter.command_seconds
        *_, asked = await self._asked(
            f"{guard.bounded(seconds)} sacct -n -X -P -j 1 -o JobID 2>&1\nsay told $?", seconds + 5
        )
        if asked.mark == "told 0":
            return Finding(
                name="accounting", ok=True, text="sacct answers: ends are known after the queue forgets them"
            )
        text = "it is set up, and sacct does not answer: until it does, nothing that left the queue counts as gone"
        return Finding(name="accounting", ok=False, text=text)

    # --- the job

    async def _job(self) -> AsyncIterator[Finding]:
        reply = await self._call(self.adapter.start(self._launch(), {}, await self._deadline()))
        if reply.answer is not Answer.DONE:
            text = f"{reply.text}; a job of the default account and partition was tried"
            yield Finding(name="submit", ok=False, text=text)
            return
        self.target = target = Target(id=reply.text, name=self.name, run=1)
        yield Finding(name="submit", ok=True, text="a job is submitted with its gate shut")
        await asyncio.sleep(QUIET_SECONDS)
        shown = await self._seen()
        if shown is None or shown.state is not State.GATED:
            text = f"a job that was submitted held is {_state(shown)}: dispatch is not safe here"
            yield Finding(name="gate", ok=False, text=text)
            return
        yield Finding(name="gate", ok=True, text="it keeps a job from starting")
        yield await self._hold(target)
        async for finding in self._runs(target):
            yield finding
        if self._has_ended:
            yield await self._requeue(target)

    def _launch(self) -> Launch:
        return Launch(
            key=self._mine.key,
            uid=self.uid,
            submission=1,
            attempt=1,
            name=self.name,
            spec=Spec(command=("/bin/true",), time_limit_seconds=60.0),
            may_requeue=True,
        )

    async def _hold(self, target: Target) -> Finding:
        """Set it, open the gate behind it, and see that it still keeps the job."""
        held = await self._call(self.adapter.hold(target, await self._deadline()))
        shown = await self._seen()
        if held.answer is not Answer.DONE or shown is None or not shown.hold:
            text = (
                f"a begin time is not kept ({held.text or _state(shown)}): a held job would start when its gate opens"
            )
            return Finding(name="hold", ok=False, text=text)
        await self._call(self.adapter.open(target, await self._deadline()))
        shown = await self._until(lambda row: row.state is not State.GATED, QUIET_SECONDS)
        if shown is None or shown.state is not State.HELD:
            return Finding(name="hold", ok=False, text=f"a held job whose gate was opened is {_state(shown)}")
        cleared = await self._call(self.adapter.release(target, await self._deadline()))
        shown = await self._seen()
        if cleared.answer is not Answer.DONE or shown is None or shown.hold:
            text = f"a begin time cannot be taken back ({cleared.text or _state(shown)}): a held job would stay held"
            return Finding(name="hold", ok=False, text=text)
        return Finding(name="hold", ok=True, text="it is set, read, survives the gate, and is taken back")

    async def _runs(self, target: Target) -> AsyncIterator[Finding]:
        await self._call(self.adapter.open(target, await self._deadline()))
        shown = await self._until(lambda row: row.state is State.ENDED, PATIENCE_SECONDS)
        if shown is None or shown.state is not State.ENDED:
            text = f"the job is {_state(shown)} after {PATIENCE_SECONDS:g} s; what follows a run was not tried"
            yield Finding(name="run", ok=None, text=text)
            return
        self._has_ended = True
        cause = shown.end.cause if shown.end is not None else None
        if cause is Cause.COMPLETED:
            yield Finding(name="run", ok=True, text=f"/bin/true ran on {', '.join(shown.nodes) or 'a node'}")
        else:
            said = shown.end.message if shown.end is not None else "it is not said how"
            yield Finding(name="run", ok=False, text=f"/bin/true ended as {cause} ({said})")
        yield await self._nodes(target)

    async def _nodes(self, target: Target) -> Finding:
        """Whether what a node wrote into the directory is there."""
        body = f"""for again in {"again " * SEEN_SECONDS}; do
    if [ -s "$directory/runs/{target.name}.1.out" ]; then break; fi
    sleep 1
done
stat -L -c %Y -- "$directory/runs/{target.name}.1.out"
say told $?"""
        sections = await self._asked(body, SECONDS)
        if sections[1].mark != "told 0":
            text = f"{self.cluster.directory} is another one there: no secret reaches a run, no log is found"
            return Finding(name="nodes", ok=False, text=f"what a node writes is not seen from here; {text}")
        apart = (sections[1].at - datetime.fromtimestamp(int(sections[0].body), UTC)).total_seconds()
        if abs(apart) > CLOCK_SECONDS + PATIENCE_SECONDS:
            text = f"the directory's clock is {abs(apart):.0f} s apart: rules on progress are wrong by that"
            return Finding(name="nodes", ok=False, text=text)
        return Finding(name="nodes", ok=True, text="what a node writes into the directory is seen from the host")

    async def _requeue(self, target: Target) -> Finding:
        reply = await self._call(self.adapter.requeue(target, await self._deadline()))
        if reply.answer is not Answer.DONE:
            return Finding(name="requeue", ok=False, text=f"{reply.text}; rules that requeue will resubmit")
        await asyncio.sleep(QUIET_SECONDS)
        shown = await self._seen()
        if shown is None or (shown.run, shown.state) != (2, State.GATED):
            text = f"a job that was requeued held is {_state(shown)}: use no rule that requeues here"
            return Finding(name="requeue", ok=False, text=text)
        return Finding(name="requeue", ok=True, text="requeuehold brings a job back with its gate shut")

    async def _leave(self) -> Finding | None:
        """Cancel the job, and remove what came of it; what cannot be done is told."""
        told = ""
        try:
            reply = await self.adapter.stop_job((self.name,), await self._deadline())
            if reply.answer is not Answer.DONE:
                told = reply.text or str(reply.answer)
            elif self.target is not None:
                shown = await self._until(lambda row: row.state is State.ENDED, PATIENCE_SECONDS)
                told = "" if shown is None or shown.state is State.ENDED else f"it is {_state(shown)}"
            await self._asked(_leave_body(self.name, self._made), SECONDS)
        except SchedulerUnavailable as error:
            told = str(error)
        if self.target is None and self._is_unsure and not told:
            told = "its submission was not answered, and may land late; its gate is shut"
        if not told:
            return None
        return Finding(name="left", ok=False, text=f"{told}; look for it: scancel --name={self.name}")

    # --- asking

    async def _call(self, call: Awaitable[Reply]) -> Reply:
        reply = await call
        self._is_unsure = self._is_unsure or reply.answer is Answer.UNKNOWN
        return reply

    async def _deadline(self) -> datetime:
        listing = await self.adapter.find(self._mine)
        return listing.ended + timedelta(seconds=self.adapter.bounds.window_seconds)

    async def _seen(self) -> Sighting | None:
        listing = await self.adapter.find(self._mine)
        return next((row for row in listing.objects if row.name == self.name), None)

    async def _until(self, holds: Callable[[Sighting], bool], seconds: float) -> Sighting | None:
        """The job once it is so, or as it is after so many seconds."""
        until = asyncio.get_running_loop().time() + seconds
        while True:
            shown = await self._seen()
            if shown is None or holds(shown) or asyncio.get_running_loop().time() > until:
                return shown
            await asyncio.sleep(0.2)

    async def _asked(self, body: str, seconds: float) -> list[Section]:
        marked = Marked(self.cluster, chance.token_hex(8))
        try:
            finished = await self.transport.run(marked.script(body), seconds)
        except Lost as error:
            raise SchedulerUnavailable(f"{self.cluster.name}: {error}") from error
        sections = marked.read(finished.out)
        if len(sections) < 2:
            told = guard.line(finished.err.decode(errors="replace"))
            raise SchedulerUnavailable(f"{self.cluster.name}: the host did not run a script: {told or finished.code}")
        return sections


def _clock(host: datetime) -> Finding:
    """How far the host's clock is from this one; every deadline is judged on the host's alone."""
    apart = abs((datetime.now(UTC) - host).total_seconds())
    text = f"the host's clock and this one are {apart:.0f} s apart"
    if apart > CLOCK_SECONDS:
        return Finding(name="clock", ok=False, text=f"{text}: only the times that are shown suffer")
    return Finding(name="clock", ok=True, text=text)


def _state(shown: Sighting | None) -> str:
    return "not listed" if shown is None else f"{shown.state}, run {shown.run}"


_LOOK = f"""printf '%s@%s' "$(id -un)" "$(uname -n)"
say who
for name in {" ".join(NEEDED)}; do command -v "$name" >/dev/null 2>&1 || echo "$name"; done
say commands"""

_DIRECTORY = f"""for name in {" ".join(FOLDERS)} .; do [ ! -e "$directory/$name" ] || echo "$name"; done
say there
told=$( (umask 077; mkdir -p "$directory" && : >"$directory/doctor.$$" && rm -f "$directory/doctor.$$") 2>&1); code=$?
say wrote $code
if [ $code = 0 ]; then printf '%s' "$directory"; else printf '%s' "$told"; fi
case $directory in *[%\\\\]*) say wrote 1; printf '%s' "$directory has a percent sign or a backslash" ;; esac"""


def _leave_body(name: str, made: tuple[str, ...]) -> str:
    """Removes the job's files, and of the folders those that were not there before and are empty."""
    lines = [f'cd "$directory" && rm -f runs/{name}.* logs/{name}.* secrets/{name} progress/{name}*']
    lines.append(f'rmdir "$directory/starts/{name}"')
    if "cluster" in made:
        lines.append('rm -f "$directory/cluster"')
    lines += [f'rmdir "$directory/{folder}"' for folder in made if folder not in ("cluster", ".")]
    lines += ['cd /; rmdir "$directory"'] if "." in made else []
    return "\n".join([f"{line} 2>/dev/null" for line in lines] + ["say left"])
