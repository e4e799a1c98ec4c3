"""The only loop: read the record, ask the scheduler, decide, commit, call, and wait.

One rule: nothing is remembered here that the record does not hold, except replies on their way into the next commit;
whatever stops this loop, at whatever line, the next one reads the record and carries on. It starts nothing that
outlives it. It asks no questions about the job: `next` does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from dispatch_core.adapters.contract import Adapter, Job, Launch, Target
from dispatch_core.errors import (
    CommitUnknown,
    Conflict,
    DispatchError,
    Displaced,
    Owned,
    SchedulerUnavailable,
    StoreUnavailable,
)
from dispatch_core.evidence import CallReplied, Evidence, Listing, StartReplied, is_news, merge, seen
from dispatch_core.find import observe
from dispatch_core.guards import guard
from dispatch_core.names import object_name
from dispatch_core.next import decide, unreachable
from dispatch_core.plan import Secret
from dispatch_core.record import Answer, Call, Kind, Record, Reply, Submission
from dispatch_core.stores.contract import Lease, Store
from dispatch_core.story import story
from dispatch_core.surroundings import FreshId, Now, fresh_id, utc_now
from dispatch_core.turn import Send, Start

log = logging.getLogger(__name__)

Secrets = Callable[[Secret], Awaitable[str]]
"""Reads one secret; raises DispatchError where it cannot be read."""


async def no_secrets(secret: Secret) -> str:
    """What a supervisor that was given no source of secrets reads."""
    raise DispatchError(f"no source of secrets was given to read {secret.source} {secret.name!r} from")


class Supervisor:
    """Runs the passes of any number of jobs on one cluster; several may run the same job at the same time.

    `lease_seconds` is raised to twice the longest bounded step where it is shorter; None: without leases.
    `drain_seconds`: when it is cancelled, the step in flight may take this long to end; past it the step is abandoned,
    and its call stays unknown.
    """

    record_seconds = 5.0
    """While it waits, it reads its record this often: a person's cancel or hold is seen within it."""

    def __init__(
        self,
        store: Store,
        adapter: Adapter,
        *,
        secrets: Secrets = no_secrets,
        lease_seconds: float | None = 30.0,
        drain_seconds: float = 30.0,
        name: str = "",
        now: Now = utc_now,
        fresh_id: FreshId = fresh_id,
    ) -> None:
        self.store = store
        self.adapter = adapter
        self.secrets = secrets
        self._lease_seconds = lease_seconds
        self.drain_seconds = drain_seconds
        self.name = name or f"supervisor {fresh_id()[:8]}"
        self.now = now
        self.fresh_id = fresh_id

    @property
    def step_seconds(self) -> float:
        """The longest that a listing or a call may take; what the cluster declares may change once it was asked."""
        return self.adapter.bounds.window_seconds + self.adapter.bounds.call_seconds

    @property
    def lease_seconds(self) -> float | None:
        return None if self._lease_seconds is None else max(self._lease_seconds, 2 * self.step_seconds)

    async def run(self, key: str, uid: str | None = None, *, until_outcome: bool = False) -> Record:
        """Attend to one job until it is settled, or until it has an outcome; returns its record.

        Raises Owned if another supervisor holds the job, Displaced if it loses it. Cancelling it leaves the job running
        and gives the lease up.
        """
        record = await self.store.read(key, uid)
        if _is_over(record, until_outcome):
            return record
        loop = _Loop(self, record)
        await loop.claim()
        try:
            while not _is_over(record, until_outcome):
                seconds = await loop.drained_pass()
                record = loop.record
                if seconds > 0 and not _is_over(record, until_outcome):
                    await loop.wait(seconds)
        finally:
            await asyncio.shield(loop.leave())
        if record.settled:
            await self.tell_settled(record)
        return record

    async def tell_settled(self, record: Record) -> None:
        """Have the cluster give up what it keeps until a settlement; where that fails, a janitor repeats it."""
        try:
            async with asyncio.timeout(self.step_seconds):
                await self.adapter.settled(record.uid, record.names())
        except (SchedulerUnavailable, OSError, TimeoutError) as error:
            log.info("job %s is settled, but its cluster was not told: %s", record.key, error or type(error).__name__)

    async def attend(
        self, key: str, uid: str | None = None, *, until_outcome: bool = False, if_free: bool = False
    ) -> Record:
        """As `run`, but where another supervisor has the job, wait and take over when it leaves; an outage of the store
        is waited out, once the record was read. `if_free`: raises Owned where another has the job to begin with."""
        uid = (await self.store.read(key, uid)).uid
        while True:
            try:
                return await self.run(key, uid, until_outcome=until_outcome)
            except Owned as owned:
                if if_free:
                    raise
                log.info("job %s: %s; trying again", key, owned)
            except (Displaced, StoreUnavailable) as hindrance:
                log.warning("job %s: %s; trying again in %g s", key, hindrance, self.record_seconds)
            if_free = False
            await asyncio.sleep(self.record_seconds)

    async def sweep(self, record: Record) -> None:
        """One pass over a settled record, of which an object was seen alive (S2)."""
        loop = _Loop(self, record)
        try:
            await loop.drained_pass()
        finally:
            await asyncio.shield(loop.leave())


