"""What is launched in a simulated history, and how its runs end: specs, plans, ends, and jobs that must be refused.

One rule: every action, cause, policy and budget that a person may write is drawn here, and what `plan.problems` would
refuse never reaches a record.
"""

from __future__ import annotations

from msgspec.structs import replace

from dispatch_core.evidence import Bounds, Capabilities
from dispatch_core.plan import (
    NOT_MATCHABLE,
    Action,
    Cause,
    Changes,
    Delay,
    End,
    Plan,
    Rule,
    Secret,
    Spec,
    When,
    problems,
)
from dispatch_core.simulator.tape import Branch

GIB = 2**30
NODES = ("n1", "n2", "n3")
_ENDS_OTHERWISE = tuple(cause for cause in Cause if cause not in (*NOT_MATCHABLE, Cause.COMPLETED))

ENDS = (
    End(cause=Cause.EXIT, exit_code=1, message="it raised", seconds=3.0),
    End(cause=Cause.EXIT, exit_code=137, seconds=200.0),
    End(cause=Cause.SIGNAL, signal=9),
    End(cause=Cause.OUT_OF_MEMORY, exit_code=137),
    End(cause=Cause.TIME_LIMIT),
    End(cause=Cause.NODE_FAILURE),
    End(cause=Cause.PREEMPTED),
    End(cause=Cause.CANNOT_START, message="no such image"),
    End(cause=Cause.STOPPED_OUTSIDE),
    End(cause=Cause.DEADLINE),
    End(cause=Cause.UNRECOGNIZED, message="PHASE_OF_MOON"),
)
"""How a run may end by itself that does not complete."""

COMPLETED = End(cause=Cause.COMPLETED, exit_code=0, seconds=40.0)


def draw_bounds(tape: Branch) -> Bounds:
    return Bounds(
        call_seconds=tape.among((5.0, 10.0, 20.0, 40.0)),
        window_seconds=tape.among((15.0, 20.0)),
        absence_seconds=tape.among((30.0, 60.0)),
        repeat_seconds=10.0,
        resync_seconds=tape.among((60.0, 120.0)),
    )


def draw_capabilities(tape: Branch) -> Capabilities:
    requeues = not tape.chance(0.3)
    return Capabilities(requeues=requeues, shuts=requeues and tape.chance(0.5))


def draw_spec(tape: Branch, *, secret: bool) -> Spec:
    return Spec(
        command=("train.sh",),
        memory_bytes=tape.among((None, 16 * GIB)),
        time_limit_seconds=tape.among((None, 3600.0)),
        secret_environment={"TOKEN": Secret(source="variable", name="token")} if secret else {},
    )


_HOW_MANY = (2, 2, 3, 3, 1, 1, 4, 4, 2, 2, 3, 3, 1, 1, 2, 2, 3, 3, 1, 1, 2, 2, 0, 4)


def draw_plan(tape: Branch) -> Plan:
    """A plan that a person may write, with up to four rules."""
    plan = Plan(
        unmatched=tape.among(("expire", "expire", "manual")),
        foreign=tape.among(("report", "stop", "ignore")),
    )
    for number in range(1, 1 + tape.among(_HOW_MANY)):
        broad = number == 1 and not tape.chance(0.1)
        longer = replace(plan, rules=(*plan.rules, _broad(tape) if broad else _rule(tape, number)))
        if not problems(Spec(command=("train.sh",)), longer):
            plan = longer
    return plan


def _broad(tape: Branch) -> Rule:
    """What most people write: launch again, whatever it was."""
    do = tape.among((Action.RESUBMIT, Action.REQUEUE))
    return Rule(
        name="r1",
        when=When(cause=tape.some(_ENDS_OTHERWISE, tape.among((1.0, 0.95)))),
        do=do,
        budget=tape.among((5, 4, 3, 5, 2)),
        delay=_delay(tape),
        changes=_changes(tape) if do is Action.RESUBMIT else Changes(),
    )


def _rule(tape: Branch, number: int) -> Rule:
    do = tape.among((Action.RESUBMIT, Action.REQUEUE, Action.RESUBMIT, Action.REQUEUE, *Action))
    again = do in (Action.RESUBMIT, Action.REQUEUE)
    return Rule(
        name=f"r{number}",
        when=_when(tape),
        do=do,
        budget=tape.among((2, 3, 5, None, 0, 1, 4)),
        delay=_delay(tape) if again else Delay(),
        changes=_changes(tape) if do is Action.RESUBMIT else Changes(),
    )


