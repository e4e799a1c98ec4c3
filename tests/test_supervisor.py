"""The loop, on a real store and the real local scheduler: leases, stalls, lost replies, and what stopping it leaves."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dispatch_core.adapters.contract import Bounds, Launch
from dispatch_core.adapters.local.scheduler import LocalScheduler
from dispatch_core.client import Client, explain
from dispatch_core.errors import (
    BadInput,
    CommitUnknown,
    Displaced,
    Owned,
    SchedulerUnavailable,
    StoreUnavailable,
    UnreadableRecord,
)
from dispatch_core.evidence import Capabilities, Listing
from dispatch_core.janitor import Janitor
from dispatch_core.names import object_name
from dispatch_core.plan import Action, Cause, Plan, Rule, Spec, When
from dispatch_core.record import Answer, Kind, Record, Reply, Result, State
from dispatch_core.stores.memory import MemoryStore
from dispatch_core.supervisor import Supervisor, _Loop
from tests.test_ask import NEW
from tests.world import EPOCH

QUICK = Bounds(call_seconds=0.5, window_seconds=2, absence_seconds=1, repeat_seconds=0.2, resync_seconds=2)
Hook = Callable[[str, int], Awaitable[None]]


CHANGING = {str(kind) for kind in Kind} | {"start"}


class Around:
    """A real store or scheduler, with something that happens before or after a call of it."""

    def __init__(self, real: Any, before: Hook | None = None, after: Hook | None = None) -> None:
        self.real, self.before, self.after = real, before, after
        self.counts: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.real, name)
        if not asyncio.iscoroutinefunction(value):
            return value

        async def around(*args: Any, **kwargs: Any) -> Any:
            self.counts[name] += 1
            count = self.counts[name]
            if self.before is not None:
                await self.before(name, count)
            result = await value(*args, **kwargs)
            if self.after is not None:
                await self.after(name, count)
            return result

        return around


class World:
    """One store, one scheduler, and payloads that tell what they do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = MemoryStore()
        self.scheduler = LocalScheduler(folder / "spool", bounds=QUICK, listing_seconds=0.02, grace_seconds=0.5)
        self.client = Client(self.store, "person ann")

    def supervisor(self, *, store: Any = None, scheduler: Any = None, **options: Any) -> Supervisor:
        return Supervisor(store or self.store, scheduler or self.scheduler, **options)

    async def submit(self, script: str = "exit 0", plan: Plan | None = None, key: str = "job") -> str:
        tell = f"echo $DISPATCH_SUBMISSION.$DISPATCH_RUN >>{self.folder / key}; {script}"
        spec = Spec(command=("sh", "-c", tell))
        record = await self.client.submit(key, spec, plan or Plan(), scheduler="local", adapter=self.scheduler)
        return record.uid

    def runs(self, key: str = "job") -> list[str]:
        path = self.folder / key
        return path.read_text().split() if path.exists() else []

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.02)

    async def end(self) -> None:
        for listed in await self.store.jobs(settled=False):
            await self.client.cancel(listed.key)
            await self.supervisor(lease_seconds=None).run(listed.key)
        await self.scheduler.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    yield world
    await world.end()


async def test_an_undisturbed_job_takes_eight_commits_at_most_and_two_changing_calls(world: World) -> None:
    await world.submit()
    scheduler = Around(world.scheduler)
    record = await world.supervisor(scheduler=scheduler).run("job")
    assert record.settled
    assert record.outcome is not None
    assert record.outcome.result is Result.SUCCEEDED
    assert world.runs() == ["1.1"]
    assert record.revision <= 8
    assert {name: n for name, n in scheduler.counts.items() if name in CHANGING} == {"start": 1, "open": 1}


@pytest.mark.promise("O1")
async def test_a_second_supervisor_is_told_who_has_the_job(world: World) -> None:
    await world.submit("sleep 60")
    first = asyncio.ensure_future(world.supervisor(name="first").run("job"))
    await world.until(world.runs)
    with pytest.raises(Owned, match="first"):
        await world.supervisor(name="second").run("job")
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first