def _is_over(record: Record, until_outcome: bool) -> bool:
    return record.settled or (until_outcome and record.outcome is not None)


class _Loop:
    """One job's loop: what it holds is the lease, and the replies that ride in its next commit."""

    def __init__(self, supervisor: Supervisor, record: Record) -> None:
        self.s = supervisor
        self.record = record
        self.held: list[Evidence] = []
        self.lease: Lease | None = None
        self._renewed = 0.0
        self._stopping = False

    # --- the lease

    async def claim(self) -> None:
        if self.s.lease_seconds is not None:
            self.lease = await self.s.store.acquire(self.record, self.s.name, self.s.lease_seconds)
            self._renewed = _monotonic()

    async def _renew(self) -> None:
        """Between steps, once a third of the lease is over."""
        if self.lease is None or (seconds := self.s.lease_seconds) is None:
            return
        if _monotonic() - self._renewed > seconds / 3:
            await self.s.store.renew(self.lease, seconds)
            self._renewed = _monotonic()

    async def leave(self) -> None:
        """Commit what is held, and give the lease up; bounded, and never in the way of what ended the loop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.s.drain_seconds):
                with suppress(DispatchError):
                    if self.held:
                        await self._commit_evidence(self.held)
                with suppress(DispatchError):
                    if self.lease is not None:
                        await self.s.store.release(self.lease)

    # --- one pass

    async def drained_pass(self) -> float:
        """One pass; if the loop is cancelled meanwhile, its step in flight is drained first (R3)."""
        work = asyncio.create_task(self._pass())
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError:
            self._stopping = True
            try:
                await asyncio.wait({work}, timeout=self.s.drain_seconds)
            finally:
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
            raise
        return work.result()

    async def _pass(self) -> float:
        """Read, find, decide, commit, call; returns how long to wait if nothing happens."""
        await self._renew()
        self.record = read = await self.s.store.read(self.record.key, self.record.uid)
        merged = merge(read, self.held)
        facts: list[Evidence] = list(self.held)
        try:
            listing = await self._find(read)
        except SchedulerUnavailable as error:
            decision = unreachable(read, merged, self.s.now(), str(error))
        else:
            facts += seen(listing)
            decision = decide(read, observe(merged, listing, self.s.adapter.bounds, self.s.adapter.capabilities))
        if self._stopping or decision.record is None:
            return decision.wake_seconds  # what is held stays so: the read may be too old to know the call it is about
        landed = await self._lands(read, decision.record, facts)
        for call in decision.calls:
            if self._stopping or not is_allowed(call, landed):
                break
            await self._renew()
            await self._call(call, decision.record)
        return decision.wake_seconds if landed else 0.0

    async def _find(self, read: Record) -> Listing:
        try:
            async with asyncio.timeout(self.s.step_seconds):
                return await self.s.adapter.find(Job.of(read))
        except TimeoutError as error:
            raise SchedulerUnavailable(f"no listing within {self.s.step_seconds:g} s") from error

    async def _lands(self, read: Record, decided: Record, facts: Sequence[Evidence]) -> bool:
        """Commit a decision; where it is refused, its evidence alone, and the pass starts over."""
        try:
            self.record = await self._commit(read, decided)
        except Conflict:
            await self._commit_evidence(facts)
            return False
        except Displaced:
            await self._commit_evidence(facts)
            raise
        except CommitUnknown as error:
            log.warning("job %s: %s; reading again", read.key, error)
            return False
        return True

    async def _commit(self, read: Record, decided: Record) -> Record:
        lines = story(read, decided)
        record = await self.s.store.commit(
            decided,
            against=read.revision,
            commit=self.s.fresh_id(),
            actor=self.s.name,
            lines=lines,
            lease=self.lease,
        )
        self.held = []
        for line in lines:
            log.info("%s (job %s)", line, read.key)  # the news first: engines cut long lines
        return record

    async def _commit_evidence(self, facts: Sequence[Evidence]) -> None:
        """Merge facts at whatever the revision is now, without a lease and without marks (C3)."""
        while True:
            newest = await self.s.store.read(self.record.key, self.record.uid)
            merged = merge(newest, facts)
            if not is_news(newest, merged):
                break
            try:
                await self.s.store.commit(
                    merged,
                    against=newest.revision,
                    commit=self.s.fresh_id(),
                    actor=f"evidence of {self.s.name}",
                    lines=story(newest, merged),
                )
                break
            except (Conflict, CommitUnknown):
                continue  # reading again tells whether it landed: then nothing of it is news
        self.held = []

    # --- calls

    async def _call(self, call: Start | Send, decided: Record) -> None:
        """Make one call, and hold its reply for the next commit; what breaks on the way is unknown (G5)."""
        try:
            async with asyncio.timeout(self.s.step_seconds):
                fact = await (self._start(call, decided) if isinstance(call, Start) else self._send(call.call, decided))
        except (SchedulerUnavailable, OSError, TimeoutError) as error:
            reply = Reply(answer=Answer.UNKNOWN, text=str(error) or type(error).__name__)
            fact = _replied(call, reply)
        self.held.append(fact)

    async def _start(self, call: Start, decided: Record) -> Evidence:
        submission = decided.submissions[call.submission - 1]
        try:
            wanted = submission.spec.secret_environment
            secrets = {name: await self.s.secrets(source) for name, source in wanted.items()}
        except DispatchError as error:
            return _replied(call, Reply(answer=Answer.REFUSED, text=str(error)))
        launch = Launch(
            key=decided.key,
            uid=decided.uid,
            submission=call.submission,
            attempt=call.attempt,
            name=object_name(decided.uid, call.submission, call.attempt),
            spec=submission.spec,
            may_requeue=decided.plan.requeues,
            watches_progress=decided.plan.watches_progress,
            previous_cause=_previous_cause(decided, submission),
        )
        return _replied(call, await self.s.adapter.start(launch, secrets, call.deadline))

    async def _send(self, call: Call, decided: Record) -> Evidence:
        adapter = self.s.adapter
        if call.object is None:
            return _call_replied(call, await adapter.stop_job(decided.names(), call.deadline))
        object = decided.object(call.object)
        assert object is not None  # noqa: S101 - a call names a recorded object
        target = Target(id=object.id, name=object.name, run=call.run)
        if call.kind is Kind.OPEN and not await self._still_stands():
            text = "not sent: the record has moved on"
            return _call_replied(call, Reply(answer=Answer.LATE, text=text))
        make = {
            Kind.OPEN: adapter.open,
            Kind.SHUT: adapter.shut,
            Kind.STOP: adapter.stop,
            Kind.HOLD: adapter.hold,
            Kind.RELEASE: adapter.release,
            Kind.REQUEUE: adapter.requeue,
        }[call.kind]
        return _call_replied(call, await make(target, call.deadline))

    async def _still_stands(self) -> bool:
        """Whether the revision that committed the Open is still the newest, read right before it is sent (X3)."""
        return still_stands(self.record, await self.s.store.read(self.record.key, self.record.uid))

    # --- waiting

    async def wait(self, seconds: float) -> None:
        """Until the watch, the timer, or a change of the record that somebody else committed."""
        job, until = Job.of(self.record), _monotonic() + seconds
        while (left := until - _monotonic()) > 0:
            part = min(left, self.s.record_seconds)
            began = _monotonic()
            await self.s.adapter.watch(job, part)
            await self._renew()
            newest = await self.s.store.revision(self.record.key, self.record.uid)
            if newest != self.record.revision or _monotonic() - began < part:
                return


@guard("number_committed_before_start", promise="G4 R1", history="reply_and_commit_lost", without=True)
def _may_start(landed: bool) -> bool:
    """Whether an attempt's number is in the record: else nobody could ever match what it makes."""
    return landed


