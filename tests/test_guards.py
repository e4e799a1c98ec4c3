"""Every guard of the decision code has a name, can be taken away, and is missed when it is."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dispatch_core import ask, find, gate
from dispatch_core.errors import BadInput, DispatchError
from dispatch_core.evidence import Bounds, Capabilities, Listing
from dispatch_core.guards import GUARDS, Guard, built_in, off
from dispatch_core.record import Answer, Record, Reply
from dispatch_core.stores.memory import MemoryStore
from dispatch_core.supervisor import Supervisor
from tests.promises import CASES, PROMISES
from tests.telling import retold
from tests.test_ask import LAUNCHED, NEW
from tests.test_next import test_our_own_stop_without_a_purpose_is_left_to_a_person as our_own_stop
from tests.world import EPOCH

HISTORIES = Path(__file__).parent / "histories"

# By name, with the promises and cases that each carries.
FIRST_LINE = {
    "absence_rule": "C4",
    "alive_again_is_stopped": "G8 G9",
    "budget_key_used_once": "G3",
    "cancelled_once": "X4 P2",
    "canonical_committed_once": "G6",
    "commit_against_revision": "C1",
    "completed_newest_run_first": "T41",
    "deadline_committed_before_call": "L1",
    "earlier_runs_judged_first": "X3",
    "earlier_submissions_over": "G8 G9",
    "evidence_never_moves_back": "C3",
    "expired_after_call_bound": "L2",
    "expiry_by_listing_beginning": "L5",
    "foreign_by_attempt": "S1",
    "foreign_by_uid": "S1",
    "gone_by_absence_rule": "C4",
    "held_run_rerun": "G8",
    "hold_on_before_open": "G8",
    "host_refuses_after_deadline": "L1",
    "identity_checked_on_host": "T27 L1",
    "incomplete_chooses_nothing": "C4 G6",
    "incomplete_misses_nothing": "C4",
    "incomplete_opens_nothing": "C4",
    "incomplete_retires_nothing": "C4",
    "incomplete_settles_nothing": "C4 S1",
    "incomplete_starts_nothing": "C4",
    "incomplete_submits_nothing": "C4",
    "intent_carried_out_whatever_the_end": "G3",
    "late_is_not_refused": "L1 G5",
    "listing_own_word": "S1",
    "never_created_spans_absence": "S1 P3",
    "no_authorization_after_outcome": "P2",
    "no_request_after_outcome": "P2",
    "number_committed_before_start": "G4 R1",
    "open_committed_first": "X3",
    "open_not_sent_if_revision_moved": "X3",
    "persons_word_where_asked": "C2",
    "purged_is_resubmitted": "S1",
    "release_unexpired_keeps_gate_shut": "L3 G8",
    "requeue_comes_back_gated": "G1 G8 X3",
    "run_checked_on_host": "L1",
    "settle_spans_absence": "S1 P3",
    "settle_waits_for_every_attempt": "S1 P3",
    "settle_waits_for_every_object": "S1",
    "settle_waits_for_foreign": "S1",
    "settle_waits_for_unmatched": "S1",
    "stop_never_names_canonical": "G7",
    "three_attempts": "G5",
    "unknown_commit_read_back": "C5",
    "unrecognized_decides_nothing": "T28",
    "vanished_drops_the_intent": "S1",
}

# Hidden by others, or for liveness.
SECOND_LINE = {
    "a_late_attempt_stays_late": "G5",
    "absence_after_last_call_expired": "C4",
    "absence_counted_from_second_listing": "C4",
    "absence_in_three_listings": "C4",
    "absent_attempt_proves_nothing": "S1 P3",
    "absent_object_proves_nothing": "S1",
    "alive_starts_the_count_again": "S1",
    "all_retired_before_open": "G8",
    "any_sighting_starts_again": "C4",
    "begun_run_is_not_opened_again": "G8 P1",
    "canonical_from_unretired": "G6",
    "canonical_is_never_retired": "G7",
    "clear_begins_where_settled": "S1",
    "clear_starts_again": "S1",
    "created_and_lost": "G5",
    "decisions_carry_the_lease": "C2",
    "disposed_only_without_object": "S1",
    "earlier_intents_carried_out_first": "X3",
    "doubled_start_proves_nothing": "S1 P3",
    "ending_decides_little": "G9",
    "gate_shut_behind_the_run": "G1",
    "gate_waits_for_requeue_expiry": "L4",
    "gone_against_revision_read_before": "C4 C1",
    "gone_earlier_submission": "G8",
    "judged_only_while_newest": "G3",
    "late_is_not_counted": "G5",
    "late_launch_after_settlement": "S2",
    "later_listing_undoes_the_word": "G8",
    "listing_begun_after_read": "C4 C1",
    "lost_node_may_still_run": "G9",
    "manual_attempts": "S1",
    "moved_back_before_the_outcome": "C3",
    "never_created_after_all_attempts": "G5",
    "never_created_after_expiry": "S1",
    "new_hold_after_old_calls_expired": "L3",
    "no_requeue_before_the_end": "G1",
    "no_requeue_while_unexpired": "L1",
    "nothing_opened_beside_a_new_submission": "G8",
    "only_known_failures_judged_early": "T41 T28",
    "only_timed_intents_stop": "G3",
    "open_before_the_outcome": "X3",
    "over_in_its_highest_run": "G8",
    "own_stop_fires_no_rule": "T41",
    "persons_word_against_revision_shown": "C2",
    "refused_requeue_is_resubmitted": "S1",
    "release_only_our_hold": "G2",
    "requeued_may_be_back": "L4 G8",
    "requeued_may_have_run": "X3",
    "resubmit_beside_a_rerun": "G3",
    "retired_all_gone_before_open": "G8",
    "retired_once_chosen": "G7",
    "second_stop_after_requeue_expiry": "X4",
    "second_stop_is_answered": "X4",
    "seen_open_may_have_run": "X3",
    "settle_waits_for_requeue_expiry": "L4 S1",
    "sole_call": "X3",
    "start_repeated_after_its_deadline": "G5",
    "unexplained_stop_waits": "T41",
    "unrecognized_state_is_said": "T28",
    "vanished_and_listed_again": "G3",
}

BUILT_IN = {"listing_begun_after_read", "gone_against_revision_read_before"}


class OneStore(MemoryStore):
    """A store in which somebody else commits just before each commit of a supervisor."""

    async def commit(self, record: Record, **how: Any) -> Record:
        newest = await self.read(record.key)
        other = {**how, "against": newest.revision, "commit": f"other{newest.revision}", "lease": None}
        await super().commit(replace(newest, wait=None), **other)
        return await super().commit(record, **how)


class EmptyScheduler:
    """Lists nothing, and counts what is asked of it."""

    bounds = Bounds(call_seconds=1, window_seconds=1)
    capabilities = Capabilities()

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    async def find(self, *_: object) -> Listing:
        return Listing(objects=(), began=EPOCH, ended=EPOCH)

    async def start(self, *_: object) -> Reply:
        self.asked["start"] += 1
        return Reply(answer=Answer.UNKNOWN)

    async def stop_job(self, *_: object) -> Reply:
        self.asked["stop_job"] += 1
        return Reply(answer=Answer.UNKNOWN)


async def one_pass(record: Record) -> Counter[str]:
    """What a pass asks of the scheduler if its commit is refused."""
    store, scheduler = OneStore(), EmptyScheduler()
    await store.create(record, commit="first", actor="ann")
    adapter: Any = scheduler
    await Supervisor(store, adapter, lease_seconds=None).sweep(await store.read(record.key))
    return scheduler.asked


# Not in the histories' power: those of the real supervisor's loop, and what two other guards hide together.
SHOWN_HERE = {
    "number_committed_before_start": "test_a_refused_commit_allows_no_call",
    "deadline_committed_before_call": "test_a_refused_commit_allows_no_call",
    "own_stop_fires_no_rule": "test_our_own_stop_is_told_apart",
    "unexplained_stop_waits": "test_our_own_stop_is_told_apart",
}


def told(name: str, *without: str) -> str:
    """A history's steps without some guards; a record that cannot be made ends it."""
    with off(*without):
        try:
            return retold(HISTORIES / f"{name}.txt")
        except ValueError as broken:
            return f"LAW BROKEN: {broken}"


