"""What to launch, and what to do when it ends: data that a job's owner wrote, fixed when the record is created.

One rule: rules are ordered data, the first that matches and has budget left wins, and the default has a name. This room
knows nothing of records, schedulers or clocks; `problems` finds what a person would want to be told before anything is
written.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Literal

import msgspec


class Value(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """An immutable value, strict on what it is read from.

    It is made of values, so it cannot be part of a cycle, and the garbage collector need not look at it: with tens of
    thousands of sightings in each listing, its pauses would be every job's.
    """


class Cause(StrEnum):
    """Why a run ended, never collapsed into "failed"."""

    COMPLETED = "completed"
    EXIT = "exit"
    SIGNAL = "signal"
    OUT_OF_MEMORY = "out_of_memory"
    TIME_LIMIT = "time_limit"
    DEADLINE = "deadline"
    NODE_FAILURE = "node_failure"
    PREEMPTED = "preempted"
    STOPPED = "stopped"
    STOPPED_OUTSIDE = "stopped_outside"
    CANNOT_START = "cannot_start"
    REFUSED = "refused"
    NEVER_CREATED = "never_created"
    VANISHED = "vanished"
    RERUN = "rerun"
    UNRECOGNIZED = "unrecognized"


class Action(StrEnum):
    """What a rule does."""

    RESUBMIT = "resubmit"
    REQUEUE = "requeue"
    HOLD = "hold"
    FAIL = "fail"
    SUCCEED = "succeed"


AGAIN = (Action.RESUBMIT, Action.REQUEUE)
"""The actions that start another run, and so spend budget."""

NOT_MATCHABLE = (Cause.STOPPED, Cause.RERUN)
"""Causes that no rule names: our own stop is never a failure; `rerun` is matched through what it stands for."""

RERUN_STANDS_FOR = (Cause.PREEMPTED, Cause.NODE_FAILURE)
"""What a scheduler that reran a job on its own, saying nothing, is taken to have met."""


class Secret(Value, frozen=True):
    """Where a secret is read from when an object is started; the secret itself is never in a record."""

    source: Literal["variable", "file", "connection"]
    name: str


class Spec(Value, frozen=True):
    """What one submission launches."""

    command: tuple[str, ...]
    """The program and its arguments, as they are; no shell."""
    working_directory: str | None = None
    time_limit_seconds: float | None = None
    """A run is ended by the scheduler after this long; None: the scheduler's own limit."""
    signal_before_limit: str | None = None
    """The signal (`USR1`) sent to the run `signal_before_limit_seconds` before its time limit."""
    signal_before_limit_seconds: float = 60.0
    memory_bytes: int | None = None
    queue: str | None = None
    """Partition or queue."""
    exclude: tuple[str, ...] = ()
    """Nodes that it must not run on."""
    environment: dict[str, str] = {}
    """Public: it is stored, shown and logged."""
    secret_environment: dict[str, Secret] = {}
    options: dict[str, str | int | float | bool | tuple[str, ...]] = {}
    """What only one kind of scheduler knows; its adapter checks the names."""


class Delay(Value, frozen=True):
    """How long to wait before the n-th use of a rule."""

    seconds: float = 0.0
    factor: float = 1.0
    cap_seconds: float = 86400.0
    jitter: float = 0.0
    """A fraction of the delay, 0 to 1, added by a hash: the same job and use always wait equally long."""

    def before(self, use: int, salt: str) -> float:
        """Seconds to wait before the `use`-th use (from 1) of the rule."""
        try:
            plain = min(self.seconds * self.factor ** (use - 1), self.cap_seconds)
        except OverflowError:
            plain = self.cap_seconds
        draw = int.from_bytes(hashlib.sha256(salt.encode()).digest()[:4], "big") / 2**32
        return plain * (1.0 + self.jitter * draw)


LARGEST_FACTOR = 1000
"""Of memory or time, from one submission to the next."""