@guard("deadline_committed_before_call", promise="L1", without=True)
def _may_send(landed: bool) -> bool:
    """Whether the call is in the record: else nobody could work out when it can no longer land."""
    return landed


def is_allowed(call: Start | Send, landed: bool) -> bool:
    """Whether a decided call may be made; `landed`: its decision is known to be committed."""
    return _may_start(landed) if isinstance(call, Start) else _may_send(landed)


@guard("open_not_sent_if_revision_moved", promise="X3", without=True)
def still_stands(committed: Record, newest: Record) -> bool:
    """Whether nothing was committed since: a cancel, above all."""
    return (newest.revision, newest.commit) == (committed.revision, committed.commit)


def _monotonic() -> float:
    return asyncio.get_running_loop().time()


def _replied(call: Start | Send, reply: Reply) -> Evidence:
    if isinstance(call, Start):
        return StartReplied(submission=call.submission, attempt=call.attempt, reply=reply)
    return _call_replied(call.call, reply)


def _call_replied(call: Call, reply: Reply) -> CallReplied:
    return CallReplied(kind=call.kind, object=call.object, run=call.run, hold=call.hold, count=call.count, reply=reply)


def _previous_cause(record: Record, submission: Submission) -> str:
    """How the submission before ended: the run can read it, to resume from a checkpoint."""
    if submission.number == 1:
        return ""
    earlier = record.submissions[submission.number - 2]
    object = record.object(earlier.canonical) if earlier.canonical else None
    end = object.end_of(object.run) if object is not None else None
    return str(end.cause) if end is not None else "unknown"
