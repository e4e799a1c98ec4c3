"""`explain` is the decision: what it says in a simulated state is what the pass that is in that state commits.

One rule: it is asked for the very record and the very listing of a pass, before the pass decides, and by the same
function that the command line calls. A pass that holds replies knows more than the record, and is not compared.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dispatch_core.adapters.contract import Job
from dispatch_core.client import explain
from dispatch_core.evidence import Bounds, Capabilities, Listing
from dispatch_core.record import Record
from dispatch_core.simulator.database import whole
from dispatch_core.simulator.trace import Committed, Event, Looked, Read
from dispatch_core.simulator.world import KEY, UID


class _As:
    """A store and a scheduler that are asked once, and show what a pass was shown."""

    def __init__(self, record: Record, listing: Listing, bounds: Bounds, capabilities: Capabilities) -> None:
        self.record = record
        self.listing = listing
        self.bounds = bounds
        self.capabilities = capabilities

    async def read(self, key: str, uid: str | None = None) -> Record:
        return self.record

    async def find(self, job: Job) -> Listing:
        return self.listing


class Explained:
    """Compares, for each actor, what was explained with what is committed. `told` counts the comparisons."""

    def __init__(self, bounds: Bounds, capabilities: Capabilities, revisions: list[Record]) -> None:
        self.told = 0
        self._bounds = bounds
        self._capabilities = capabilities
        self._revisions = revisions
        self._read: dict[str, int] = {}
        self._holds: set[str] = set()
        """Actors whose last commit allowed a call: its reply is in their next one, and nobody else knows it."""
        self._said: dict[str, Record | None] = {}

    def see(self, event: Event) -> str | None:
        """What is not as it was explained; None: nothing."""
        if type(event) is Read:
            self._read[event.actor] = event.revision
            self._said.pop(event.actor, None)
        elif type(event) is Looked and event.job and event.actor in self._read and event.actor not in self._holds:
            shown: Any = _As(
                self._revisions[self._read[event.actor] - 1], event.listing, self._bounds, self._capabilities
            )
            self._said[event.actor] = whole(explain(shown, shown, KEY, UID)).decision.record
        elif type(event) is Committed and event.before is not None and not event.late:
            return self._compare(event)
        return None

    def _compare(self, event: Committed) -> str | None:
        held = event.actor in self._holds
        self._holds.discard(event.actor)
        if _calls(event.after) != _calls(event.before):
            self._holds.add(event.actor)
        if held or event.actor not in self._said or event.by.startswith("evidence"):
            self._said.pop(event.actor, None)
            return None
        said = self._said.pop(event.actor)
        if said is None:
            return f"{event.actor} committed revision {event.after.revision}, and nothing was explained"
        if replace(said, revision=event.after.revision, commit=event.after.commit) != event.after:
            return f"{event.actor} committed revision {event.after.revision}, and another one was explained"
        self.told += 1
        return None


def _calls(record: Record | None) -> int:
    """How many calls the commits up to this one allow."""
    if record is None:
        return 0
    return sum(call.count for call in record.calls) + sum(len(s.attempts) for s in record.submissions)
