"""What a test may make go wrong, and what the server was asked.

One rule: a fault hits the requests that it names and no others, in the order in which faults were added, and as often
as it says; whether the effect happens is part of the fault and never left to chance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Fault:
    """One thing that goes wrong with a request.

    `effect` says whether, and when, the request is carried out: "before" the reply is spoilt, "late" (`seconds` after
    the client saw the connection close), or "none".
    """

    verb: str
    """create, get, list, watch, patch, update, delete, deletecollection, log."""
    plural: str = ""
    """The resource, or any."""
    name: str = ""
    """The object, or any; of a create the name in the body."""
    times: int = 1
    effect: str = "none"
    status: int = 0
    """The status of the answer; 0 closes the connection without one; None of both with `carried`."""
    retry_after: int = 0
    seconds: float = 0.0
    """How long the effect is late, or the answer slow."""
    carried: bool = False
    """The request is carried out and answered as ever, `seconds` later."""
    page: str = ""
    """Answered with this, and not by the API server: a proxy before it speaks for itself."""
    hit: int = 0
    """How often it has hit."""

    def wants(self, asked: Asked) -> bool:
        return (
            self.hit < self.times
            and self.verb == asked.verb
            and self.plural in ("", asked.plural)
            and self.name in ("", asked.name)
        )


@dataclass(frozen=True)
class Asked:
    """One request, as the server understood it."""

    verb: str
    plural: str
    namespace: str
    name: str
    query: dict[str, str]
    body: Any = None
    user: str = ""
    at: float = 0.0
    """Seconds of the loop's clock."""


@dataclass
class Faults:
    """The faults of one server; every method adds one and gives it back, so that a test can see that it hit."""

    waiting: list[Fault] = field(default_factory=list)
    silent: bool = False
    """Open watches stay open and say nothing, as over a connection that is half gone."""
    webhook_down: bool = False
    """Kueue's webhooks do not answer: every write that they guard is a 500."""
    late: set[asyncio.Task[None]] = field(default_factory=set)

    def add(self, fault: Fault) -> Fault:
        self.waiting.append(fault)
        return fault

    def lose_reply(self, verb: str, plural: str = "", name: str = "", times: int = 1) -> Fault:
        """Carried out; the connection closes without an answer."""
        return self.add(Fault(verb, plural, name, times, effect="before"))

    def lose_call(self, verb: str, plural: str = "", name: str = "", times: int = 1) -> Fault:
        """Not carried out; the connection closes without an answer."""
        return self.add(Fault(verb, plural, name, times))

    def carry_out_late(self, verb: str, plural: str = "", name: str = "", *, seconds: float, times: int = 1) -> Fault:
        """The connection closes at once, and the effect comes later."""
        return self.add(Fault(verb, plural, name, times, effect="late", seconds=seconds))

    def answer(
        self, status: int, verb: str, plural: str = "", *, times: int = 1, retry_after: int = 0, carried: bool = False
    ) -> Fault:
        """409 (a quota changed meanwhile), 429, 500, 503 or 504 instead of the answer; `carried` has the effect
        nevertheless."""
        effect = "before" if carried else "none"
        return self.add(Fault(verb, plural, "", times, effect, status, retry_after))

    def page(self, text: str, verb: str, plural: str = "", *, status: int = 200, times: int = 1) -> Fault:
        """A proxy answers by itself: nothing is carried out."""
        return self.add(Fault(verb, plural, "", times, status=status, page=text))

    def slow(self, seconds: float, verb: str, plural: str = "", times: int = 1) -> Fault:
        """Carried out and answered, later; past the request's `?timeout=` it is a 504 and nothing happens."""
        return self.add(Fault(verb, plural, "", times, seconds=seconds, carried=True))

    def next_for(self, asked: Asked) -> Fault | None:
        for fault in self._wanting(asked):
            fault.hit += 1
            return fault
        return None

    def _wanting(self, asked: Asked) -> Iterator[Fault]:
        return (fault for fault in self.waiting if fault.wants(asked))
