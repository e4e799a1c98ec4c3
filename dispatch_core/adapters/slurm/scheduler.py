"""Slurm as an adapter: what the supervisor calls.

One rule: one listing of the whole queue serves every job, and nothing is remembered between calls that the cluster
does not hold, but what makes asking cheaper. A call that broke on the way is `unknown`. A listing counts as complete
when the controller answered; an object that it does not show counts as missing only where accounting, if the cluster
keeps any, was asked and has no live row of its id and name.
"""

from __future__ import annotations

import asyncio
import secrets as chance
import shlex
import time
from collections.abc import Mapping
from datetime import datetime, timedelta

import msgspec

from dispatch_core.adapters.contract import Adapter, Job, Launch, Piece, Target
from dispatch_core.adapters.shared import Listings, Snapshot, closed, pause_of
from dispatch_core.adapters.slurm import cleaning, guard, output, reading, script
from dispatch_core.adapters.slurm import progress as watching
from dispatch_core.adapters.slurm.accounts import ACCOUNTS_FIELDS, Account, Accounts, accounts
from dispatch_core.adapters.slurm.cluster import SlurmCluster
from dispatch_core.adapters.slurm.guard import Marked, Object, bounded, object_of
from dispatch_core.adapters.slurm.reading import Configuration
from dispatch_core.adapters.slurm.room import Room
from dispatch_core.adapters.slurm.transport import Finished, LocalTransport, Lost, Transport
from dispatch_core.errors import SchedulerUnavailable
from dispatch_core.evidence import Bounds, Capabilities, Listing, Sighting
from dispatch_core.names import read_name
from dispatch_core.plan import End, Spec
from dispatch_core.record import Answer, Reply, State

WINDOW_SECONDS = 20.0
"""From a listing's end to the deadline of what was decided on it: a commit, a queue of calls, and the way there."""
CONFIGURATION_SECONDS = 600.0
"""How often the cluster is asked how it is set up."""
RESYNC_SECONDS = 60.0
LOG_SECONDS = 60.0
LOOKING_SECONDS = 20.0
"""How long a listing may take to look at files."""
CLEAN_SECONDS = 3600.0
"""How often what is old is removed, at most."""
CLEANING_SECONDS = 90.0
KEPT_ENDS = 20_000
CALLS_AT_ONCE = 8


def open_slurm(cluster: SlurmCluster) -> Adapter:
    """A connection to a cluster; nothing is sent before it is used. Raises BadInput where asyncssh is missing."""
    return SlurmScheduler(cluster, transport_to(cluster))


def transport_to(cluster: SlurmCluster) -> Transport:
    """The way to a cluster's host. Raises BadInput where asyncssh is missing."""
    if cluster.ssh is None:
        return LocalTransport()
    from dispatch_core.adapters.slurm.ssh import SshTransport  # asyncssh is an extra

    transport: Transport = SshTransport(cluster.ssh)
    return transport