class Changes(Value, frozen=True):
    """How a resubmission differs from the submission that ended."""

    memory_factor: float = 1.0
    memory_cap_bytes: int | None = None
    time_limit_factor: float = 1.0
    time_limit_cap_seconds: float | None = None
    queue: str | None = None
    exclude_nodes: bool = False
    """Exclude the nodes of the run that ended."""

    def apply(self, spec: Spec, nodes: tuple[str, ...]) -> Spec:
        """The spec of the next submission, after a run on `nodes`."""
        memory = spec.memory_bytes
        if memory is not None:
            memory = int(min(memory * self.memory_factor, 2.0**62))
            memory = memory if self.memory_cap_bytes is None else min(memory, self.memory_cap_bytes)
        limit = spec.time_limit_seconds
        if limit is not None:
            limit = limit * self.time_limit_factor
            limit = limit if self.time_limit_cap_seconds is None else min(limit, self.time_limit_cap_seconds)
        fresh = tuple(node for node in nodes if node not in spec.exclude) if self.exclude_nodes else ()
        return msgspec.structs.replace(
            spec,
            memory_bytes=memory,
            time_limit_seconds=limit,
            queue=self.queue or spec.queue,
            exclude=spec.exclude + fresh,
        )


class When(Value, frozen=True):
    """What a rule matches; every condition that is given must hold. One of the last two makes it a timed rule."""

    cause: tuple[Cause, ...] = ()
    exit_code: tuple[int, ...] = ()
    signal: tuple[int, ...] = ()
    message: str | None = None
    """A regular expression, searched in the end's message."""
    shorter_than_seconds: float | None = None
    pending_longer_than_seconds: float | None = None
    """Counted from the committed Open."""
    no_progress_for_seconds: float | None = None
    """Counted from the host time of the last progress that the listed object carries."""

    @property
    def timed(self) -> bool:
        return self.pending_longer_than_seconds is not None or self.no_progress_for_seconds is not None


class Rule(Value, frozen=True):
    """One recovery rule."""

    name: str
    when: When
    do: Action
    budget: int | None = None
    """How often it may be used; None: once for resubmit and requeue, without limit for the others."""
    delay: Delay = Delay()
    changes: Changes = Changes()

    @property
    def limit(self) -> int | None:
        return 1 if self.budget is None and self.do in AGAIN else self.budget


class Plan(Value, frozen=True):
    """What to do when a run ends, or does not."""

    rules: tuple[Rule, ...] = ()
    unmatched: Literal["expire", "manual"] = "expire"
    """An attempt that is past its deadline and call bound and that no later listing shows: never created, or for a
    person to say so."""
    foreign: Literal["report", "ignore", "stop"] = "report"
    lost_node: Literal["wait", "go", "hold"] = "wait"
    """What happens before the next run starts, while a node that was lost may still run the one before: wait until it
    answers or was down for `lost_node_seconds`; go, as the scheduler itself would; or hold for a person."""
    lost_node_seconds: float = 300.0

    @property
    def requeues(self) -> bool:
        return any(rule.do is Action.REQUEUE for rule in self.rules)

    @property
    def watches_progress(self) -> bool:
        return any(rule.when.no_progress_for_seconds is not None for rule in self.rules)

    def rule(self, name: str) -> Rule | None:
        return next((rule for rule in self.rules if rule.name == name), None)


class End(Value, frozen=True):
    """How one run ended, as the scheduler told it."""

    cause: Cause
    exit_code: int | None = None
    signal: int | None = None
    message: str = ""
    seconds: float | None = None
    """How long it ran."""
    lost_since: datetime | None = None
    """With `node_failure`: the host's time from which on a node of the run has not answered; what it ran there may
    still run. None: every node answers."""


DEFAULTS: Mapping[Cause, Action] = {
    Cause.COMPLETED: Action.SUCCEED,
    Cause.VANISHED: Action.HOLD,
    Cause.UNRECOGNIZED: Action.HOLD,
    Cause.STOPPED: Action.HOLD,
}
"""What happens when no rule matches; every other cause fails."""

NEVER_RAN = Rule(name="dispatch:never-ran", when=When(cause=(Cause.VANISHED,)), do=Action.RESUBMIT, budget=3)
"""The built-in rule for an object that is gone and was never opened: outside the user's budgets."""