@pytest.mark.promise("O1")
@pytest.mark.promise("C2")
@pytest.mark.promise("C3")
@pytest.mark.case("T8")
async def test_one_that_stalls_for_ten_leases_decides_nothing_and_its_reply_is_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stalls between the effect of its Start and the reply; another takes the job and finishes it meanwhile."""
    uid = await world.submit()
    stalled, resumed = asyncio.Event(), asyncio.Event()

    async def stall(name: str, _: int) -> None:
        if name == "start":
            stalled.set()
            await resumed.wait()

    slow = world.supervisor(scheduler=Around(world.scheduler, after=stall), name="slow")
    monkeypatch.setattr(Supervisor, "step_seconds", 60.0)
    late = asyncio.ensure_future(slow.run("job"))
    await stalled.wait()
    record = await world.store.read("job")
    lease = await world.store.acquire(record, "slow", 0.0)
    await world.store.release(lease)
    done = await world.supervisor(name="other").run("job", uid)
    resumed.set()
    with pytest.raises(Displaced):
        await late
    after = await world.store.read("job")
    assert after.settled
    assert world.runs() == ["1.1"]
    assert [s.number for s in after.submissions] == [1]
    first = after.submissions[0].attempts[0]
    assert first.reply is not None
    assert first.reply.answer is Answer.DONE, "a late reply is still a fact"
    assert done.outcome == after.outcome


@pytest.mark.promise("X3")
@pytest.mark.promise("P2")
@pytest.mark.case("T13")
async def test_an_open_is_not_sent_when_a_cancel_was_committed_since_its_commit(world: World) -> None:
    """The cancel lands between the commit of the Open and the Open itself."""
    await world.submit()

    async def cancel_after_the_open_is_committed(name: str, _: int) -> None:
        if name == "commit" and (await world.store.read("job")).call(Kind.OPEN, *await the_object(), 1):
            await world.client.cancel("job")

    async def the_object() -> tuple[str | None]:
        record = await world.store.read("job")
        return (record.objects[0].id if record.objects else None,)

    scheduler = Around(world.scheduler)
    store = Around(world.store, after=cancel_after_the_open_is_committed)
    record = await world.supervisor(store=store, scheduler=scheduler).run("job")
    assert record.outcome is not None
    assert record.outcome.result is Result.CANCELLED
    assert scheduler.counts["open"] == 0
    assert world.runs() == []
    assert all(o.state is State.ENDED for o in record.objects)


@pytest.mark.promise("C1")
@pytest.mark.promise("P2")
@pytest.mark.case("T14")
@pytest.mark.case("T15")
async def test_a_resubmit_decided_before_a_cancel_is_refused_after_it(world: World) -> None:
    """The run fails; the cancel lands between the decision to resubmit and its commit."""
    again = Rule(name="again", when=When(cause=(Cause.EXIT,)), do=Action.RESUBMIT, budget=3)
    await world.submit("exit 1", Plan(rules=(again,)))

    async def cancel_before_the_resubmit(name: str, _: int) -> None:
        if name == "commit" and (await world.store.read("job")).calls and world.runs():
            (sighting,) = (await world.scheduler.everything()).objects
            if sighting.state in (State.ENDING, State.ENDED):
                await world.client.cancel("job")

    record = await world.supervisor(store=Around(world.store, before=cancel_before_the_resubmit)).run("job")
    assert record.outcome is not None
    assert record.outcome.result is Result.CANCELLED
    assert world.runs() == ["1.1"]
    assert len(record.submissions) == 1


@pytest.mark.promise("C5")
@pytest.mark.promise("G5")
@pytest.mark.case("T3")
@pytest.mark.case("T6")
async def test_the_reply_of_the_start_is_lost_and_so_is_its_commit(world: World) -> None:
    """The Start takes effect and breaks; the commit that would record it is of unknown fate, once."""
    await world.submit()
    broken: list[str] = []

    async def lose_the_start(name: str, count: int) -> None:
        if name == "start" and count == 1:
            raise OSError("the connection broke")

    async def lose_the_commit(name: str, count: int) -> None:
        if name == "commit" and not broken and (await world.scheduler.everything()).objects:
            broken.append(name)
            raise CommitUnknown("the connection broke")

    scheduler = Around(world.scheduler, after=lose_the_start)
    record = await world.supervisor(store=Around(world.store, before=lose_the_commit), scheduler=scheduler).run("job")
    assert broken == ["commit"]
    assert world.runs() == ["1.1"]
    assert scheduler.counts["start"] == 1, "found by its tags, not started again"
    assert record.settled


def tasks() -> set[str]:
    """What runs in this loop, but for the poller that belongs to the scheduler's connection."""
    names = {str(getattr(task.get_coro(), "__qualname__", "")) for task in asyncio.all_tasks()}
    return {name for name in names if not name.startswith(("Snapshots.", "Listings."))}