def test_the_registry_is_this_list() -> None:
    assert {guard.name: guard.promise for guard in GUARDS.values() if guard.line == 1} == FIRST_LINE
    assert {guard.name: guard.promise for guard in GUARDS.values() if guard.line == 2} == SECOND_LINE
    assert {guard.name for guard in GUARDS.values() if guard.function is None} == BUILT_IN
    named = {number for guard in GUARDS.values() for number in guard.promise.split()}
    assert named <= {*PROMISES, *CASES}


@pytest.mark.parametrize("guard", [pytest.param(guard, id=guard.name) for guard in GUARDS.values()])
def test_its_history_shows_it(guard: Guard) -> None:
    """Without it the history takes another course; with its pair off, without it another than with the pair alone."""
    assert (HISTORIES / f"{guard.history}.txt").exists()
    if guard.name in BUILT_IN or guard.name in SHOWN_HERE:
        assert SHOWN_HERE.get(guard.name, "test_the_registry_is_this_list") in globals()
    elif guard.pair:
        assert told(guard.history, guard.pair, guard.name) != told(guard.history, guard.pair)
    else:
        assert told(guard.history, guard.name) != told(guard.history)
    assert told(guard.history) == (HISTORIES / f"{guard.history}.txt").read_text(), "nothing is left behind"


