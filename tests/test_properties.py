"""What holds in every world: laws of record and scheduler, and second, stupid implementations to compare with.

The worlds are drawn by hypothesis, always the same ones, so that a red run is red for everybody.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dispatch_core.evidence import CallReplied, Evidence, Seen, Sighting, StartReplied, is_news, merge
from dispatch_core.names import object_name
from dispatch_core.next import decide
from dispatch_core.plan import (
    AGAIN,
    Action,
    Cause,
    End,
    Plan,
    Rule,
    Spec,
    When,
    matches,
    problems,
)
from dispatch_core.record import Answer, Record, Reply, State, decode, encode
from tests.walks import Walk, launches, matches_as_a_child_would, recounted, settle_down, short_walks, walks
from tests.world import EPOCH, Lists

drawn = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=250,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

Steps = tuple[tuple[str, list[str]], tuple[str, ...], list[tuple[str, int, int]]]


def walked(steps: Steps) -> Walk:
    """A walk to its end, every law checked on the way."""
    walk = Walk(steps[0], steps[1])
    for step in steps[2]:
        walk.say(*step)
    return walk


@pytest.mark.promise("P1")
@pytest.mark.promise("P2")
@pytest.mark.promise("P4")
@pytest.mark.promise("G9")
@pytest.mark.promise("S1")
@pytest.mark.case("T8")
@given(walks)
@settings(drawn, max_examples=500)
def test_laws_hold_whatever_is_dropped_repeated_or_delayed(steps: Steps) -> None:
    """At most one gate is open, at most one run alive, and no commit undoes what a commit has done."""
    walked(steps)


@pytest.mark.promise("G3")
@given(walks)
@settings(drawn)
def test_budget_equals_its_recount(steps: Steps) -> None:
    walk = walked(steps)
    record = walk.world.record
    assert recounted(walk.world.revisions) == {unit.rule: record.used(unit.rule) for unit in record.budget}
    for rule in record.plan.rules:
        assert rule.limit is None or record.used(rule.name) <= rule.limit
    made, allowed = launches(record)
    assert made <= allowed, walk.text()


@pytest.mark.promise("R1")
@pytest.mark.promise("G3")
@given(short_walks)
@settings(drawn)
def test_a_decision_that_is_applied_twice_asks_for_nothing_new(steps: Steps) -> None:
    """On one listing, before any reply, each call is asked for once and one launch is authorized, and then it rests."""
    walk = walked(steps)
    world = walk.world
    read = world.reads("a")
    world.lists("a", Lists())
    asked = settle_down(walk, world.decides("a"), read)
    assert len(asked) == len(set(asked)), f"{asked}\n{walk.text()}"


@pytest.mark.promise("R2")
@given(short_walks)
@settings(drawn)
def test_nothing_to_do_is_asked_about_later(steps: Steps) -> None:
    """A pass that has nothing to commit and nothing to send waits for something, and not at most for a moment ago."""
    walk = walked(steps)
    world = walk.world
    for _ in range(20):
        world.reads("a")
        world.lists("a", Lists())
        decision = world.decides("a")
        if decision.record is None and not decision.calls:
            assert decision.wake_seconds > 0, f"{decision.notes}\n{walk.text()}"
            return
        world.commits("a")
    raise AssertionError(f"it does not come to rest\n{walk.text()}")


@given(short_walks)
@settings(drawn)
def test_the_order_of_a_listing_decides_nothing(steps: Steps) -> None:
    walk = Walk(steps[0], ())
    told = [(sentence, 0, 0) for sentence in steps[1]]
    for step in [*told, *steps[2]]:
        walk.say(*step)
        read = walk.world.reads("onlooker")
        listing = walk.world.lists("onlooker", Lists())
        assert listing is not None
        decision = walk.world.decides("onlooker")
        walk.world.view("onlooker").listing = replace(listing, objects=listing.objects[::-1])
        assert decide(read, walk.world.observed("onlooker")) == decision, walk.text()


@given(short_walks)
@settings(drawn)
def test_a_record_reads_back_as_it_was_written(steps: Steps) -> None:
    record = walked(steps).world.record
    assert decode(encode(record)) == record
    assert encode(decode(encode(record))) == encode(record)


# --- evidence

ANSWERS = st.builds(Reply, answer=st.sampled_from(Answer), text=st.sampled_from(["", "a", "b"]))
ENDS = st.builds(End, cause=st.sampled_from(Cause), message=st.sampled_from(["", "why"]))
TIMES = st.integers(0, 5).map(lambda seconds: EPOCH + timedelta(seconds=seconds))


@st.composite
def facts(draw: st.DrawFn, record: Record) -> Evidence:
    """Something that could be told about this record: a reply to what was asked, or a sighting of what could be."""
    kinds = ["seen", "seen", "seen", *(["start"] if record.submissions else []), *(["call"] if record.calls else [])]
    kind = draw(st.sampled_from(kinds))
    if kind == "start":
        submission = draw(st.sampled_from(record.submissions))
        number = draw(st.integers(1, 4))
        return StartReplied(submission=submission.number, attempt=number, reply=draw(ANSWERS))
    if kind == "call":
        call = draw(st.sampled_from(record.calls))
        return CallReplied(
            kind=call.kind,
            object=call.object,
            run=call.run,
            hold=call.hold,
            count=draw(st.sampled_from([call.count, call.count + 1])),
            reply=draw(ANSWERS),
        )
    known = [(object.id, object.name) for object in record.objects[:1]]
    id, name = draw(st.sampled_from([*known, ("x1", object_name(record.uid, 1, 1)), ("x2", "mangled-name")]))
    sighting = Sighting(
        id=id,
        name=name,
        key=record.key,
        state=draw(st.sampled_from(State)),
        run=draw(st.integers(1, 3)),
        hold=draw(st.booleans()),
        nodes=draw(st.sampled_from([(), ("n1",), ("n2", "n1")])),
        end=draw(st.none() | ENDS),
        earlier_ends=draw(st.sampled_from([(), ((1, End(cause=Cause.PREEMPTED)),)])),
    )
    return Seen(sighting=sighting, at=draw(TIMES))


@pytest.mark.promise("C3")
@given(short_walks, st.data())
@settings(drawn, max_examples=150)
def test_evidence_merges_in_any_order_and_any_number_of_times(steps: Steps, data: st.DataObject) -> None:
    record = walked(steps).world.record
    told = data.draw(st.lists(facts(record), min_size=2, max_size=6))
    again = data.draw(st.permutations([*told, *told[: len(told) // 2]]))
    merged = merge(record, told)
    assert merge(record, again) == merged
    assert merge(merged, again) == merged
    assert not is_news(merged, merge(merged, told))


# --- rules

GRID = [
    End(cause=cause, exit_code=code, signal=signal, message=message, seconds=seconds)
    for cause, code, signal, message, seconds in product(
        Cause, (None, 0, 1), (None, 9), ("", "disk full"), (None, 5.0, 500.0)
    )
]
SOME_CAUSES = st.lists(st.sampled_from([Cause.EXIT, Cause.NODE_FAILURE, Cause.SIGNAL, Cause.VANISHED]), max_size=2)
WHENS = st.builds(
    When,
    cause=SOME_CAUSES.map(tuple),
    exit_code=st.sampled_from([(), (1,), (0, 1)]),
    signal=st.sampled_from([(), (9,), (9, 15)]),
    message=st.sampled_from([None, "disk", "full$"]),
    shorter_than_seconds=st.sampled_from([None, 10.0, 1000.0]),
    pending_longer_than_seconds=st.sampled_from([None, None, None, None, 60.0, 90.0]),
    no_progress_for_seconds=st.sampled_from([None, None, None, 60.0]),
)


@given(WHENS, st.sampled_from(GRID))
@settings(drawn, max_examples=500)
def test_matching_agrees_with_its_oracle(when: When, end: End) -> None:
    assert matches(when, end) == matches_as_a_child_would(when, end)


@given(WHENS, WHENS, st.sampled_from(When.__struct_fields__), st.sampled_from(Action))
@settings(drawn, max_examples=600)
def test_a_rule_that_is_called_hidden_is_hidden(above: When, other: When, changed: str, do: Action) -> None:
    """Whatever would reach the lower rule, alike but for one condition, is taken by the one above it."""
    below = replace(above, **{changed: getattr(other, changed)})
    plan = Plan(rules=(Rule(name="above", when=above, do=do), Rule(name="below", when=below, do="fail")))
    hidden = any("takes all that it would" in text for _, text in problems(Spec(command=("true",)), plan))
    if not hidden:
        return
    assert do not in AGAIN
    if above.timed:
        assert do is not Action.HOLD
        assert (above.pending_longer_than_seconds or 0) <= (below.pending_longer_than_seconds or 0)
    for end in GRID:
        assert matches(above, end) or not matches(below, end)