def _when(tape: Branch) -> When:
    match tape.below(17):
        case 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7:
            return When(cause=tape.some(_ENDS_OTHERWISE, tape.among((0.9, 0.5, 1.0))) or (Cause.EXIT,))
        case 8:
            return When(cause=(Cause.VANISHED, Cause.NEVER_CREATED, Cause.REFUSED, Cause.NODE_FAILURE, Cause.PREEMPTED))
        case 9:
            return When(exit_code=tape.among(((1,), (137,), (1, 137))))
        case 10:
            return When(signal=(9,))
        case 11:
            return When(message=tape.among(("raised", "image", "MOON")))
        case 12:
            return When(cause=(Cause.EXIT,), shorter_than_seconds=60.0)
        case 13 | 15:
            return When(pending_longer_than_seconds=tape.among((30.0, 10.0)))
        case _:
            return When(no_progress_for_seconds=tape.among((8.0, 20.0)))


def _delay(tape: Branch) -> Delay:
    return tape.among(
        (
            Delay(),
            Delay(seconds=30.0),
            Delay(seconds=5.0, factor=2.0, cap_seconds=60.0),
            Delay(seconds=20.0, jitter=0.5),
            Delay(seconds=1.0, factor=1e300, cap_seconds=90.0),
        )
    )


def _changes(tape: Branch) -> Changes:
    return tape.among(
        (
            Changes(),
            Changes(memory_factor=1.5, memory_cap_bytes=30 * GIB),
            Changes(time_limit_factor=2.0, time_limit_cap_seconds=5000.0),
            Changes(exclude_nodes=True),
            Changes(queue="large", memory_factor=2.0, time_limit_factor=1.5),
        )
    )


_FINE = When(cause=(Cause.EXIT,))
_ANY = Rule(name="any", when=When(cause=(Cause.EXIT, Cause.SIGNAL)), do=Action.FAIL)


def _with(*rules: Rule) -> tuple[Spec, Plan]:
    return Spec(command=("train.sh",)), Plan(rules=rules)


def _rule_of(when: When = _FINE, do: Action = Action.RESUBMIT, **fields: object) -> Rule:
    return Rule(name=str(fields.pop("name", "r")), when=when, do=do, **fields)  # type: ignore[arg-type]


REFUSED: tuple[tuple[Spec, Plan], ...] = (
    (Spec(command=()), Plan()),
    (Spec(command=("train.sh",), memory_bytes=0), Plan()),
    (Spec(command=("train.sh",), time_limit_seconds=float("inf")), Plan()),
    (Spec(command=("train.sh",), environment={"A-B": "1"}), Plan()),
    (Spec(command=("train.sh",), environment={"DISPATCH_KEY": "1"}), Plan()),
    (
        Spec(
            command=("train.sh",),
            environment={"TOKEN": "1"},
            secret_environment={"TOKEN": Secret(source="variable", name="token")},
        ),
        Plan(),
    ),
    (Spec(command=("train.sh", "a\0b")), Plan()),
    (Spec(command=("train.sh",), queue="nowhere"), Plan()),
    _with(_rule_of(name="")),
    _with(_rule_of(name="dispatch:mine")),
    _with(_rule_of(), _rule_of(When(signal=(9,)))),
    _with(_rule_of(budget=-1)),
    _with(_ANY, _rule_of(When(cause=(Cause.EXIT,)))),
    _with(_rule_of(When(exit_code=(1, 2)), Action.FAIL, name="s"), _rule_of(When(exit_code=(1,)))),
    _with(_rule_of(When(signal=(9,)), Action.HOLD, name="s"), _rule_of(When(signal=(9,), message="x"))),
    _with(_rule_of(When(shorter_than_seconds=60.0), Action.FAIL, name="s"), _rule_of(When(shorter_than_seconds=30.0))),
    _with(
        _rule_of(When(pending_longer_than_seconds=10.0), Action.FAIL, name="s"),
        _rule_of(When(pending_longer_than_seconds=30.0)),
    ),
    _with(_rule_of(When(shorter_than_seconds=0.0))),
    _with(_rule_of(When())),
    _with(_rule_of(When(cause=(Cause.EXIT,), pending_longer_than_seconds=5.0))),
    _with(_rule_of(When(pending_longer_than_seconds=5.0, no_progress_for_seconds=5.0))),
    _with(_rule_of(When(no_progress_for_seconds=5.0), Action.HOLD)),
    _with(_rule_of(When(cause=(Cause.RERUN,)))),
    _with(_rule_of(When(cause=(Cause.SIGNAL,), exit_code=(1,)))),
    _with(_rule_of(When(signal=(9,), exit_code=(1,)))),
    _with(_rule_of(When(cause=(Cause.COMPLETED,)))),
    _with(_rule_of(When(message="("))),
    _with(_rule_of(delay=Delay(jitter=2.0))),
    _with(_rule_of(_FINE, Action.FAIL, delay=Delay(seconds=5.0))),
    _with(_rule_of(_FINE, Action.FAIL, changes=Changes(memory_factor=2.0))),
    _with(_rule_of(changes=Changes(memory_factor=0.0))),
)
"""Jobs that nobody may submit, one for each thing that can be wrong with one."""
