"""A much shorter history in which the same law is broken: choices are taken back, while it still is.

One rule: every step is a run of the simulator, and the shorter history is what a seed and `Asked` say, as any other is.
What is tried, and in which order, depends on nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from dispatch_core.guards import off
from dispatch_core.simulator.history import Asked, History, Told
from dispatch_core.simulator.laws import Violation
from dispatch_core.simulator.tape import Place, Tape
from dispatch_core.simulator.trace import UNCOUNTED

MOST_RUNS = 400
"""So many histories are run at most to shorten one."""


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


class _Shrinker:
    def __init__(self, seed: int, law: str, removed: tuple[str, ...], most: int, asked: Asked) -> None:
        self.seed = seed
        self.law = law
        self.removed = removed
        self.most = most
        self.runs = 0
        self.longest = sys.maxsize
        self.asked = asked
        self.unusual: list[Place] = []
        self.drawn: list[Place] = []
        told = self._run(asked)
        if told is None:
            raise ValueError(f"seed {seed} does not break the law {law}")
        self.told = told

    def shrink(self) -> Shrunk:
        self._fewer_supervisors()
        self._fewer_choices()
        self._fewer_supervisors()
        self._rounder_times()
        return Shrunk(self.asked, self.told, self.runs)

    def _run(self, asked: Asked) -> Told | None:
        """What a history told, if it broke the law and is not longer than what is known."""
        self.runs += 1
        with off(*self.removed):
            history = History(self.seed, asked)
            history.judge.violations = marked = _Marked(history.tape)
            told = history.run()
        if self.law not in marked.unusual or length(told, self.law) > self.longest:
            return None
        self.unusual, self.drawn = marked.unusual[self.law], marked.drawn[self.law]
        self.longest = length(told, self.law)
        return told

    def _try(self, asked: Asked) -> bool:
        """Take a shorter history instead, if the law is still broken."""
        if self.runs >= self.most:
            return False
        told = self._run(asked)
        if told is None:
            return False
        self.asked, self.told = asked, told
        return True

    def _fewer_supervisors(self) -> None:
        for number in range(1, self.asked.supervisors):
            if self._try(replace(self.asked, supervisors=number)):
                return

    def _fewer_choices(self) -> None:
        """All at once, halves, quarters, and so on; single ones as long as one of them still helps."""
        size = len(self._left(self.unusual))
        while size and self.runs < self.most:
            helped = self._sweep(lambda: reversed(self.unusual), size)
            if size > 1 or not helped:
                size //= 2

    def _rounder_times(self) -> None:
        """What else was drawn, in large parts."""
        drawn = len(self._left(self.drawn))
        for parts in (1, 2, 4, 8, 16, 32, 64):
            self._sweep(lambda: self.drawn, 1 + drawn // parts)

    def _sweep(self, choices: Callable[[], Iterable[Place]], size: int) -> bool:
        """Take so many neighbours back at a time; what is left is looked up again each time, for the course changes."""
        helped, at = False, 0
        while (some := self._left(choices())[at : at + size]) and self.runs < self.most:
            if self._try(replace(self.asked, calm=self.asked.calm | frozenset(some))):
                helped = True
            else:
                at += size
        return helped

    def _left(self, places: Iterable[Place]) -> list[Place]:
        return [place for place in places if place not in self.asked.calm]
