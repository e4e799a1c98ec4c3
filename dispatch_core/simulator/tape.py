"""The choice tape: every chance of a simulated history, drawn from one seed and nothing else.

One rule: the same seed gives the same choices, on every Python and with every PYTHONHASHSEED. Each actor draws from a
branch of its own, so that taking one choice back leaves the others where they are; a choice that is taken back is 0,
which everywhere means that nothing unusual happens. This room knows nothing of what is chosen.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

SPAN = 1 << 32
Place = tuple[str, int]
"""One choice: the branch it was drawn on, and its number there."""


class Tape:
    """All choices of one history."""

    def __init__(self, seed: int, calm: frozenset[Place] = frozenset()) -> None:
        self.seed = seed
        self.calm = calm
        """Choices that are taken back."""
        self.unusual: list[Place] = []
        """Choices that came out otherwise than 0 would have: what a shrinker tries to take back."""
        self._branches: list[Branch] = []

    def branch(self, name: str) -> Branch:
        branch = Branch(self, name)
        self._branches.append(branch)
        return branch

    @property
    def drawn(self) -> list[Place]:
        """All choices, of unusual ones and of lengths of time."""
        return [(branch.name, number) for branch in self._branches for number in range(1, branch.count + 1)]


class Branch:
    """The choices of one actor, one after the other."""

    def __init__(self, tape: Tape, name: str) -> None:
        self.name = name
        self._tape = tape
        self.count = 0
        """How many choices were drawn."""
        self._calm = frozenset(number for branch, number in tape.calm if branch == name)
        self._bits = random.Random(f"{tape.seed}/{name}").getrandbits

    def draw(self) -> int:
        """A whole number from 0 to SPAN - 1."""
        self.count += 1
        drawn = self._bits(32)
        return 0 if self.count in self._calm else drawn

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        if self.draw() < SPAN * (1.0 - probability):
            return False
        self._tape.unusual.append((self.name, self.count))
        return True

    def below(self, bound: int) -> int:
        """A whole number from 0 to bound - 1."""
        drawn = self.draw() * bound >> 32
        if drawn:
            self._tape.unusual.append((self.name, self.count))
        return drawn

    def among(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def some(self, options: Sequence[T], probability: float) -> tuple[T, ...]:
        """Each of them with this probability, in their order."""
        return tuple(option for option in options if self.chance(probability))

    def seconds(self, least: float, most: float) -> float:
        return least + (most - least) * (self.draw() / SPAN)