NO_RULE = "dispatch:default"
"""What the story calls the default, where no rule matched or none had budget left."""


def matches(when: When, end: End) -> bool:
    """Whether a rule that is not timed matches the end of a run.

    >>> matches(When(cause=(Cause.NODE_FAILURE,)), End(cause=Cause.RERUN))
    True
    """
    causes = {end.cause, *RERUN_STANDS_FOR} if end.cause is Cause.RERUN else {end.cause}
    return (
        not when.timed
        and end.cause is not Cause.STOPPED
        and (not when.cause or not causes.isdisjoint(when.cause))
        and (not when.exit_code or end.exit_code in when.exit_code)
        and (not when.signal or end.signal in when.signal)
        and (when.message is None or re.search(when.message, end.message) is not None)
        and (when.shorter_than_seconds is None or (end.seconds is not None and end.seconds < when.shorter_than_seconds))
    )


RESERVED = "dispatch:"


def problems(spec: Spec, plan: Plan) -> list[tuple[tuple[str | int, ...], str]]:
    """What is wrong with a job: the path of the field, and one sentence. Empty: nothing."""
    return [*_spec_problems(spec), *_plan_problems(plan)]


def _spec_problems(spec: Spec) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if not spec.command or not spec.command[0]:
        yield ("spec", "command"), "the command is empty; name the program to run"
    for name in ("time_limit_seconds", "signal_before_limit_seconds", "memory_bytes"):
        value = getattr(spec, name)
        if value is not None and not 0 < value < float("inf"):
            yield ("spec", name), f"{name} is {value}; it must be above 0"
    yield from _environment_problems(spec)


def _environment_problems(spec: Spec) -> Iterator[tuple[tuple[str | int, ...], str]]:
    for field in ("environment", "secret_environment"):
        for name in getattr(spec, field):
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                yield ("spec", field, name), f"{name!r} is not a name that an environment variable can have"
            if name.startswith("DISPATCH_"):
                yield ("spec", field, name), f"{name} is set by dispatch; choose another name"
    for name in sorted(spec.environment.keys() & spec.secret_environment.keys()):
        yield ("spec", "secret_environment", name), f"{name} is in environment as well; keep one of the two"
    texts: list[tuple[tuple[str | int, ...], str]] = [
        *((("spec", "command", index), part) for index, part in enumerate(spec.command)),
        *((("spec", "environment", name), text) for name, text in spec.environment.items()),
    ]
    for path, text in texts:
        if "\0" in text:
            yield path, "it holds a NUL byte, which no command line or environment can carry"


def _plan_problems(plan: Plan) -> Iterator[tuple[tuple[str | int, ...], str]]:
    seen: dict[str, int] = {}
    for index, rule in enumerate(plan.rules):
        at: tuple[str | int, ...] = ("plan", "rules", index)
        if not rule.name or rule.name.startswith(RESERVED) or len(rule.name) > 100:
            yield (*at, "name"), f"the rule's name {rule.name!r} is empty, too long, or starts with {RESERVED!r}"
        if rule.name in seen:
            yield (*at, "name"), f"two rules are named {rule.name!r}; budgets are counted by name"
        seen[rule.name] = index
        if rule.budget is not None and rule.budget < 0:
            yield (*at, "budget"), f"the budget of {rule.name!r} is {rule.budget}; it cannot be negative"
        yield from ((at + path, text) for path, text in _rule_problems(rule))
        earlier = next((r for r in plan.rules[:index] if _leaves_nothing(r) and _covers(r.when, rule.when)), None)
        if earlier is not None:
            yield at, f"rule {rule.name!r} can never match: {earlier.name!r}, above it, takes all that it would"


