"""A much shorter history in which the same law is broken: choices are taken back, while it still is.

One rule: every step is a run of the simulator, and the shorter history is what a seed and `Asked` say, as any other is.
What is tried, and in which order, depends on nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from dispatch_core.guards import off
from dispatch_core.simulator.faults import Fault
from dispatch_core.simulator.history import Asked, History, Told
from dispatch_core.simulator.laws import Violation
from dispatch_core.simulator.tape import Place, Tape
from dispatch_core.simulator.trace import UNCOUNTED

MOST_RUNS = 400
"""So many histories are run at most to shorten one."""

ALONE = 100
"""So many courses are tried with one supervisor, where taking the others away did not do."""


@dataclass(frozen=True)
class Shrunk:
    """The shortest history that was found."""

    asked: Asked
    told: Told
    runs: int

    @property
    def length(self) -> int:
        return length(self.told, self.told.violations[0].law)


def length(told: Told, law: str) -> int:
    """How many events there are up to where a history breaks the law, without those that change nothing."""
    assert told.world is not None  # noqa: S101 - whoever asks has just run it
    at = next(violation.at for violation in told.violations if violation.law == law)
    return sum(event.at <= at and type(event) not in UNCOUNTED for event in told.world.trace)


def shrink(seed: int, asked: Asked, law: str, removed: tuple[str, ...] = (), most: int = MOST_RUNS) -> Shrunk:
    """The shortest history of this seed, without these guards, that breaks this law; `asked` must break it."""
    return _Shrinker(seed, law, removed, most, asked).shrink()


class _Marked(list[Violation]):
    """Violations, and with each what had been drawn by then: what comes later has no part in it."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape
        self.unusual: dict[str, list[Place]] = {}
        self.drawn: dict[str, list[Place]] = {}

    def append(self, violation: Violation) -> None:
        super().append(violation)
        self.unusual[violation.law] = list(self._tape.unusual)
        self.drawn[violation.law] = self._tape.drawn


class _Course(NamedTuple):
    """A history that breaks the law."""

    asked: Asked
    told: Told
    length: int
    unusual: list[Place]
    """What was drawn until the law was broken: what a shrinker takes back first."""
    drawn: list[Place]


class _Shrinker:
    def __init__(self, seed: int, law: str, removed: tuple[str, ...], most: int, asked: Asked) -> None:
        self.seed = seed
        self.law = law
        self.removed = removed
        self.most = most
        self.until = most
        """So many runs are left to the part that is tried now."""
        self.runs = 0
        course = self._run(asked)
        if course is None:
            raise ValueError(f"seed {seed} does not break the law {law}")
        self.first = self.best = course

    def shrink(self) -> Shrunk:
        """Taking back one choice gives another course, so that there are many ways down, and each has an end: two are
        gone, and the shorter history counts."""
        self.until = self.most * 2 // 5
        self._fewer_supervisors()
        self._fewer_choices()
        one, self.best = self.best, self.first
        self.until = self.most * 9 // 10
        if one.asked.supervisors > 1:
            self._alone()
        self._fewest_kinds()
        self._fewer_kinds()
        self._fewer_supervisors()
        self._fewer_choices()
        self.best = min(self.best, one, key=lambda course: course.length)
        self.until = self.most
        self._fewer_kinds()
        self._fewer_supervisors()
        self._fewer_choices()
        self._rounder_times()
        return Shrunk(self.best.asked, self.best.told, self.runs)

    def _run(self, asked: Asked) -> _Course | None:
        """What a history told, if it broke the law."""
        self.runs += 1
        with off(*self.removed):
            history = History(self.seed, asked)
            history.judge.violations = marked = _Marked(history.tape)
            told = history.run()
        if self.law not in marked.unusual:
            return None
        return _Course(asked, told, length(told, self.law), marked.unusual[self.law], marked.drawn[self.law])

    def _try(self, asked: Asked) -> bool:
        """Take another history instead, if the law is still broken and it is not longer."""
        if self.runs >= self.until:
            return False
        course = self._run(asked)
        if course is None or course.length > self.best.length:
            return False
        self.best = course
        return True

    def _fewer_supervisors(self) -> None:
        for number in range(1, self.best.asked.supervisors):
            if self._try(replace(self.best.asked, supervisors=number)):
                return

    def _fewest_kinds(self) -> None:
        """Only one kind of fault, or none."""
        asked, kinds = self.best.asked, self._kinds()
        for number in range(1, asked.supervisors + 1):
            for kept in ((), *((kind,) for kind in kinds)):
                self._try(replace(asked, supervisors=number, muted=frozenset(kinds).difference(kept)))

    def _fewer_kinds(self) -> None:
        """Without one kind of fault after the other: those that are left are drawn as before."""
        for kind in self._kinds():
            self._try(replace(self.best.asked, muted=self.best.asked.muted | {kind}))

    def _kinds(self) -> list[Fault]:
        """The kinds that came."""
        return [kind for kind in Fault if self.best.told.faults.get(kind) and kind not in self.best.asked.muted]

    def _fewer_choices(self) -> None:
        """All at once, halves, quarters, and so on; single ones as long as one of them still helps."""
        size = len(self._left(self.best.unusual))
        while size and self.runs < self.until:
            helped = self._sweep(lambda: reversed(self.best.unusual), size)
            if size > 1 or not helped:
                size //= 2

    def _alone(self) -> None:
        """One supervisor, and one choice taken back: each is another course, and in some the law is broken."""
        unusual = self._left(self.best.unusual)
        for place in unusual[:: 1 + len(unusual) // ALONE]:
            self._try(replace(self.best.asked, supervisors=1, calm=self.best.asked.calm | {place}))

    def _rounder_times(self) -> None:
        """What else was drawn, in large parts."""
        drawn = len(self._left(self.best.drawn))
        for parts in (1, 2, 4, 8, 16, 32, 64):
            self._sweep(lambda: self.best.drawn, 1 + drawn // parts)

    def _sweep(self, choices: Callable[[], Iterable[Place]], size: int) -> bool:
        """Take so many neighbours back at a time; what is left is looked up again each time, for the course changes."""
        helped, at = False, 0
        while (some := self._left(choices())[at : at + size]) and self.runs < self.until:
            if self._try(replace(self.best.asked, calm=self.best.asked.calm | frozenset(some))):
                helped = True
            else:
                at += size
        return helped

    def _left(self, places: Iterable[Place]) -> list[Place]:
        return [place for place in places if place not in self.best.asked.calm]