@pytest.mark.parametrize(
    "guard", [pytest.param(guard, id=guard.name) for guard in GUARDS.values() if guard.function is not None]
)
def test_what_stands_in_for_it_takes_the_same_arguments(guard: Guard) -> None:
    assert guard.function is not None
    assert not inspect.iscoroutinefunction(guard.function)
    assert guard.function.__code__.co_freevars == ()
    places = [object()] * len(inspect.signature(guard.function).parameters)
    if callable(guard.without):
        inspect.signature(guard.without).bind(*places)
        assert guard.without.__code__.co_freevars == ()
        return
    with off(guard.name):
        assert guard.function(*places) is guard.without


@pytest.mark.promise("G4")
@pytest.mark.promise("L1")
@pytest.mark.parametrize(
    ("name", "record", "call"),
    [
        ("number_committed_before_start", NEW, "start"),
        ("deadline_committed_before_call", ask.cancel(LAUNCHED, "ann", EPOCH), "stop_job"),
    ],
)
async def test_a_refused_commit_allows_no_call(name: str, record: Record, call: str) -> None:
    assert await one_pass(record) == {}
    with off(name):
        assert await one_pass(record) == {call: 1}


@pytest.mark.case("T41")
@pytest.mark.parametrize("name", ["own_stop_fires_no_rule", "unexplained_stop_waits"])
def test_our_own_stop_is_told_apart(name: str) -> None:
    our_own_stop()
    with off(name), pytest.raises(AssertionError):
        our_own_stop()


def test_a_removed_condition_is_seen_wherever_it_is_asked() -> None:
    asked = gate._is_sole
    with off("all_retired_before_open"):
        assert asked(["o2"])
        assert gate._is_sole is asked
    assert not asked(["o2"])


def test_an_unknown_name_is_refused_in_one_line() -> None:
    with pytest.raises(BadInput, match=r"^there is no guard 'gate'; the guards are: [a-z_, ]+$"), off("gate"):
        pass


def test_nothing_is_left_behind_after_an_error() -> None:
    expiry: Callable[..., object] = find.Observed.expiry
    before = expiry.__code__
    with pytest.raises(DispatchError), off("expired_after_call_bound", "expiry_by_listing_beginning"):
        raise DispatchError("changed" if expiry.__code__ is not before else "")
    assert expiry.__code__ is before


def test_nothing_is_taken_away_where_one_name_is_unknown() -> None:
    with pytest.raises(BadInput), off("all_retired_before_open", "gate"):
        pass
    assert not gate._is_sole(["o2"])


def test_what_is_no_condition_cannot_be_taken_away() -> None:
    with pytest.raises(BadInput, match="how the code is built"), off("listing_begun_after_read"):
        pass


def test_a_name_is_given_once() -> None:
    with pytest.raises(ValueError, match="two guards have the name sole_call"):
        built_in("sole_call", promise="X3")