class SlurmScheduler:
    """One Slurm cluster, for all jobs of one event loop."""

    capabilities = Capabilities(requeues=True, shuts=True, starts_once=True)

    def __init__(self, cluster: SlurmCluster, transport: Transport) -> None:
        self.cluster = cluster
        self.configuration: Configuration | None = None
        """How the cluster is set up; None until it was asked."""
        self.commands = 0
        """Scripts sent to the host so far."""
        self._transport = transport
        self._configured: datetime | None = None
        self.listing_seconds = 0.0
        """Seconds that the latest listing took."""
        self._listings = Listings(self._look, lambda: pause_of(cluster.poll_seconds, self.listing_seconds))
        self._accounts = Accounts(self._ask_accounts, cluster.poll_seconds)
        self._ends: dict[tuple[str, int], End] = {}
        self._cleaned: float | None = None
        self._cleans = False
        """The next listing removes what is old."""
        self._silent: frozenset[str] = frozenset()
        """Nodes that the latest listing showed silent."""
        self._alive = 0
        """Objects of ours that the latest listing showed alive."""
        self._room = Room(cluster.submits_per_second, cluster.live_jobs, time.monotonic)
        self._calls = asyncio.Semaphore(CALLS_AT_ONCE)
        self._closed = False

    @property
    def bounds(self) -> Bounds:
        """What a call on this cluster takes at most.

        Slurm's commands give up after MessageTimeout, and may begin again once or twice; each is ended after two of
        them and 5 s, counted from the host's look at the deadline. What was sent by then may wait in the socket of a
        controller that is stopped, and is carried out when it goes on: for as long as the message's munge credential
        is good, which is AuthInfo's `ttl`, or munge's 300 s. After that the controller refuses it ("Expired
        credential", seen on 22.05). What no bound covers is a controller that stops between checking the credential
        and acting, and a host that stalls between the script's look at clock, identity and run and its command.
        """
        return Bounds(
            call_seconds=self.command_seconds + 2.0,
            landing_seconds=self._told("credential", self.cluster.credential_seconds),
            window_seconds=WINDOW_SECONDS,
            absence_seconds=self.cluster.absence_seconds,
            repeat_seconds=10.0,
            resync_seconds=RESYNC_SECONDS,
        )

    @property
    def command_seconds(self) -> float:
        """How long one of Slurm's commands may take."""
        return 2.0 * self._told("message_timeout", self.cluster.message_timeout_seconds) + 5.0

    def _told(self, name: str, otherwise: float) -> float:
        told = None if self.configuration is None else getattr(self.configuration, name)
        return otherwise if told is None else float(told)

    @property
    def listings(self) -> int:
        """Listings of the queue so far."""
        return self._listings.count

    def problems(self, spec: Spec) -> list[script.Problem]:
        """What Slurm cannot launch of a spec; what this cluster would refuse is only known once it is asked."""
        return script.problems(spec)

    # --- listings

    async def find(self, job: Job) -> Listing:
        listing = await self._listings.find(job)
        if self.configuration is not None and self.configuration.accounting:
            listing = await self._with_accounts(job, listing)
        return self._with_room(job, listing)

    async def everything(self) -> Listing:
        now = asyncio.get_running_loop().time()
        if self._cleaned is None or now - self._cleaned > CLEAN_SECONDS:
            self._cleaned, self._cleans = now, True
        return await self._listings.everything()

    async def watch(self, job: Job, seconds: float) -> None:
        await self._listings.watch(job, seconds)

    def _with_room(self, job: Job, listing: Listing) -> Listing:
        """The listing with how long the job has to wait for room, if it has nothing in the queue and may launch."""
        if not job.may_launch or any(row.state is not State.ENDED for row in listing.objects):
            self._room.listed(job.uid)
            return listing
        seconds = self._room.seconds(job.uid, self._alive, self.bounds.window_seconds + self.bounds.call_seconds)
        return msgspec.structs.replace(listing, full_seconds=seconds) if seconds > 0 else listing

    async def _with_accounts(self, job: Job, listing: Listing) -> Listing:
        """The listing with what accounting knows: of objects that left the queue, and of earlier runs."""
        shown = {sighting.id: sighting for sighting in listing.objects}
        left = [found for id in job.known if id not in shown and (found := object_of(id)) is not None]
        rerun = [found for id, row in shown.items() if row.run > 1 and (found := object_of(id)) is not None]
        for row in listing.objects:
            self._accounts.listed(_object(row))
        if not left and not rerun:
            return listing
        try:
            accounts = await self._accounts.of([*left, *rerun])
        except SchedulerUnavailable:
            return msgspec.structs.replace(listing, complete=listing.complete and not left)
        objects = [self._with_earlier(row, accounts.get(_object(row))) for row in listing.objects]
        complete = listing.complete
        for object in left:
            account = accounts.get(object)
            ended = None if account is None else account.sighting(object, self._silent)
            objects += [] if ended is None else [ended]
            complete = complete and not (account is not None and account.alive)
        return msgspec.structs.replace(listing, objects=tuple(objects), complete=complete)

    async def _look(self) -> Snapshot:
        """One listing of the queue. Raises SchedulerUnavailable."""
        asks, cleans = self._configured is None, self._cleans and self.configuration is not None
        seconds = self.command_seconds * (3 if asks else 2) + LOOKING_SECONDS + (CLEANING_SECONDS if cleans else 0.0)
        asked = time.monotonic()
        try:
            sections = await self._asked(self._listing_body(asks, cleans), seconds)
        finally:
            self.listing_seconds = time.monotonic() - asked
        began, listed = sections[0], sections[1]
        self._answered("squeue", listed.mark == "listed 0", began.body)
        nodes, watched = sections[2], sections[3]
        self._answered("sinfo", nodes.mark == "nodes 0", listed.body)
        self._silent = reading.silent_nodes(listed.body)
        if cleans:
            self._cleans, self.listing_seconds = False, (watched.at - began.at).total_seconds()
        if asks:
            self._answered("scontrol", sections[5].mark == "configured 0", sections[4].body)
            self.configuration, self._configured = reading.configuration(sections[4].body), listed.at
        if self._configured is not None and (listed.at - self._configured).total_seconds() > CONFIGURATION_SECONDS:
            self._configured = None
        progress = watching.read(nodes.body)
        rows = [(row, reading.sighting(row, self._silent)) for row in reading.queue(began.body)]
        sightings = [_with_progress(shown, row, progress, listed.at) for row, shown in rows]
        self._note(sightings)
        self._alive = sum(row.state is not State.ENDED and read_name(row.name) is not None for row in sightings)
        return Snapshot(began.at, listed.at, sightings)

    def _listing_body(self, asks: bool, cleans: bool) -> str:
        """The queue, its silent nodes, what its runs' progress is, and now and then more."""
        within = bounded(self.command_seconds)
        body = [
            f"shown=$(TZ=UTC0 {within} squeue -h -a -t all -O {shlex.quote(reading.QUEUE_FORMAT)} 2>&1); code=$?",
            "printf '%s\\n' \"$shown\"\nsay listed $code\n[ $code = 0 ] || return",
            f"{within} sinfo -h -a -N -o '%N|%T' -t down,fail,no_respond,unknown 2>&1\nsay nodes $?",
            watching.body(self.listings),
            "say watched",
        ]
        if cleans and self.configuration is not None:
            body.append(cleaning.body(self.cluster, self.configuration.cluster))
        if asks:
            body.append(f"say asks\n{within} scontrol show config 2>&1\nsay configured $?")
        return "\n".join(body)

    def _answered(self, command: str, well: bool, said: str) -> None:
        if not well:
            told = guard.line(said) or "no answer in time"
            raise SchedulerUnavailable(f"{command} on {self.cluster.name}: {told}")

    def _note(self, sightings: list[Sighting]) -> None:
        """Remember the ends that the queue shows: of a run that was requeued, accounting tells less."""
        for row in sightings:
            if row.end is not None and row.state is State.ENDED:
                self._ends[row.id, row.run] = row.end
        while len(self._ends) > KEPT_ENDS:
            del self._ends[next(iter(self._ends))]

    def _with_earlier(self, row: Sighting, account: Account | None) -> Sighting:
        """A sighting with the ends of its earlier runs, as far as they are known here."""
        ends = dict(account.earlier(row.run, self._silent)) if account is not None else {}
        ends |= {run: end for run in range(1, row.run) if (end := self._ends.get((row.id, run))) is not None}
        return msgspec.structs.replace(row, earlier_ends=tuple(sorted(ends.items())))

    async def _ask_accounts(self, numbers: list[str]) -> Mapping[Object, Account]:
        fields = ",".join(f"{field}%-1024" if field == "JobName" else field for field in ACCOUNTS_FIELDS)
        command = (
            f"sacct -D -n -P -X --delimiter={shlex.quote(reading.GAP)} -S 1970-01-01 -o {fields} -j {','.join(numbers)}"
        )
        body = f"{bounded(self.command_seconds)} {command} 2>&1\nsay told $?"
        sections = await self._asked(body, self.command_seconds + 5.0)
        if sections[1].mark != "told 0":
            raise SchedulerUnavailable(f"sacct on {self.cluster.name}: {guard.line(sections[0].body)}")
        return accounts(sections[0].body)

    async def _asked(self, body: str, seconds: float) -> list[guard.Section]:
        """The marks of a script that changes nothing: its beginning, and more. Raises SchedulerUnavailable."""
        marked = Marked(self.cluster, chance.token_hex(8))
        try:
            finished = await self._send(marked.script(body), seconds)
        except Lost as error:
            raise SchedulerUnavailable(f"{self.cluster.name}: {error}") from error
        sections = marked.read(finished.out)
        if len(sections) < 2:
            told = guard.line(finished.err.decode(errors="replace"))
            raise SchedulerUnavailable(f"{self.cluster.name}: the host did not run the script: {told or finished.code}")
        return sections

    async def _send(self, text: str, seconds: float) -> Finished:
        if self._closed:
            raise closed()
        self.commands += 1
        return await self._transport.run(text, seconds)

    # --- calls

    async def start(self, launch: Launch, secrets: Mapping[str, str], deadline: datetime) -> Reply:
        cluster = "" if self.configuration is None else self.configuration.cluster
        reply = await self._call(script.start_body(launch, secrets, deadline, self.command_seconds, cluster))
        if reply.answer is not Answer.DONE:
            return reply
        number = reply.text.rpartition(" ")[2].partition(";")[0]
        if not number.isdecimal():
            return Reply(answer=Answer.UNKNOWN, text=f"sbatch answered {reply.text!r}, which is no job number")
        return Reply(answer=Answer.DONE, text=Object(number, launch.name).id)

    async def open(self, target: Target, deadline: datetime) -> Reply:
        return await self._on(target, deadline, guard.OPEN)

    async def shut(self, target: Target, deadline: datetime) -> Reply:
        return await self._on(target, deadline, guard.SHUT)

    async def stop(self, target: Target, deadline: datetime) -> Reply:
        return await self._on(target, deadline, guard.STOP)

    async def hold(self, target: Target, deadline: datetime) -> Reply:
        return await self._on(target, deadline, guard.HOLD)

    async def release(self, target: Target, deadline: datetime) -> Reply:
        return await self._on(target, deadline, guard.RELEASE)

    async def requeue(self, target: Target, deadline: datetime) -> Reply:
        return await self._on(target, deadline, guard.REQUEUE)

    async def stop_job(self, names: tuple[str, ...], deadline: datetime) -> Reply:
        if not names:
            return Reply(answer=Answer.DONE)
        reply = await self._call(guard.of_job(names, deadline, self.command_seconds))
        if reply.answer is Answer.REFUSED:  # of one job among several: the others may have been stopped
            return Reply(answer=Answer.UNKNOWN, text=reply.text)
        return reply

    async def _on(self, target: Target, deadline: datetime, act: str) -> Reply:
        object = object_of(target.id)
        if object is None or object.name != target.name:
            return Reply(answer=Answer.REFUSED, text=f"{target.id!r} is not the id of {target.name}; nothing was done")
        return await self._call(guard.of_object(target, object, deadline, self.command_seconds, act))

    async def _call(self, body: str) -> Reply:
        marked = Marked(self.cluster, chance.token_hex(8))
        try:
            async with self._calls:
                finished = await self._send(marked.script(body), 2 * self.command_seconds + WINDOW_SECONDS)
        except Lost as error:
            return Reply(answer=Answer.UNKNOWN, text=f"it may have been done: {error}")
        return guard.reply_of(marked.read(finished.out), finished.err)

    async def read_log(self, target: Target, stream: int, begin: int, length: int) -> Piece:
        body = output.piece_body(target, stream, begin, length)
        return output.piece_of(await self._asked(body, LOG_SECONDS))

    async def settled(self, uid: str, names: tuple[str, ...]) -> None:
        """Nothing is kept for it."""

    async def kept(self) -> frozenset[str]:
        return frozenset()

    async def close(self) -> None:
        self._closed = True
        await self._listings.close()
        await self._accounts.close()
        await self._transport.close()


def _object(row: Sighting) -> Object:
    found = object_of(row.id)
    return found if found is not None else Object("0", row.name)


def _with_progress(
    shown: Sighting, row: reading.Row, told: Mapping[tuple[str, int], datetime | None], now: datetime
) -> Sighting:
    """A sighting with the time of the run's last progress: its beginning at least, where that is looked at."""
    if shown.state is not State.RUNNING or row.ran is None or (shown.name, shown.run) not in told:
        return shown
    began, last = now - timedelta(seconds=row.ran), told[shown.name, shown.run]
    return msgspec.structs.replace(shown, progress=began if last is None else max(began, last))
