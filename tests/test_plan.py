"""Plans: what a person is told before anything is written, delays, and changes to a spec."""

from __future__ import annotations

import pytest

from dispatch_core.plan import (
    NEVER_RAN,
    Action,
    Cause,
    Changes,
    Delay,
    Plan,
    Rule,
    Secret,
    Spec,
    When,
    problems,
)

GOOD = Spec(command=("train.sh",))
EXIT = When(cause=(Cause.EXIT,))


def rule(when: When = EXIT, do: Action = Action.RESUBMIT, **fields: object) -> Rule:
    return Rule(name="r", when=when, do=do, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "path", "text"),
    [
        (Spec(command=()), ("command",), "the command is empty"),
        (Spec(command=("",)), ("command",), "the command is empty"),
        (Spec(command=("a",), time_limit_seconds=0), ("time_limit_seconds",), "must be above 0"),
        (Spec(command=("a",), signal_before_limit_seconds=-1), ("signal_before_limit_seconds",), "must be above 0"),
        (Spec(command=("a",), memory_bytes=-5), ("memory_bytes",), "memory_bytes is -5"),
        (Spec(command=("a",), time_limit_seconds=float("inf")), ("time_limit_seconds",), "must be above 0"),
        (Spec(command=("a",), environment={"1A": ""}), ("environment", "1A"), "not a name"),
        (Spec(command=("a",), environment={"DISPATCH_RUN": ""}), ("environment", "DISPATCH_RUN"), "set by dispatch"),
        (
            Spec(command=("a",), environment={"A": ""}, secret_environment={"A": Secret(source="variable", name="A")}),
            ("secret_environment", "A"),
            "keep one of the two",
        ),
        (Spec(command=("a", "b\0c")), ("command", 1), "NUL byte"),
        (Spec(command=("a",), environment={"A": "\0"}), ("environment", "A"), "NUL byte"),
    ],
)
def test_what_is_wrong_with_a_spec(spec: Spec, path: tuple[str | int, ...], text: str) -> None:
    found = problems(spec, Plan())
    assert [where for where, _ in found] == [("spec", *path)]
    assert text in found[0][1]


@pytest.mark.parametrize(
    ("wrong", "path", "text"),
    [
        (Rule(name="", when=EXIT, do=Action.FAIL), ("name",), "is empty, too long, or starts with"),
        (Rule(name="dispatch:mine", when=EXIT, do=Action.FAIL), ("name",), "'dispatch:'"),
        (Rule(name="x" * 101, when=EXIT, do=Action.FAIL), ("name",), "too long"),
        (rule(budget=-1), ("budget",), "cannot be negative"),
        (rule(When()), ("when",), "has no condition"),
        (rule(When(cause=(Cause.EXIT,), pending_longer_than_seconds=1)), ("when",), "a run that has not ended"),
        (rule(When(shorter_than_seconds=0)), ("when", "shorter_than_seconds"), "must be above 0"),
        (rule(When(pending_longer_than_seconds=-1)), ("when", "pending_longer_than_seconds"), "must be above 0"),
        (
            rule(When(pending_longer_than_seconds=1, no_progress_for_seconds=1)),
            ("when",),
            "either pending or running",
        ),
        (rule(When(no_progress_for_seconds=1), Action.HOLD), ("do",), "cannot be held"),
        (rule(When(cause=(Cause.STOPPED,))), ("when", "cause"), "no rule is asked about stopped"),
        (rule(When(cause=(Cause.RERUN,))), ("when", "cause"), "no rule is asked about rerun"),
        (rule(When(cause=(Cause.SIGNAL,), exit_code=(1,))), ("when", "exit_code"), "no exit code but 0"),
        (rule(When(signal=(9,), exit_code=(1,))), ("when", "signal"), "by a signal or with an exit code"),
        (rule(When(cause=(Cause.COMPLETED,))), ("when", "cause"), "has succeeded"),
        (rule(When(message="(")), ("when", "message"), "not a regular expression"),
        (rule(delay=Delay(seconds=-1)), ("delay",), "needs seconds and cap from 0"),
        (rule(delay=Delay(factor=0.5)), ("delay",), "factor from 1"),
        (rule(delay=Delay(jitter=2)), ("delay",), "jitter from 0 to 1"),
        (rule(do=Action.FAIL, delay=Delay(seconds=1)), ("delay",), "does fail, which has no delay"),
        (rule(do=Action.REQUEUE, changes=Changes(queue="big")), ("changes",), "only a resubmit"),
        (rule(changes=Changes(memory_factor=0)), ("changes",), "must be above 0"),
    ],
)
def test_what_is_wrong_with_a_rule(wrong: Rule, path: tuple[str, ...], text: str) -> None:
    found = problems(GOOD, Plan(rules=(wrong,)))
    assert [where for where, _ in found] == [("plan", "rules", 0, *path)]
    assert text in found[0][1]