def _rule_problems(rule: Rule) -> Iterator[tuple[tuple[str | int, ...], str]]:
    when, name = rule.when, rule.name
    ends = bool(when.cause or when.exit_code or when.signal or when.message or when.shorter_than_seconds is not None)
    for field in ("shorter_than_seconds", "pending_longer_than_seconds", "no_progress_for_seconds"):
        value = getattr(when, field)
        if value is not None and not 0 < value < float("inf"):
            yield ("when", field), f"{field} of {name!r} is {value}; it must be above 0"
    if not ends and not when.timed:
        yield ("when",), f"rule {name!r} has no condition; say when it applies"
    if ends and when.timed:
        yield ("when",), f"rule {name!r} can never match: it asks for an end and for a run that has not ended"
    if when.pending_longer_than_seconds is not None and when.no_progress_for_seconds is not None:
        yield ("when",), f"rule {name!r} can never match: a job is either pending or running"
    if when.no_progress_for_seconds is not None and rule.do is Action.HOLD:
        yield ("do",), f"rule {name!r} can never act: a run that has begun cannot be held"
    yield from _condition_problems(rule)
    yield from _action_problems(rule)


def _action_problems(rule: Rule) -> Iterator[tuple[tuple[str | int, ...], str]]:
    name = rule.name
    delay = rule.delay
    if delay.seconds < 0 or delay.factor < 1 or delay.cap_seconds < 0 or not 0 <= delay.jitter <= 1:
        yield ("delay",), f"the delay of {name!r} needs seconds and cap from 0, factor from 1, jitter from 0 to 1"
    if rule.do not in AGAIN and delay != Delay():
        yield ("delay",), f"rule {name!r} does {rule.do}, which has no delay"
    if rule.do is not Action.RESUBMIT and rule.changes != Changes():
        yield ("changes",), f"rule {name!r} does {rule.do}; only a resubmit can change the spec"
    if not all(0 < factor <= LARGEST_FACTOR for factor in (rule.changes.memory_factor, rule.changes.time_limit_factor)):
        yield ("changes",), f"the factors of {name!r} must be above 0, and {LARGEST_FACTOR} at most"


def _condition_problems(rule: Rule) -> Iterator[tuple[tuple[str | int, ...], str]]:
    when, name = rule.when, rule.name
    for cause in when.cause:
        if cause in NOT_MATCHABLE:
            yield ("when", "cause"), f"rule {name!r} can never match: no rule is asked about {cause!s}"
    codeless = {Cause.COMPLETED, Cause.SIGNAL, Cause.REFUSED, Cause.NEVER_CREATED}
    if when.exit_code and when.cause and set(when.cause) <= codeless:
        yield ("when", "exit_code"), f"rule {name!r} can never match: such an end has no exit code but 0"
    if when.signal and when.exit_code:
        yield ("when", "signal"), f"rule {name!r} can never match: a run ends by a signal or with an exit code"
    if Cause.COMPLETED in when.cause and rule.do is not Action.SUCCEED:
        yield ("when", "cause"), f"rule {name!r} can never act: a run that completed has succeeded"
    if when.message is not None:
        try:
            re.compile(when.message)
        except (re.error, OverflowError) as error:
            yield ("when", "message"), f"the message pattern of {name!r} is not a regular expression: {error}"


def _leaves_nothing(rule: Rule) -> bool:
    """Whether a rule takes all that it matches; a timed hold acts once a run, and what is due later still is."""
    return rule.limit is None and not (rule.when.timed and rule.do is Action.HOLD)


def _covers(above: When, below: When) -> bool:
    """Whether all that `below` matches is matched by `above`: each condition of `above` is as wide, or not there."""
    return (
        above.timed == below.timed
        and all(
            not mine or (theirs and set(theirs) <= set(mine))
            for mine, theirs in (
                (above.cause, below.cause),
                (above.exit_code, below.exit_code),
                (above.signal, below.signal),
            )
        )
        and (above.message is None or above.message == below.message)
        and (above.shorter_than_seconds is None or _as_wide(below.shorter_than_seconds, above.shorter_than_seconds))
        and _as_wide(above.pending_longer_than_seconds, below.pending_longer_than_seconds)
        and _as_wide(above.no_progress_for_seconds, below.no_progress_for_seconds)
    )


def _as_wide(low: float | None, high: float | None) -> bool:
    """Whether `low` does not exceed `high`, both given, or neither given."""
    return (low is None and high is None) if low is None or high is None else low <= high