@pytest.mark.promise("R2")
@pytest.mark.promise("R3")
@pytest.mark.case("T11")
async def test_stopping_the_supervisor_leaves_the_run_and_gives_the_lease_up(world: World) -> None:
    await world.submit("sleep 1")
    before = tasks()
    work = asyncio.ensure_future(world.supervisor(name="first").run("job"))
    await world.until(world.runs)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert tasks() == before, "it started nothing that outlives it"
    (sighting,) = (await world.scheduler.everything()).objects
    assert sighting.state is State.RUNNING
    record = await world.supervisor(name="second").run("job")
    assert record.settled
    assert world.runs() == ["1.1"]


@pytest.mark.promise("R3")
async def test_the_step_in_flight_is_drained(world: World) -> None:
    """Cancelled while its Start is on the way: the Start ends, and its reply is committed."""
    await world.submit("sleep 5")
    under_way, go = asyncio.Event(), asyncio.Event()

    async def wait(name: str, _: int) -> None:
        if name == "start":
            under_way.set()
            await go.wait()

    work = asyncio.ensure_future(world.supervisor(scheduler=Around(world.scheduler, after=wait)).run("job"))
    await under_way.wait()
    work.cancel()
    asyncio.get_running_loop().call_later(0.1, go.set)
    with pytest.raises(asyncio.CancelledError):
        await work
    attempt = (await world.store.read("job")).submissions[0].attempts[0]
    assert attempt.reply is not None
    assert attempt.reply.answer is Answer.DONE