def test_two_rules_of_one_name() -> None:
    found = problems(GOOD, Plan(rules=(rule(), rule(When(cause=(Cause.SIGNAL,))))))
    assert found == [(("plan", "rules", 1, "name"), "two rules are named 'r'; budgets are counted by name")]


@pytest.mark.parametrize(
    ("above", "below", "hidden"),
    [
        (When(cause=(Cause.EXIT,)), When(cause=(Cause.EXIT,), exit_code=(1,)), True),
        (When(cause=(Cause.EXIT,), exit_code=(1,)), When(cause=(Cause.EXIT,)), False),
        (When(message="a"), When(message="a", cause=(Cause.EXIT,)), True),
        (When(message="a"), When(message="b"), False),
        (When(shorter_than_seconds=60), When(shorter_than_seconds=30), True),
        (When(shorter_than_seconds=60), When(cause=(Cause.EXIT,)), False),
        (When(pending_longer_than_seconds=60), When(pending_longer_than_seconds=90), True),
        (When(pending_longer_than_seconds=60), When(no_progress_for_seconds=90), False),
        (When(no_progress_for_seconds=60), When(no_progress_for_seconds=30), False),
        (When(cause=(Cause.EXIT,)), When(pending_longer_than_seconds=60), False),
    ],
)
def test_a_rule_that_another_hides(above: When, below: When, hidden: bool) -> None:
    rules = (Rule(name="above", when=above, do=Action.FAIL), Rule(name="below", when=below, do=Action.FAIL))
    found = problems(GOOD, Plan(rules=rules))
    assert bool(found) is hidden
    if hidden:
        assert found == [
            (("plan", "rules", 1), "rule 'below' can never match: 'above', above it, takes all that it would")
        ]


def test_what_has_a_budget_hides_nothing() -> None:
    rules = (Rule(name="above", when=EXIT, do=Action.RESUBMIT), Rule(name="below", when=EXIT, do=Action.FAIL))
    assert problems(GOOD, Plan(rules=rules)) == []


def test_a_timed_hold_hides_nothing() -> None:
    """It acts once a run: what is due later is due still, when the job was let go and waits on."""
    rules = (
        Rule(name="above", when=When(pending_longer_than_seconds=60), do=Action.HOLD),
        Rule(name="below", when=When(pending_longer_than_seconds=90), do=Action.FAIL),
    )
    assert problems(GOOD, Plan(rules=rules)) == []


def test_delays_grow_to_their_cap_and_are_always_the_same() -> None:
    delay = Delay(seconds=10, factor=2, cap_seconds=60)
    assert [delay.before(use, "job") for use in (1, 2, 3, 4, 5)] == [10, 20, 40, 60, 60]
    assert Delay(seconds=10, factor=2.0, cap_seconds=60).before(10**6, "job") == 60  # too large a power for a float
    drawn = Delay(seconds=10, jitter=0.5)
    assert drawn.before(1, "job") == drawn.before(1, "job")
    assert 10 <= drawn.before(1, "job") <= 15
    assert drawn.before(1, "job") != drawn.before(1, "another job")


def test_changes_to_a_spec() -> None:
    spec = Spec(command=("a",), memory_bytes=100, time_limit_seconds=60, queue="small", exclude=("n1",))
    changed = Changes(
        memory_factor=1.5, time_limit_factor=2, time_limit_cap_seconds=90, queue="big", exclude_nodes=True
    ).apply(spec, ("n1", "n2"))
    assert (changed.memory_bytes, changed.time_limit_seconds) == (150, 90)
    assert (changed.queue, changed.exclude) == ("big", ("n1", "n2"))
    capped = Changes(memory_factor=1.5, memory_cap_bytes=120, time_limit_factor=2).apply(spec, ("n2",))
    assert (capped.memory_bytes, capped.time_limit_seconds) == (120, 120)
    assert (capped.queue, capped.exclude) == ("small", ("n1",))
    assert Changes(memory_factor=2).apply(GOOD, ()) == GOOD


def test_limits_have_names() -> None:
    assert rule().limit == 1
    assert rule(do=Action.FAIL).limit is None
    assert rule(do=Action.FAIL, budget=2).limit == 2
    plan = Plan(rules=(rule(do=Action.REQUEUE),))
    assert plan.requeues
    assert not Plan(rules=(rule(),)).requeues
    assert plan.rule("r") is plan.rules[0]
    assert plan.rule(NEVER_RAN.name) is None


def test_a_secret_is_only_named() -> None:
    """The record holds where a secret is read from; there is no field that could hold the secret itself."""
    assert set(Secret.__struct_fields__) == {"source", "name"}
