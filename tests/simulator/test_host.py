"""The simulated host, its listings and the store's line, with faults switched on by hand."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from msgspec.structs import replace

from dispatch_core.adapters.contract import Job, Launch, Target
from dispatch_core.errors import CommitUnknown, DispatchError, SchedulerUnavailable, StoreUnavailable
from dispatch_core.evidence import Bounds, Capabilities
from dispatch_core.plan import Cause, End, Plan, Spec
from dispatch_core.reasons import Reason
from dispatch_core.record import Answer, Mark, Record, Reply, State, Wait
from dispatch_core.simulator.database import Database
from dispatch_core.simulator.faults import Fault, Faults
from dispatch_core.simulator.host import Connection
from dispatch_core.simulator.moments import Moments
from dispatch_core.simulator.tape import Tape
from dispatch_core.simulator.trace import Arrived, Committed, Event, Looked, Made, Refused
from dispatch_core.simulator.world import KEY, UID, World
from tests.world import EPOCH

BOUNDS = Bounds(call_seconds=10.0, window_seconds=20.0, absence_seconds=60.0)
SEEDS = range(40)
NAME = f"dispatch-{UID}-1-1"
SPEC = Spec(command=("train.sh",))
RECORD = Record(key=KEY, uid=UID, scheduler="cluster", spec=SPEC, plan=Plan())


class Chosen(Faults):
    """These faults, each wherever it could strike."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__(Tape(0).branch("swarm"), ())
        self._rates = dict.fromkeys(faults, 1.0)


def world_of(*faults: Fault, seed: int = 0) -> World:
    return World(Tape(seed), Chosen(*faults), BOUNDS, Capabilities(requeues=True), lambda event: None)


def ask(world: World, work: Callable[[], Coroutine[Any, Any, Any]], within: float = 3000.0) -> Any:
    """What an actor got: a value, an error of ours, or None where it hears nothing."""
    got: list[Any] = []

    async def asks() -> None:
        try:
            got.append(await work())
        except (DispatchError, OSError) as error:
            got.append(error)

    world.begin(world.being("a"), asks, lambda why: None)
    world.clock.run_until(lambda: False, world.now + within)
    return got[0] if got else None


def passes(world: World, seconds: float) -> None:
    until = world.now + seconds
    world.clock.at(until, lambda: None)
    world.clock.run_until(lambda: False, until)


def told(world: World, kind: type[Event]) -> list[Any]:
    return [event for event in world.trace if type(event) is kind]


def start(world: World) -> Any:
    launch = Launch(key=KEY, uid=UID, submission=1, attempt=1, name=NAME, spec=SPEC)
    connection = Connection(world, world.being("a"))
    deadline = world.host_now() + (BOUNDS.window_seconds * (EPOCH.resolution * 1_000_000))
    return ask(world, lambda: connection.start(launch, {}, deadline))


def hold(world: World) -> Any:
    thing = next(iter(world.scheduler.things.values()), None) or world.scheduler.make(NAME)
    target = Target(id=thing.id, name=thing.name, run=thing.run)
    connection = Connection(world, world.being("a"))
    deadline = world.host_now() + (BOUNDS.window_seconds * (EPOCH.resolution * 1_000_000))
    return ask(world, lambda: connection.hold(target, deadline))


# --- calls


def test_an_undisturbed_call_is_answered() -> None:
    world = world_of()
    assert start(world) == Reply(answer=Answer.DONE, text="o1")
    assert hold(world).answer is Answer.DONE
    assert world.scheduler.thing("o1").hold


def test_a_lost_call_has_no_effect_and_no_reply() -> None:
    world = world_of(Fault.CALL_LOST)
    assert start(world) is None
    assert told(world, Arrived) == told(world, Made) == []


def test_a_lost_reply_leaves_the_effect() -> None:
    world = world_of(Fault.REPLY_LOST)
    assert start(world) is None
    assert len(told(world, Made)) == 1
    assert world.faults.steps == {"reply_lost after": 1}


def test_a_reply_is_lost_of_what_did_nothing_too() -> None:
    world = world_of(Fault.REPLY_LOST, Fault.CALL_REFUSED)
    assert start(world) is None
    assert told(world, Made) == []
    assert world.faults.steps == {"reply_lost before": 1}


def test_a_broken_reply_leaves_the_effect() -> None:
    world = world_of(Fault.REPLY_BROKEN)
    assert isinstance(start(world), OSError)
    assert len(told(world, Made)) == 1


def test_a_refused_call_has_no_effect() -> None:
    world = world_of(Fault.CALL_REFUSED)
    assert start(world).answer is Answer.REFUSED
    assert told(world, Made) == []