@pytest.mark.promise("R3")
@pytest.mark.promise("G5")
async def test_past_the_drain_bound_the_step_is_abandoned_and_its_call_stays_unknown(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.submit("sleep 5")
    under_way = asyncio.Event()

    async def hang(name: str, _: int) -> None:
        if name == "start":
            under_way.set()
            await asyncio.Event().wait()

    slow = world.supervisor(scheduler=Around(world.scheduler, after=hang), drain_seconds=0.1)
    monkeypatch.setattr(Supervisor, "step_seconds", 60.0)
    work = asyncio.ensure_future(slow.run("job"))
    await under_way.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert (await world.store.read("job")).submissions[0].attempts[0].reply is None


@pytest.mark.promise("O2")
@pytest.mark.promise("P4")
async def test_three_supervisors_without_leases_run_the_job_once(world: World) -> None:
    again = Rule(name="again", when=When(cause=(Cause.EXIT,)), do=Action.RESUBMIT, budget=1)
    await world.submit('test "$DISPATCH_SUBMISSION" = 2', Plan(rules=(again,)))
    started: Counter[str] = Counter()

    class Noting(Around):
        async def start(self, launch: Launch, *args: Any) -> Reply:
            started[launch.name] += 1
            return await self.real.start(launch, *args)

    supervisors = [world.supervisor(lease_seconds=None, scheduler=Noting(world.scheduler)) for _ in range(3)]
    records = await asyncio.gather(*(supervisor.run("job") for supervisor in supervisors))
    assert {record.outcome for record in records} == {records[0].outcome}
    assert world.runs() == ["1.1", "2.1"]
    assert set(started.values()) == {1}, "the number of an attempt is one supervisor's"


@pytest.mark.promise("X1")
@pytest.mark.promise("X2")
@pytest.mark.case("T16")
async def test_a_stop_that_fails_twenty_times_is_repeated_until_it_is_seen(world: World) -> None:
    await world.submit("sleep 600")
    failing = 0

    class Refusing(Around):
        async def stop_job(self, *args: Any) -> Reply:
            nonlocal failing
            failing += 1
            return await self.real.stop_job(*args) if failing > 20 else Reply(answer=Answer.UNKNOWN, text="no answer")

    quick = Bounds(call_seconds=1, window_seconds=3, absence_seconds=1, repeat_seconds=0.000001, resync_seconds=1)
    scheduler = Refusing(world.scheduler)
    scheduler.bounds = quick
    work = asyncio.ensure_future(world.supervisor(scheduler=scheduler).run("job"))
    await world.until(world.runs)
    receipt = await world.client.cancel("job")
    assert (receipt.result, receipt.clean) == (Result.CANCELLED, False)
    await world.until(lambda: failing > 3)
    assert not (await world.store.read("job")).settled, "cancelled, and not yet settled"
    record = await work
    assert failing >= 21  # the first that was made may have been cut off, and made again
    assert record.settled
    again = await world.client.cancel("job")
    assert (again.at, again.result, again.clean, again.waits_for) == (receipt.at, receipt.result, True, "")


@pytest.mark.case("T17")
async def test_explain_says_what_is_still_alive_after_a_stop_that_did_nothing(world: World) -> None:
    await world.submit("sleep 600")

    class Ignoring(Around):
        async def stop_job(self, *_: Any) -> Reply:
            return Reply(answer=Answer.DONE)

    work = asyncio.ensure_future(world.supervisor(scheduler=Ignoring(world.scheduler)).run("job"))
    await world.until(world.runs)
    await world.client.cancel("job")

    async def asked() -> int:
        row = (await world.store.read("job")).call(Kind.STOP_JOB)
        return row.count if row is not None else 0

    async with asyncio.timeout(30):
        while await asked() < 3:
            await asyncio.sleep(0.05)
    told = await explain(world.store, world.scheduler, "job")
    (id,) = [object.id for object in told.record.objects]
    assert any(f"{id} is running" in note.text for note in told.decision.notes)
    assert not told.record.settled
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work


@pytest.mark.promise("S2")
@pytest.mark.promise("P1")
@pytest.mark.case("T2")
async def test_a_launch_that_lands_after_settlement_is_swept_and_never_runs(world: World) -> None:
    """The reply of a Start is lost and its object lands only after the cancelled job was settled."""
    await world.submit()
    held_back: list[tuple[Any, ...]] = []

    class Late(Around):
        async def start(self, *args: Any) -> Reply:
            held_back.append(args)
            return Reply(answer=Answer.UNKNOWN, text="no answer")

    work = asyncio.ensure_future(world.supervisor(scheduler=Late(world.scheduler)).run("job"))
    await world.until(lambda: held_back)
    await world.client.cancel("job")
    record = await work
    assert record.settled
    launch, secrets, deadline = held_back[0]
    assert (
        await world.scheduler.start(launch, secrets, deadline.replace(year=deadline.year + 1))
    ).answer is Answer.DONE
    janitor = Janitor(world.store, {"local": world.scheduler})
    await janitor.run(once=True)
    await janitor.run(once=True)
    after = await world.store.read("job")
    assert after.settled
    assert [o.retired for o in after.objects] == [True]
    assert [o.state for o in (await world.scheduler.everything()).objects] == [State.ENDED]
    assert world.runs() == []


class Keeping(Around):
    """A cluster that keeps something for each record, until it is told that it is settled, which fails so often."""

    def __init__(self, world: World, failures: int = 0) -> None:
        super().__init__(world.scheduler)
        self.world, self.failures = world, failures
        self.uids: set[str] = set()
        self.told: list[tuple[bool, tuple[str, ...]]] = []
        """Of each telling whether the record in the store was settled then, and the names that were told."""

    async def start(self, launch: Launch, *args: Any) -> Reply:
        self.uids.add(launch.uid)
        return await self.real.start(launch, *args)  # type: ignore[no-any-return]

    async def kept(self) -> frozenset[str]:
        return frozenset(self.uids)

    async def settled(self, uid: str, names: tuple[str, ...]) -> None:
        (job,) = await self.world.store.jobs(uids=frozenset({uid}))
        self.told.append((job.record is not None and job.record.settled, names))
        if len(self.told) <= self.failures:
            raise SchedulerUnavailable("the cluster is restarting")
        self.uids.discard(uid)


@pytest.mark.promise("S2")
async def test_a_cluster_is_told_of_a_settlement_once_it_is_committed(world: World) -> None:
    keeping = Keeping(world)
    uid = await world.submit()
    record = await world.supervisor(scheduler=keeping).run("job")
    assert record.settled
    assert keeping.told == [(True, (object_name(uid, 1, 1),))]
    await Janitor(world.store, {"local": keeping}).sweep()  # type: ignore[dict-item]
    assert len(keeping.told) == 1


@pytest.mark.promise("S2")
async def test_a_janitor_tells_of_settlements_until_it_has_got_through(world: World) -> None:
    keeping = Keeping(world, failures=2)
    uid = await world.submit()
    other = await world.submit("sleep 60", key="goes on")
    keeping.uids.update({other, "of another store"})
    await world.supervisor(scheduler=keeping).run("job")
    janitor = Janitor(world.store, {"local": keeping})  # type: ignore[dict-item]
    for _ in range(3):
        await janitor.sweep()
    assert keeping.told == [(True, (object_name(uid, 1, 1),))] * 3
    assert keeping.uids == {other, "of another store"}


@pytest.mark.promise("O2")
async def test_the_janitor_adopts_what_nobody_supervises(world: World) -> None:
    await asyncio.gather(*(world.submit(key=f"job{n}") for n in range(5)))
    await asyncio.gather(*(Janitor(world.store, {"local": world.scheduler}).run(once=True) for _ in range(2)))
    assert [world.runs(f"job{n}") for n in range(5)] == [["1.1"]] * 5
    assert all(job.record is not None and job.record.settled for job in await world.store.jobs())


async def test_a_cluster_that_cannot_be_reached_ends_nothing_for_the_others(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told of once for as long as it lasts; its jobs wait, and go on when it answers."""
    down = True

    async def answer(name: str, _: int) -> None:
        if down and name in ("find", "everything"):
            raise SchedulerUnavailable("no route to host")

    opened = []

    def opens(name: str) -> Any:
        opened.append(name)
        if name == "undefined":
            raise BadInput("no cluster is named 'undefined'")
        return Around(world.scheduler, before=answer) if name == "far" else world.scheduler

    await world.client.submit("far", Spec(command=("true",)), Plan(), scheduler="far")
    await world.client.submit("nowhere", Spec(command=("true",)), Plan(), scheduler="undefined")
    await world.submit(key="near")
    janitor = Janitor(world.store, {}, opens=opens, names=("local", "far"), period_seconds=0.1)
    work = asyncio.ensure_future(janitor.run())
    try:
        await world.until(lambda: world.runs("near") and opened.count("undefined") > 3)
        assert (opened.count("far"), opened.count("local")) == (1, 1)
        told = Counter(record.getMessage() for record in caplog.records if "cluster" in record.getMessage())
        assert told == {
            "cluster far is not swept: no route to host": 1,
            "cluster undefined cannot be opened, and its jobs are left alone: no cluster is named 'undefined'": 1,
        }
        down = False
        async with asyncio.timeout(30):
            while not (await world.store.read("far")).settled:
                await asyncio.sleep(0.05)
        assert (await world.store.read("nowhere")).submissions == ()
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def test_the_janitor_waits_an_outage_of_the_store_out(world: World) -> None:
    """Once it has answered: one that was never there, or never set up, is told at once."""
    await world.submit()
    failures = 0

    async def fail(name: str, count: int) -> None:
        nonlocal failures
        if name == "jobs" and count in (2, 4):
            failures += 1
            raise StoreUnavailable("the database is restarting")

    janitor = Janitor(Around(world.store, before=fail), {"local": world.scheduler}, period_seconds=0.1)
    work = asyncio.ensure_future(janitor.run())

    async def settled() -> bool:
        return (await world.store.read("job")).settled

    async with asyncio.timeout(30):
        while not work.done() and not (failures == 2 and await settled()):
            await asyncio.sleep(0.05)
    assert not work.done()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert world.runs() == ["1.1"]

    async def never(name: str, _: int) -> None:
        raise StoreUnavailable("no such table")

    with pytest.raises(StoreUnavailable, match="no such table"):
        await Janitor(Around(world.store, before=never), {"local": world.scheduler}).run()


def newer(document: bytes) -> bytes:
    """A document as a later release might write it."""
    return document.replace(b'"format":1', b'"format":2').replace(b'"key":', b'"colour":"green","key":', 1)


async def test_the_janitor_leaves_a_newer_format_alone_and_says_so_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Each job beside it goes on; a newer revision of it is news again."""
    strange = await world.submit(key="strange")
    await world.submit(key="other")
    row = world.store.rows[strange]
    before = row.document = newer(row.document)
    janitor = Janitor(world.store, {"local": world.scheduler})
    for _ in range(3):
        await janitor.run(once=True)
    assert row.document == before
    assert (row.owner, len(row.changes)) == (None, 1)
    assert (await world.store.read("other")).settled
    assert (world.runs("other"), world.runs("strange")) == (["1.1"], [])
    told = [record.getMessage() for record in caplog.records if "strange" in record.getMessage()]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert len(told) == 1
    assert "'strange'" in told[0]
    assert "\n" not in told[0]
    row.changes.append(row.changes[0])
    await janitor.run(once=True)
    await janitor.run(once=True)
    assert len([record for record in caplog.records if "strange" in record.getMessage()]) == 2
    row.document = before.replace(b'"format":2', b'"format":1').replace(b'"colour":"green",', b"")
    row.changes.pop()


async def test_a_record_that_turns_unreadable_in_mid_supervision_is_left_at_once(world: World) -> None:
    """A newer supervisor took it over: this one ends with one error and gives its lease up."""
    uid = await world.submit("sleep 60")
    work = asyncio.ensure_future(world.supervisor().run("job"))
    row = world.store.rows[uid]
    await world.until(lambda: any(object.state is State.RUNNING for object in row.record().objects))
    readable, row.document = row.document, newer(row.document)
    with pytest.raises(UnreadableRecord, match="'job'"):
        await asyncio.wait_for(work, 30)
    assert row.owner is None
    row.document = readable


async def test_an_object_without_a_record_stays_gated_and_is_told_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Its record was pruned, or is in another store: nothing opens it, nothing stops it, and a person can find it."""
    script = Spec(command=("sh", "-c", f"echo ran >>{world.folder / 'stray'}"))
    for number in range(12):
        uid = f"{number:08}"
        launch = Launch(key="gone", uid=uid, submission=1, attempt=1, name=object_name(uid, 1, 1), spec=script)
        await world.scheduler.start(launch, {}, datetime.now(UTC) + timedelta(seconds=30))
    await world.submit(key="other")
    janitor = Janitor(world.store, {"local": world.scheduler})
    for _ in range(3):
        await janitor.run(once=True)
    assert (await world.store.read("other")).settled
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 1
    assert object_name("00000000", 1, 1) in told[0]
    assert " and 2 more;" in told[0]
    states = {o.name: o.state for o in (await world.scheduler.everything()).objects}
    assert [states[object_name(f"{number:08}", 1, 1)] for number in range(12)] == [State.GATED] * 12
    assert world.runs("stray") == []


async def test_what_lands_after_its_record_was_pruned_never_runs(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A Start that took longer than any bound, and longer than its record was kept."""
    held_back = []

    class Late(Around):
        async def start(self, *args: Any) -> Reply:
            held_back.append(args)
            return Reply(answer=Answer.UNKNOWN, text="no answer")

    await world.submit()
    work = asyncio.ensure_future(world.supervisor(scheduler=Late(world.scheduler)).run("job"))
    await world.until(lambda: held_back)
    await world.client.cancel("job")
    await work
    assert (await world.store.prune(datetime.now(UTC) + timedelta(seconds=1))).deleted == 1
    launch, secrets, deadline = held_back[0]
    await world.scheduler.start(launch, secrets, deadline.replace(year=deadline.year + 1))
    for _ in range(2):
        await Janitor(world.store, {"local": world.scheduler}).run(once=True)
    assert [o.state for o in (await world.scheduler.everything()).objects] == [State.GATED]
    assert world.runs() == []
    assert launch.name in caplog.text


@pytest.mark.case("T23")
async def test_an_outage_of_the_scheduler_costs_no_attempt_and_no_budget(world: World) -> None:
    await world.submit("sleep 1")
    down = False

    async def answer(name: str, _: int) -> None:
        if down and name == "find":
            raise SchedulerUnavailable("no route to host")

    work = asyncio.ensure_future(world.supervisor(scheduler=Around(world.scheduler, before=answer)).run("job"))
    await world.until(world.runs)
    down = True

    async def wait() -> Any:
        return (await world.store.read("job")).wait

    async with asyncio.timeout(30):
        while (wait_shown := await wait()) is None:
            await asyncio.sleep(0.05)
    assert "no route to host" in wait_shown.text
    down = False
    record = await work
    assert record.settled
    assert record.wait is None
    assert world.runs() == ["1.1"]
    assert record.budget == ()


async def test_an_outage_of_the_store_is_waited_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch_core.supervisor.Supervisor.record_seconds", 0.1)
    await world.submit("sleep 0.5")
    failures = 0

    async def fail(name: str, count: int) -> None:
        nonlocal failures
        if name == "read" and 4 < count < 8:
            failures += 1
            raise StoreUnavailable("the database is restarting")

    record = await world.supervisor(store=Around(world.store, before=fail), lease_seconds=1).attend("job")
    assert failures == 3
    assert record.settled
    assert world.runs() == ["1.1"]


@pytest.mark.promise("O1")
async def test_one_that_attends_only_to_a_free_job_is_told_who_has_it(world: World) -> None:
    await world.submit()
    lease = await world.store.acquire(await world.store.read("job"), "first", 60.0)
    with pytest.raises(Owned, match="first"):
        await world.supervisor(name="second").attend("job", if_free=True)
    await world.store.release(lease)
    assert (await world.supervisor(name="second").attend("job", if_free=True)).settled


@pytest.mark.promise("C3")
@pytest.mark.promise("C5")
@pytest.mark.parametrize("landed", [True, False])
async def test_evidence_whose_commit_is_unknown_is_read_back(world: World, landed: bool) -> None:
    """Another commits in between, so that the evidence goes alone; then the database breaks off on its COMMIT."""
    await world.submit()
    asked = broken = 0

    async def ask(name: str, _: int) -> None:
        nonlocal asked
        if name == "find" and not asked:
            asked += 1
            await world.client.hold("job", reason="so that the revision moves")
            await world.client.release("job")

    class Breaking(Around):
        async def commit(self, record: Any, **how: Any) -> Any:
            nonlocal broken
            if how["actor"].startswith("evidence of") and not broken:
                broken += 1
                if landed:
                    await self.real.commit(record, **how)
                raise CommitUnknown("the connection broke")
            return await self.real.commit(record, **how)

    launched = asyncio.ensure_future(world.supervisor().run("job"))
    async with asyncio.timeout(30):
        while not (await world.store.read("job")).submissions:
            await asyncio.sleep(0.01)
    launched.cancel()
    with pytest.raises(asyncio.CancelledError):
        await launched
    supervisor = world.supervisor(store=Breaking(world.store), scheduler=Around(world.scheduler, before=ask))
    record = await supervisor.run("job")
    assert (asked, broken) == (1, 1)
    assert record.settled
    assert world.runs() == ["1.1"]


async def test_the_lease_is_given_up_though_the_last_reply_cannot_be_kept(world: World) -> None:
    await world.submit("sleep 60")
    started, failures = asyncio.Event(), 0

    async def start(name: str, _: int) -> None:
        if name == "start":
            started.set()
            await asyncio.sleep(0.2)

    async def fail(name: str, _: int) -> None:
        nonlocal failures
        if name == "commit" and started.is_set():
            failures += 1
            raise StoreUnavailable("the database is restarting")

    store, scheduler = Around(world.store, before=fail), Around(world.scheduler, after=start)
    work = asyncio.ensure_future(world.supervisor(store=store, scheduler=scheduler).run("job"))
    await started.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert failures == 1
    assert [listed.owner for listed in await world.store.jobs()] == [None]


class LaggingStore(MemoryStore):
    """Shows the first revision once more, after the second was committed."""

    def __init__(self, first: Record) -> None:
        super().__init__()
        self.first = first
        self.stale = False

    async def read(self, key: str, uid: str | None = None) -> Record:
        stale, self.stale = self.stale, False
        return self.first if stale else await super().read(key, uid)


class Launches:
    """A scheduler that starts what it is asked for, and whose later listings are not complete."""

    bounds = QUICK
    capabilities = Capabilities()

    def __init__(self) -> None:
        self.complete = True

    async def find(self, *_: object) -> Listing:
        return Listing(objects=(), began=EPOCH, ended=EPOCH, complete=self.complete)

    async def start(self, *_: object) -> Reply:
        self.complete = False
        return Reply(answer=Answer.DONE, text="o1")


@pytest.mark.promise("C3")
async def test_a_reply_outlives_a_pass_that_read_what_was_old() -> None:
    """A pass whose read does not know the call of a held reply decides nothing; the reply is for the next one."""
    first = replace(NEW, revision=1, commit="first")
    store, scheduler = LaggingStore(first), Launches()
    await store.create(NEW, commit="first", actor="ann")
    adapter: Any = scheduler
    loop = _Loop(Supervisor(store, adapter, lease_seconds=None), first)
    await loop.drained_pass()
    store.stale = True
    await loop.drained_pass()
    await loop.drained_pass()
    record = await store.read(NEW.key)
    assert record.submissions[0].attempts[0].reply == Reply(answer=Answer.DONE, text="o1")
