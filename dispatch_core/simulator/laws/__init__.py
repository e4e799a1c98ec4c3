"""The laws: what must be so in every history, whatever goes wrong.

One rule: a law reads the scheduler's own history, the store's commits and the clock, and nothing else. It never asks
what `next`, `find` or a supervisor believed; import-linter holds that.
"""

from __future__ import annotations

from collections.abc import Callable

from dispatch_core.simulator.laws import closing, gates, launches, outcomes, records
from dispatch_core.simulator.laws.truth import Truth, Violation
from dispatch_core.simulator.trace import Event

__all__ = ["LAWS", "Judge", "Truth", "Violation"]

LAWS: dict[str, Callable[[Truth, Event], str | None]] = {
    **launches.LAWS,
    **gates.LAWS,
    **records.LAWS,
    **outcomes.LAWS,
    **closing.LAWS,
}
"""Each by its name: a function of what is true after an event, and the event; it says what is broken, or nothing."""


class Judge:
    """Applies every law to every event, and keeps the first breach of each."""

    def __init__(self, uid: str, call_seconds: float) -> None:
        self.truth = Truth(uid, call_seconds)
        self.violations: list[Violation] = []

    def see(self, event: Event) -> None:
        self.truth.learn(event)
        for name in _OF.get(type(event), ()):
            text = LAWS[name](self.truth, event)
            if text is not None:
                self.broken(name, text, event.at)
        self.truth.remember(event)

    def broken(self, law: str, text: str, at: float) -> None:
        if all(known.law != law for known in self.violations):
            self.violations.append(Violation(law, text, at))


ON: dict[str, tuple[type, ...]] = {**launches.ON, **gates.ON, **records.ON, **outcomes.ON, **closing.ON}
"""The kinds of event that each law looks at."""

_OF = {kind: tuple(name for name in LAWS if kind in ON[name]) for kinds in ON.values() for kind in kinds}
"""The laws that look at each kind of event."""
