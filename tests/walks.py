"""Generated histories: sentences drawn one after the other, laws checked after each.

One rule: a walk keeps within what can be borne. At most two listings lie about being complete, nobody opens a gate by
hand, and the scheduler reruns only what runs. A law that breaks prints the walk as a history, to be pasted into
`tests/histories` as it stands.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

from hypothesis import strategies as st

from dispatch_core.next import decide
from dispatch_core.plan import AGAIN, RERUN_STANDS_FOR, Action, Cause, End, Rule, When
from dispatch_core.record import ATTEMPTS, Kind, Record, State, is_late
from dispatch_core.turn import Decision, Send
from tests.telling import Teller
from tests.world import UID, Impossible, World

ANEW = "rule again: exit, node_failure, preempted, stopped_outside -> resubmit x3"
JOBS = (
    ("job train.sh", [ANEW, "rule back: vanished -> resubmit"]),
    ("job train.sh", [ANEW, "foreign stop", "rule slow: pending 1m -> resubmit"]),
    ("job train.sh", ["requeues", "shuts", "rule again: exit, preempted -> requeue x2 after 20s"]),
    (
        "job train.sh",
        ["requeues", "rule slow: pending 1m -> requeue", "rule again: exit -> requeue", ANEW.replace("again", "anew")],
    ),
    ("job train.sh", ["unmatched manual", "rule slow: pending 1m -> hold", "rule ask: preempted -> hold", ANEW]),
    ("job train.sh", ["rule more: exit, node_failure -> resubmit after 30s", "rule fine: exit 1 -> succeed"]),
)

PASSES = (
    *(["{who} passes"] * 10),
    "{who} passes incomplete",
    "{who} passes silent",
    "{who} passes taking 15s",
    "{who} passes without {id}",
    "{who} passes, reply lost",
    *(["{who} passes, nothing arrives"] * 3),
    "{who} passes, refused not now",
    "{who} passes, late",
    "{who} restarts",
)
STEPS = ("{who} reads", "{who} lists", "{who} decides", "{who} commits", "{who} merges", "{who} sends")
LANDINGS = ("{who}'s {call} lands", "{who}'s {call} arrives", "{who}'s {call} lands and replies")
EVENTS = (
    *(["{id} runs"] * 10),
    *(["{id} ends exit 1"] * 5),
    "{id} ends completed",
    "{id} is ending node_failure",
    "{id} is ending",
    "{id} ends",
    "{id} is purged",
    "{id} is lost",
    "{id} is unrecognized",
    "{id} reruns after preempted",
    "{id} reruns",
    "{id} ignores stops",
    "{id} obeys",
    "{id} ends slowly",
    "admin stops {id}",
    "admin holds {id}",
    "admin releases {id}",
    "foreign f1 appears, running",
)
TIMES = ("time +3s", "time +11s", "time +31s", "time +61s", "time +5m")
PEOPLE = (
    *(["ann holds: wait"] * 2),
    *(["ann releases"] * 3),
    "ann looks",
    "ann cancels",
    "ann resolves succeeded",
    "ann disposes 1.1",
    "ann disposes f1",
)
SENTENCES = ("", *PASSES * 6, *STEPS * 3, *LANDINGS * 5, *EVENTS * 2, *TIMES * 3, *PEOPLE)

LIES = 2
"""Complete listings that leave something out: with a third, nobody could tell a live object from one that is gone."""

OPENED = ("a passes", "a passes")
RUNNING = (*OPENED, "a passes", "o1 runs", "a passes")
AGAIN_RUNNING = ("a passes", "time +31s", "a passes", "a passes", "a passes", "o2 runs", "a passes")
UNANSWERED = (
    *(["a passes, nothing arrives", "time +22s"] * 3),
    *("a passes", "a passes", "time +20s", "a passes", "a passes", "time +45s"),
)
BEGINNINGS = (
    (),
    OPENED,
    RUNNING,
    (*RUNNING, "o1 ends exit 1", "a passes"),
    (*RUNNING, "o1 is ending node_failure", "a passes", "a passes"),
    (*RUNNING, "o1 reruns after preempted", "a passes"),
    ("a passes, reply lost", "a's start 1.1 lands", "a passes"),
    ("a passes, nothing arrives", "time +31s", "a passes, nothing arrives", "a's start 1.1 lands"),
    ("a passes, nothing arrives", "time +31s", "a passes", "a passes", "a's start 1.1 lands"),
    ("ann holds: wait", "a passes", "a passes", "a passes", "ann releases", "a passes, nothing arrives"),
    (*OPENED, "time +61s", "a passes, nothing arrives"),
    (*RUNNING, "ann cancels", "a passes, nothing arrives"),
    (*RUNNING, "o1 ends exit 1", *AGAIN_RUNNING, "o2 ends exit 1", "a passes"),
    UNANSWERED,
    ("a passes, nothing arrives", "ann cancels", "time +31s", "a passes", "a passes"),
)

walks = st.tuples(
    st.sampled_from(JOBS),
    st.sampled_from(BEGINNINGS),
    st.lists(st.tuples(st.sampled_from(SENTENCES), st.integers(0, 3), st.integers(0, 3)), min_size=16, max_size=32),
)
"""A job, how it begins, and templates of sentences with two numbers that fill them in."""

short_walks = st.tuples(
    st.sampled_from(JOBS),
    st.sampled_from((*BEGINNINGS, ("a passes, reply lost", "a's start 1.1 lands"))),
    st.lists(st.tuples(st.sampled_from(SENTENCES), st.integers(0, 3), st.integers(0, 3)), max_size=12),
)
"""Walks that stay near to how they began."""


class Walk:
    """One generated history."""

    def __init__(self, job: tuple[str, list[str]], beginning: tuple[str, ...] = ()) -> None:
        self.teller = Teller()
        self.told: list[str] = [job[0], *(f"  {line}" for line in job[1])]
        self.teller.tell(*job)
        self.lies = 0
        self.checked = 1
        for sentence in beginning:
            self.say(sentence, 0, 0)

    @property
    def world(self) -> World:
        return self.teller.world

    def text(self) -> str:
        return "\n".join(self.told)

    def say(self, template: str, first: int, second: int) -> None:
        """Tell one sentence, if the world allows it, and check the laws."""
        sentence = self._filled(template, first, second)
        if not sentence:
            return
        try:
            lines = self.teller.tell(sentence, [])
        except Impossible:
            return
        self.told.append(sentence)
        broken = [line for line in lines if line.startswith("LAW BROKEN")]
        assert not broken, f"{broken}\n{self.text()}"
        self.check()

    def _filled(self, template: str, first: int, second: int) -> str | None:
        scheduler = self.world.scheduler
        ids, who = sorted(scheduler.things), "ab"[first % 2]
        words = {"who": who}
        if "{id}" in template:
            if not ids:
                return None
            words["id"] = ids[second % len(ids)]
            if "reruns" in template and scheduler.things[words["id"]].phase is State.ENDED:
                return None  # a run that has ended is not begun again by nobody
            if "without" in template:
                self.lies += 1
                if self.lies > LIES:
                    return None
        if "{call}" in template:
            calls = [f.name for f in self.world.flights if f.sender == who]
            if not calls:
                return None
            words["call"] = calls[-1 - second % len(calls)]
        return template.format(**words)

    # --- the laws

    def check(self) -> None:
        world = self.world
        for before, after in zip(world.revisions[self.checked - 1 :], world.revisions[self.checked :], strict=False):
            broken = [*revision_laws(before, after)]
            assert not broken, f"{broken}\n{self.text()}"
        if world.record.settled and not world.revisions[self.checked - 1].settled:
            opened = [t.id for t in world.scheduler.things.values() if t.open and is_live(t.id, world)]
            assert not opened, f"settled, and open: {opened}\n{self.text()}"
        self.checked = len(world.revisions)


def is_live(id: str, world: World) -> bool:
    thing = world.scheduler.things[id]
    return thing.name.startswith(f"dispatch-{UID}-") and thing.phase is not State.ENDED


def revision_laws(before: Record, after: Record) -> list[str]:
    """What no commit may do, whoever makes it."""
    submissions = list(zip(before.submissions, after.submissions, strict=False))
    ended = before.outcome is not None
    broken = {
        "the outcome changed": ended and before.outcome != after.outcome,
        "a submission was authorized after the outcome": ended and len(after.submissions) > len(before.submissions),
        "it is settled no more": before.settled and not after.settled,
        "an attempt was made after it was settled": before.settled and len(after.names()) > len(before.names()),
        "another object is canonical": any(old.canonical not in (None, new.canonical) for old, new in submissions),
        "there are too many attempts": any(
            sum(not is_late(attempt) for attempt in submission.attempts) > ATTEMPTS for submission in after.submissions
        ),
        "a unit came back": not {unit.key for unit in before.budget} <= {unit.key for unit in after.budget},
        "a retired object is retired no more": not retired(before) <= retired(after),
        "a call was forgotten": not {c.identity for c in before.calls} <= {c.identity for c in after.calls},
    }
    return [text for text, is_broken in broken.items() if is_broken]


def retired(record: Record) -> set[str]:
    return {object.id for object in record.objects if object.retired}


def matches_as_a_child_would(when: When, end: End) -> bool:
    """Everything that could speak against a match, one after the other, for the comparison."""
    against = [when.pending_longer_than_seconds is not None, when.no_progress_for_seconds is not None]
    against.append(end.cause == "stopped")
    if when.cause:
        names = [end.cause, *(RERUN_STANDS_FOR if end.cause == "rerun" else [])]
        against.append(not [name for name in names if name in when.cause])
    if when.exit_code:
        against.append(end.exit_code is None or end.exit_code not in when.exit_code)
    if when.signal:
        against.append(end.signal is None or end.signal not in when.signal)
    if when.message is not None:
        against.append(re.compile(when.message).search(end.message) is None)
    if when.shorter_than_seconds is not None:
        against.append(end.seconds is None or end.seconds >= when.shorter_than_seconds)
    return not any(against)


def recounted(revisions: list[Record]) -> Counter[str]:
    """The units that each rule should have spent, by how each run ended: the first that matches and is not used up.

    A unit that is spent otherwise fails.
    """
    units: Counter[str] = Counter()
    for before, after in pairwise(revisions):
        for unit in after.budget[len(before.budget) :]:
            end = ended_how(after, unit.key)
            rule = after.plan.rule(unit.rule)
            if rule is None:
                assert (unit.rule, end and end.cause) == ("dispatch:never-ran", Cause.VANISHED)
                assert units[unit.rule] < 3
            elif not rule.when.timed:
                assert end is not None, f"{unit.key} did not end"
                taken = next(r for r in after.plan.rules if left(r, units) and matches_as_a_child_would(r.when, end))
                assert taken is rule, f"{unit.key} is {taken.name}'s, not {rule.name}'s"
            else:
                assert left(rule, units)
            units[unit.rule] += 1
    return units


def left(rule: Rule, units: Counter[str]) -> bool:
    once = rule.budget is None and rule.do in (Action.RESUBMIT, Action.REQUEUE)
    return units[rule.name] < (1 if once else 10**6 if rule.budget is None else rule.budget)


def ended_how(record: Record, key: str) -> End | None:
    """How a run ended, or a submission without an object, by the record alone; None: it has not, so far as is known."""
    if key.startswith("submission/"):
        attempts = record.submissions[int(key.partition("/")[2]) - 1].attempts
        refused = any(attempt.reply and attempt.reply.answer == "refused" for attempt in attempts)
        return End(cause=Cause.REFUSED if refused else Cause.NEVER_CREATED)
    id, number, *_ = key.split("/")
    object, run = record.object(id), int(number)
    assert object is not None
    assert run <= object.run
    end = object.end_of(run)
    if end is not None and end.cause == "stopped_outside" and record.call(Kind.STOP, id, run) is not None:
        end = End(cause=Cause.STOPPED)
    if run < object.run:
        return end or End(cause=Cause.RERUN)
    if object.state is State.ENDED:
        return end or End(cause=Cause.UNRECOGNIZED)
    if object.state is State.ENDING and end is not None:
        return end
    return End(cause=Cause.VANISHED) if object.missing is not None else None


def launches(last: Record) -> tuple[int, int]:
    """How many launches and requeues were made beyond the first, and how many units or words of a person allow."""
    again = {rule.name for rule in last.plan.rules if rule.do in AGAIN} | {"dispatch:never-ran"}
    allowed = sum(unit.rule in again for unit in last.budget) + sum(
        s.why.startswith("person ") for s in last.submissions
    )
    requeued = {(call.object, call.run) for call in last.calls if call.kind == "requeue"}
    taken = {s.why for s in last.submissions}
    return len(last.submissions) - 1 + sum(f"{id}/{run}" not in taken for id, run in requeued), allowed


def settle_down(walk: Walk, decision: Decision, read: Record) -> list[str]:
    """What is asked for on one listing, decided again and again from what was just committed, with nothing sent."""
    asked: list[str] = []
    observed = walk.world.observed("a")
    for _ in range(8):
        asked += [
            repr(c.call.identity) if isinstance(c, Send) else f"{c.submission}.{c.attempt}" for c in decision.calls
        ]
        if decision.record is None:
            return asked
        read = decision.record
        decision = decide(
            read,
            type(observed)(
                record=read, listing=observed.listing, bounds=observed.bounds, capabilities=observed.capabilities
            ),
        )
    raise AssertionError(f"it does not come to rest: {decision.notes}\n{walk.text()}")