def test_a_late_call_has_no_effect_and_is_told_so() -> None:
    for seed in SEEDS:
        world = world_of(Fault.CALL_LATE, seed=seed)
        assert start(world).answer is Answer.LATE
        assert told(world, Made) == []


def test_a_silent_scheduler_hears_nothing() -> None:
    world = world_of()
    world.silent_until = 100.0
    assert start(world) is None
    assert told(world, Arrived) == []


def test_a_doubled_call_arrives_twice() -> None:
    for seed in SEEDS:
        world = world_of(Fault.CALL_DOUBLED, seed=seed)
        start(world)
        first, second = told(world, Arrived)
        assert first.sent == second.sent
        assert len(told(world, Made)) == sum(arrived.reply.answer is Answer.DONE for arrived in (first, second))


@pytest.mark.parametrize("call", [start, hold])
def test_an_effect_is_never_later_than_the_bound(call: Callable[[World], Any]) -> None:
    for seed in SEEDS:
        world = world_of(Fault.EFFECT_LATE, Fault.CALL_DOUBLED, seed=seed)
        call(world)
        done = [arrived for arrived in told(world, Arrived) if arrived.reply.answer is Answer.DONE]
        assert done
        for arrived in done:
            assert not arrived.beyond
            assert arrived.at <= (arrived.sent.deadline - EPOCH).total_seconds() + BOUNDS.call_seconds


def test_only_a_start_takes_effect_beyond_the_bound() -> None:
    for seed in SEEDS:
        world = world_of(Fault.START_BEYOND_BOUND, seed=seed)
        start(world)
        assert [made.beyond for made in told(world, Made)] == [True]
        hold(world)
        assert [arrived.beyond for arrived in told(world, Arrived)] == [True, False]


def test_an_ignored_stop_is_answered_and_still_compared() -> None:
    world = world_of(Fault.STOP_IGNORED)
    thing = world.scheduler.make(NAME)
    connection = Connection(world, world.being("a"))
    for run, answer in ((1, Answer.DONE), (2, Answer.REFUSED)):
        target = Target(id=thing.id, name=thing.name, run=run)
        reply = ask(world, lambda target=target: connection.stop(target, world.host_now() + EPOCH.resolution * 10**7))
        assert reply.answer is answer
    assert thing.alive
    assert not thing.stubborn


# --- listings


def test_what_is_not_accounted_for_counts_once_a_listing_leaves_it_out() -> None:
    world = world_of()
    thing = world.scheduler.make(NAME)
    world.scheduler.accounts_for_nothing(thing)
    look(world)
    assert world.faults.counts[Fault.UNACCOUNTED] == 0
    world.scheduler.holds(thing, False)
    thing.phase = State.RUNNING
    world.scheduler.reruns(thing.id, End(cause=Cause.PREEMPTED))
    assert world.faults.counts[Fault.UNACCOUNTED] == 0, "nobody was told anything"
    look(world)
    look(world)
    assert world.faults.counts[Fault.UNACCOUNTED] == 1


def look(world: World, after: float = 0.0) -> Any:
    connection = Connection(world, world.being("a"))
    passes(world, after)
    return ask(world, lambda: connection.find(Job.of(RECORD)), 60.0)


def test_a_listing_shows_one_moment_between_its_beginning_and_its_end() -> None:
    for seed in SEEDS:
        world = world_of(Fault.FIND_SLOW, seed=seed)
        thing = world.scheduler.make(NAME)
        for number in range(1, 100):
            world.clock.at(0.5 * number, world.scheduler.holds, thing, number % 2 == 1)
        listing = look(world)
        looked = told(world, Looked)[0]
        assert looked.began <= looked.taken <= (listing.ended - EPOCH).total_seconds()
        assert listing.began == EPOCH + EPOCH.resolution * round(looked.began * 1e6)
        assert listing.objects[0].hold is (int(looked.taken / 0.5) % 2 == 1)


def test_a_listing_that_fails_shows_nothing() -> None:
    assert isinstance(look(world_of(Fault.FIND_FAILS)), SchedulerUnavailable)


def test_an_incomplete_listing_says_so() -> None:
    world = world_of(Fault.FIND_INCOMPLETE)
    world.scheduler.make(NAME)
    assert not look(world).complete


@pytest.mark.parametrize("fault", [Fault.FIND_EMPTY, Fault.FIND_HIDES])
def test_a_lie_never_lasts_as_long_as_the_absence_rule_spans(fault: Fault) -> None:
    for seed in SEEDS:
        world = world_of(seed=seed)
        world.revisions.append(RECORD)
        world.scheduler.make(NAME)
        moments = Moments(world, world.tape.branch("moments"), 100.0, ("a",), lambda tape: False)
        moments._happen(fault)
        assert world.lie is not None
        began, ended, _ = world.lie
        assert 0.0 < ended - began < BOUNDS.absence_seconds
        assert look(world).objects == ()
        moments._happen(fault)  # while one lasts, there is no other
        assert world.lie[:2] == (began, ended)
        assert len(look(world, ended - world.now).objects) == 1


