"""Kubernetes as an adapter: what the supervisor calls.

One rule: one listing of the namespace serves every job that asks at the time, one stream for each kind wakes them, and
nothing is remembered between calls that the cluster does not hold, but what makes asking cheaper. A listing is a read
of the present state (a list without resourceVersion), never of a cache; it is complete when every page of it came.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping
from datetime import datetime
from functools import partial

import msgspec

from dispatch_core.adapters.contract import Adapter, Job, Launch, Piece, Target
from dispatch_core.adapters.kubernetes import (
    checking,
    cleaning,
    kinds,
    leavings,
    output,
    patches,
    policies,
    reading,
    settling,
    starting,
)
from dispatch_core.adapters.kubernetes.calls import NOTHING_TO_EVICT, REQUEST_SECONDS, Calls, Late
from dispatch_core.adapters.kubernetes.cluster import KubernetesCluster
from dispatch_core.adapters.kubernetes.hostclock import CLOCK_SECONDS
from dispatch_core.adapters.kubernetes.kinds import JOB, Sort, uid_of
from dispatch_core.adapters.kubernetes.listing import Lister
from dispatch_core.adapters.kubernetes.transport import Answered, Api, Lost, NotSent
from dispatch_core.adapters.kubernetes.watching import Changes, Stream, marks_for
from dispatch_core.adapters.shared import Listings, Snapshot, closed, pause_of
from dispatch_core.errors import SchedulerUnavailable
from dispatch_core.evidence import Bounds, Capabilities, Listing
from dispatch_core.plan import Spec
from dispatch_core.record import Answer, Reply

WINDOW_SECONDS = 20.0
KEPT_JOBS = 20_000
KEPT_NUMBERS = 16
PROBE_SECONDS = 600.0
"""How often the cluster is asked what it enforces."""
PROBE_PATIENCE_SECONDS = 5.0


def open_kubernetes(cluster: KubernetesCluster) -> Adapter:
    """A connection to a cluster; nothing is sent before it is used. Raises BadInput where the library is missing."""
    return KubernetesScheduler(cluster)


class KubernetesScheduler:
    """One namespace of a Kubernetes cluster, for all jobs of one event loop."""

    capabilities = Capabilities(requeues=False, shuts=False, starts_once=True)

    def __init__(self, cluster: KubernetesCluster) -> None:
        self.cluster = cluster
        self.api = Api(cluster)
        self.lister = Lister(self.api, cluster)
        self.calls = Calls(self.api, cluster, self.lister)
        self.refuses_late: bool | None = None
        """Whether the API server refuses a call after its deadline; None: not known, so not relied on."""
        self.admission_gate: bool | None = None
        """Whether Kueue knows admission gates; None: not known."""
        self.is_taken = False
        """Whether a Kueue that was not told of here starts jobs that name no queue: it would overrule the gate."""
        self._probed: float | None = None
        self._cleaned: float | None = None
        self.listing_seconds = 0.0
        """What the latest listing took."""
        self._listings = Listings(self._look, lambda: pause_of(cluster.poll_seconds, self.listing_seconds))
        self._changes = Changes()
        self._listed: dict[str, int] = {}
        """How many changes there were when a job was last listed, by its uid."""
        self._numbers: dict[datetime, int] = {}
        """The same of the latest listings, by their beginning."""
        self._asking: dict[object, Job] = {}
        """The jobs that a listing is made for."""
        self._left: dict[datetime, leavings.Left] = {}
        """The pods of the latest listings, by their beginning, where an object was missing."""
        self._streams = [
            Stream(self.api, sort.path(cluster.namespace), kinds.UID, partial(self.lister.marks, sort), self._changes)
            for sort in self.lister.sorts
        ]
        self._following: list[asyncio.Task[None]] = []
        self._closed = False

    @property
    def bounds(self) -> Bounds:
        """What a call on this cluster takes at most.

        A request is written to the connection before its deadline, by the server's clock as it is known here (to 2 s),
        or never; it is given up at the deadline, and after 10 s. So `call_seconds` is that 2 s.

        What was written can land later, and when depends on the cluster:

        - Without the deadline policy: a proxy may keep what it took (`proxy_seconds`, 30 unless told), and from when
          the API server receives a request it goes on with it for the request's own `?timeout=`, 10 s at most.
        - With it (it is probed for, not believed): the server compares the time that it notes on the object with the
          deadline that the call carries, and refuses a late one, whatever a proxy did. Times are whole seconds: 1 s,
          and 1 s between the clocks of several API servers; after that comes the same `?timeout=`.

        Neither bound is what keeps a late copy from harm: each patch tests uid and fence, so once any later call has
        landed, a copy of an earlier one is refused, and a late create meets its own name, or an owner that is gone.
        What no bound covers is a server that stalls between admission and its write for longer than its timeout.
        """
        proxy = self.cluster.proxy_seconds
        landing = REQUEST_SECONDS + (min(2.0, proxy) if self.refuses_late else proxy)
        return Bounds(
            call_seconds=CLOCK_SECONDS,
            landing_seconds=landing,
            window_seconds=WINDOW_SECONDS,
            absence_seconds=self.cluster.absence_seconds,
            repeat_seconds=10.0,
            resync_seconds=60.0,
        )

    @property
    def listings(self) -> int:
        """Listings so far."""
        return self._listings.count

    def problems(self, spec: Spec) -> list[checking.Problem]:
        return checking.problems(spec, self.cluster)

    # --- listings

    async def find(self, job: Job) -> Listing:
        asking = object()
        self._asking[asking] = job
        try:
            listing = await self._listings.find(job)
        finally:
            del self._asking[asking]
        self._listed.pop(job.uid, None)
        self._listed[job.uid] = self._numbers.get(listing.began, 0)
        while len(self._listed) > KEPT_JOBS:
            del self._listed[next(iter(self._listed))]
        listing = reading.remembered(job, listing)
        if leavings.are_left(self.lister, job, listing, self._left.get(listing.began)):
            return msgspec.structs.replace(listing, complete=False)
        return listing

    async def everything(self) -> Listing:
        return await self._listings.everything()

    async def watch(self, job: Job, seconds: float) -> None:
        if self._closed:
            raise closed()
        marks = marks_for(job)
        with self._changes.waiting(marks) as woken:
            if self._changes.since(marks, self._listed.get(job.uid, self._changes.now)):
                return
            self._follow()
            try:
                async with asyncio.timeout(seconds):
                    await woken
            except TimeoutError:
                return

    def _follow(self) -> None:
        """Have every stream run; each ends by itself when nobody waits."""
        for at, stream in enumerate(self._streams):
            if at == len(self._following):
                self._following.append(asyncio.create_task(stream.run()))
            elif self._following[at].done():
                self._following[at] = asyncio.create_task(stream.run())

    async def _look(self) -> Snapshot:
        if self._closed:
            raise closed()
        if self._probed is None or time.monotonic() - self._probed >= PROBE_SECONDS:
            await self.probe()
        number, began = self._changes.now, time.monotonic()
        snapshot = await self.lister.snapshot()
        ids = frozenset(self.lister.sort_of)
        lacks = any(leavings.lacks(job, ids) for job in self._asking.values())
        left = await leavings.pods(self.lister) if lacks else None
        self.listing_seconds = time.monotonic() - began
        for stream, sort in zip(self._streams, self.lister.sorts, strict=True):
            if not stream.is_following:
                stream.compare(self.lister.found[sort])
                number = self._changes.now if len(self._streams) == 1 else number
        if self._cleaned is None or time.monotonic() - self._cleaned >= cleaning.AGAIN_SECONDS:
            self._cleaned = time.monotonic()
            keep = self.cluster.keep_seconds
            await cleaning.clean(self.api, self.cluster.namespace, self.lister.ended, snapshot.began, keep)
        self._numbers[snapshot.began] = number
        if left is not None:
            self._left[snapshot.began] = left
        while len(self._numbers) > KEPT_NUMBERS:
            oldest = next(iter(self._numbers))
            del self._numbers[oldest]
            self._left.pop(oldest, None)
        return snapshot

    async def probe(self) -> None:
        """Ask what the cluster enforces: dry runs, so nothing is made. Raises SchedulerUnavailable."""
        now, sorts = time.monotonic(), self.lister.sorts
        self.refuses_late = all(await asyncio.gather(*(self._is_late_refused(sort) for sort in sorts)))
        if self.cluster.kueue:
            told = await self.probed(policies.kueue_probe(self.cluster.queue or "default"))
            known = self.admission_gate if told is None else None
            self.admission_gate = False if told == "" else True if told and "domain-prefixed" in told else known
        else:
            shown = await asyncio.gather(*(self._dry_run(policies.plain_probe(sort), sort) for sort in sorts))
            bodies = [(sort, one.body) for sort, one in zip(sorts, shown, strict=True) if one is not None and one.well]
            if bodies:
                self.is_taken = any(policies.is_taken(sort, body) for sort, body in bodies)
        self._probed = now

    async def _is_late_refused(self, sort: Sort) -> bool:
        return policies.LATE_MESSAGE in (await self.probed(policies.late_probe(sort), sort) or "")

    async def probed(self, body: object, sort: Sort = JOB) -> str | None:
        """Why a dry run was refused; "": it was not; None: nobody can say. Raises SchedulerUnavailable."""
        answered = await self._dry_run(body, sort)
        if answered is None:
            return None
        if answered.well:
            return ""
        return answered.message if answered.status in (403, 422) else None

    async def _dry_run(self, body: object, sort: Sort = JOB) -> Answered | None:
        """None: no answer, such as where a webhook hangs; all that only reads goes on. Raises SchedulerUnavailable."""
        path, query = sort.path(self.cluster.namespace), {"dryRun": "All"}
        try:
            return await self.api.request("POST", path, query, body, seconds=PROBE_PATIENCE_SECONDS)
        except NotSent as error:
            raise SchedulerUnavailable(str(error)) from error
        except Lost:
            return None

    # --- calls

    async def start(self, launch: Launch, secrets: Mapping[str, str], deadline: datetime) -> Reply:
        """Where Kueue does not show that it knows admission gates, the object goes into the held queue; where there is
        none, the Start is refused: that Kueue would run it at once."""
        if self._closed:
            raise closed()
        if self._probed is None or (self.cluster.kueue and self.admission_gate is None):
            await self.probe()
        parked = self.cluster.kueue and not self.admission_gate
        if (parked and self.cluster.held_queue is None) or self.is_taken:
            return self._ungated()
        work = starting.start(self.calls, self.cluster, launch, secrets, deadline, parked)
        return await self.calls.replied(work)

    def _ungated(self) -> Reply:
        """Why nothing is started where it might run at once."""
        name = self.cluster.name
        if self.is_taken:
            text = f"Kueue on {name} takes jobs that name no queue; write kueue: true and a queue in the clusters file"
        elif self.admission_gate is None:
            text = f"whether Kueue on {name} keeps an admission gate cannot be told now"
            return Reply(answer=Answer.LATE, text=f"{text}; nothing was done")
        else:
            text = f"Kueue on {name} does not show that it keeps an admission gate; upgrade it to 0.19,"
            text = f"{text} or name a held_queue"
        return Reply(answer=Answer.REFUSED, text=f"{text}; nothing was done")

    async def open(self, target: Target, deadline: datetime) -> Reply:
        return await self.calls.on(target, deadline, patches.open_gate)

    async def shut(self, target: Target, deadline: datetime) -> Reply:
        return Reply(answer=Answer.REFUSED, text="Kubernetes has no gate that can be shut behind a run")

    async def stop(self, target: Target, deadline: datetime) -> Reply:
        if self.cluster.kueue:
            return await self._stop_queued(target, deadline)
        return await self.calls.on(target, deadline, patches.stop)

    async def _stop_queued(self, target: Target, deadline: datetime) -> Reply:
        """Have Kueue evict it, and then never start it again."""
        evicted = await self.calls.active(target, deadline, False, stops=True)
        if evicted.answer is not Answer.DONE:
            return evicted
        stopped = await self.calls.on(target, deadline, patches.stop)
        if stopped.answer is Answer.DONE or evicted.text == NOTHING_TO_EVICT:
            return stopped
        return Reply(answer=Answer.UNKNOWN, text=f"its Workload was deactivated, and no more: {stopped.text}")

    async def stop_job(self, names: tuple[str, ...], deadline: datetime) -> Reply:
        return await self.calls.replied(self._stop_job(names, deadline))

    async def _stop_job(self, names: tuple[str, ...], deadline: datetime) -> Reply:
        """Stop each by its name, whatever its run. It is late only where none was stopped."""
        stopped = False
        try:
            for name, sort in itertools.product(names, self.lister.sorts):
                reply = await self._stop_named(sort, name, deadline)
                if reply is None:
                    continue
                if reply.answer is not Answer.DONE:
                    late = reply.answer is Answer.LATE and not stopped
                    return reply if late else Reply(answer=Answer.UNKNOWN, text=reply.text)
                stopped = True
            if not stopped:
                await self.calls.in_time(deadline)
        except (Late, NotSent) as error:
            if not stopped:
                raise
            return Reply(answer=Answer.UNKNOWN, text=f"not all of them were stopped: {error}")
        return Reply(answer=Answer.DONE)

    async def _stop_named(self, sort: Sort, name: str, deadline: datetime) -> Reply | None:
        """None: there is none. Raises Late and NotSent."""
        answered = await self.calls.get(sort, name, deadline)
        if answered.status == 404:
            return None
        if not answered.well:
            return Reply(answer=Answer.UNKNOWN, text=answered.message)
        run = await self.calls.run(sort, answered.body, deadline)
        return await self.stop(Target(id=uid_of(answered.body), name=name, run=run), deadline)

    async def hold(self, target: Target, deadline: datetime) -> Reply:
        if self.cluster.kueue:
            return await self.calls.active(target, deadline, False)
        return await self.calls.on(target, deadline, patches.hold)

    async def release(self, target: Target, deadline: datetime) -> Reply:
        if self.cluster.kueue:
            return await self.calls.active(target, deadline, True)
        return await self.calls.on(target, deadline, patches.release)

    async def requeue(self, target: Target, deadline: datetime) -> Reply:
        return Reply(answer=Answer.REFUSED, text="an object of Kubernetes that has ended does not run again")

    async def read_log(self, target: Target, stream: int, begin: int, length: int) -> Piece:
        return await output.read(self.api, self.lister, target, stream, begin, length)

    async def settled(self, uid: str, names: tuple[str, ...]) -> None:
        """From now on the cluster collects what is created for this job."""
        await settling.settled(self.api, self.cluster, uid, names)

    async def kept(self) -> frozenset[str]:
        return await settling.kept(self.lister)

    async def close(self) -> None:
        self._closed = True
        await self._listings.close()
        self._changes.close()
        for following in self._following:
            following.cancel()
        if self._following:
            await asyncio.wait(self._following)
        await self.api.close()