def test_nothing_lies_again_while_an_absence_is_counted() -> None:
    world = world_of()
    world.revisions.append(replace(RECORD, clear=Mark(first=EPOCH)))
    world.lie = (0.0, 1.0, None)
    passes(world, 5.0)
    Moments(world, world.tape.branch("moments"), 100.0, ("a",), lambda tape: False)._happen(Fault.FIND_EMPTY)
    assert world.lie == (0.0, 1.0, None)


# --- the store


def created(world: World) -> Database:
    """A store with the record at revision 2."""
    database = Database(world, world.being("a"))

    async def creates() -> None:
        record = await database.create(RECORD, commit="c1", actor="person ann")
        await database.commit(record, against=1, commit="c2", actor="a", lines=())

    rates, world.faults._rates = world.faults._rates, {}
    ask(world, creates, 10.0)
    world.faults._rates = rates
    assert world.record is not None
    return database


def commit(world: World, database: Database, commit: str = "c3") -> Any:
    changed = replace(world.revisions[1], clear=Mark(first=EPOCH))
    return ask(world, lambda: database.commit(changed, against=2, commit=commit, actor="a", lines=()), 60.0)


def test_a_wrong_clock_counts_once_its_time_is_written_down() -> None:
    world = world_of()
    database = created(world)
    being = world.being("a")
    being.clock_off = 300.0
    since = world.own_now(being)
    assert commit(world, database).revision == 3
    assert world.faults.counts[Fault.CLOCK_OFF] == 0
    world.revisions[-1] = replace(world.revisions[-1], wait=Wait(reason=Reason.UNREACHABLE, text="", since=since))
    ask(world, lambda: database.commit(world.revisions[-1], against=3, commit="c4", actor="a", lines=()))
    assert world.faults.counts[Fault.CLOCK_OFF] == 1


def test_a_refused_commit_left_nothing() -> None:
    for fault in (Fault.COMMIT_REFUSED, Fault.STORE_FAILS):
        world = world_of(fault)
        assert isinstance(commit(world, created(world)), StoreUnavailable)
        assert len(world.revisions) == len(told(world, Committed)) == 2
        assert [event.why for event in told(world, Refused)] == ["StoreUnavailable"]


def test_a_repeated_commit_landed_once() -> None:
    for seed in SEEDS:
        world = world_of(Fault.COMMIT_REPEATED, seed=seed)
        assert commit(world, created(world)).revision == 3
        assert [record.commit for record in world.revisions] == ["c1", "c2", "c3"]


def test_a_commit_that_breaks_off_and_cannot_be_repeated_is_unknown() -> None:
    landed = set()
    for seed in SEEDS:
        world = world_of(Fault.COMMIT_REPEATED, Fault.STORE_FAILS, seed=seed)
        assert isinstance(commit(world, created(world)), CommitUnknown)
        landed.add(len(world.revisions))
    assert landed == {2, 3}


def test_an_unknown_commit_landed_or_did_not() -> None:
    landed = set()
    for seed in SEEDS:
        world = world_of(Fault.COMMIT_UNKNOWN, seed=seed)
        assert isinstance(commit(world, created(world)), CommitUnknown)
        landed.add(len(world.revisions))
    assert landed == {2, 3}


def test_a_late_commit_lands_after_it_was_given_up() -> None:
    world = world_of(Fault.COMMIT_LATE)
    assert isinstance(commit(world, created(world)), CommitUnknown)
    assert told(world, Committed)[-1].at > told(world, Refused)[-1].at
    assert [record.commit for record in world.revisions] == ["c1", "c2", "c3"]


def test_a_stale_read_shows_what_was_and_never_what_will_be() -> None:
    for seed in SEEDS:
        world = world_of(Fault.STALE_READ, seed=seed)
        database = created(world)
        record = ask(world, lambda database=database: database.read(KEY, UID), 10.0)
        assert record in world.revisions[:-1]
        assert world.being("a").voice.read == record.revision < len(world.revisions)


def test_a_store_that_is_down_answers_nothing() -> None:
    world = world_of()
    database = created(world)
    world.down_until = world.now + 100.0
    assert isinstance(commit(world, database), StoreUnavailable)
    assert len(world.revisions) == 2


def test_a_state_is_shown_as_the_scheduler_has_it() -> None:
    world = world_of()
    world.scheduler.make(NAME)
    assert [sighting.state for sighting in look(world).objects] == [State.GATED]
