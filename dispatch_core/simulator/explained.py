"""`explain` is the decision: what it says in a simulated state is what the pass that is in that state does.

One rule: it is asked for the very record and the very listing of a pass, before the pass decides, and by the same
function that the command line calls. Compared are what the pass commits, the calls that it sends, and that it does
neither where nothing is to be done; then a reason must be said. A pass that holds replies knows more than the record,
and is not compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from dispatch_core.adapters.contract import Job, Log, Piece, Target
from dispatch_core.client import explain
from dispatch_core.evidence import Bounds, Capabilities, Listing
from dispatch_core.record import Kind, Record
from dispatch_core.simulator.database import whole
from dispatch_core.simulator.trace import (
    Acknowledged,
    Committed,
    Event,
    Hindered,
    Looked,
    Read,
    Refused,
    Sent,
    Stopped,
    Unanswered,
    Withheld,
)
from dispatch_core.simulator.world import KEY, UID
from dispatch_core.turn import Decision, Send, Start


class _As:
    """A store and a scheduler that are asked once, and show what a pass was shown."""

    def __init__(self, record: Record, listing: Listing, bounds: Bounds, capabilities: Capabilities) -> None:
        self.record = record
        self.listing = listing
        self.bounds = bounds
        self.capabilities = capabilities

    async def read(self, key: str, uid: str | None = None) -> Record:
        return self.record

    async def read_log(self, target: Target, stream: int, begin: int, length: int) -> Piece:
        return Piece(log=Log.NOT_BEGUN)

    async def find(self, job: Job) -> Listing:
        return self.listing


@dataclass
class _Pass:
    """What was explained of one pass, and how far it has come."""

    said: Decision
    tried: bool = False
    """It has tried to commit."""
    made: int = 0
    """The revision that its commit made; 0: none that anybody knows of."""
    landed_at: float | None = None
    """When it was told so."""
    reread: Read | None = None
    """The first read after that: the one before an Open is sent."""
    owed: list[Start | Send] = field(default_factory=list)
    """Calls that are to be sent yet."""


@dataclass
class _Known:
    """What is known of one actor."""

    read: int = 0
    """The revision that it read last; 0: none."""
    holds: bool = False
    """It made a call: the reply is in its next commit, and nobody else knows it."""
    allows: bool = False
    """Its last commit allowed a call."""
    merges: bool = False
    """Its decision was refused: it holds nothing any more once it begins another pass."""
    left: bool = False
    """Its loop was left, and with it what it held; what its latest pass had still to do is not done."""
    at: _Pass | None = None
    """Its latest pass, where that is compared."""


class Explained:
    """Compares, for each actor, what was explained with what is done. `told` counts the passes."""

    def __init__(self, bounds: Bounds, capabilities: Capabilities, revisions: list[Record]) -> None:
        self.told = 0
        self._bounds = bounds
        self._capabilities = capabilities
        self._revisions = revisions
        self._actors: defaultdict[str, _Known] = defaultdict(_Known)
        self._unknown: dict[str, Decision] = {}
        """By their ids: commits that were given up, and may land yet."""
        self._hears: dict[type, Callable[[_Known, Any], str | None]] = {
            Read: self._read,
            Looked: self._looked,
            Unanswered: self._unanswered,
            Committed: self._committed,
            Acknowledged: self._acknowledged,
            Refused: self._refused,
            Sent: self._sent,
            Withheld: self._withheld,
            Hindered: self._hindered,
            Stopped: self._stopped,
        }

    def see(self, event: Event) -> str | None:
        """What is not as it was explained; None: nothing."""
        hears = self._hears.get(type(event))
        if hears is None:
            return None
        known = self._actors[event.actor]  # type: ignore[union-attr]
        text = hears(known, event)
        return f"{event.actor} {text}" if text is not None else None  # type: ignore[union-attr]

    # --- a pass, and the one before it

    def _read(self, known: _Known, event: Read) -> None:
        known.read = event.revision
        if known.at is not None and known.at.landed_at is not None and known.at.reread is None:
            known.at.reread = event

    def _looked(self, known: _Known, event: Looked) -> str | None:
        if not event.job or not known.read:
            return None
        text = self._over(known, event.at)
        if not known.holds:
            record = self._revisions[known.read - 1]
            shown: Any = _As(record, event.listing, self._bounds, self._capabilities)
            known.at = _Pass(whole(explain(shown, shown, KEY, UID)).decision)
            if known.at.said.record is None and not known.at.said.notes:
                return f"decides nothing on revision {known.read}, and explain does not say why"
        return text

    def _unanswered(self, known: _Known, event: Unanswered) -> str | None:
        return self._over(known, event.at)

    def _over(self, known: _Known, at: float) -> str | None:
        """The latest pass is over: whether all of it was done."""
        done, known.at = (known.at if not known.left else None), None
        known.holds = known.holds and not known.merges and not known.left
        known.merges = known.left = False
        if done is None:
            return None
        self.told += 1
        if done.said.record is not None and not done.tried:
            return "committed nothing, and a commit was explained"
        if done.said.calls and done.said.record is None:
            return "was explained to make a call that no commit holds"
        left = done.owed[0] if done.owed else None
        if left is None or (isinstance(left, Send) and left.call.kind is Kind.OPEN and self._is_held_back(done, at)):
            return None
        return f"did not send what was explained: {left}"

    def _is_held_back(self, done: _Pass, at: float) -> bool:
        """Whether an Open was rightly not sent: the record had moved, or reading it again took too long."""
        read_at = done.reread.at if done.reread is not None else at
        late = read_at - (done.landed_at or 0.0) >= self._bounds.window_seconds + self._bounds.call_seconds
        return late or done.reread is None or done.reread.revision != done.made

    # --- its commit

    def _committed(self, known: _Known, event: Committed) -> str | None:
        if event.before is None:
            return None
        if event.late:
            said = self._unknown.pop(event.after.commit, None)
            return _compared(said, event.after) if said is not None else None
        known.allows = _calls(event.after) != _calls(event.before)
        known.holds |= known.allows
        if event.by.startswith("evidence") or known.at is None:
            return None
        known.at.tried, known.at.made = True, event.after.revision
        return _compared(known.at.said, event.after)

    def _acknowledged(self, known: _Known, event: Acknowledged) -> None:
        known.holds = known.allows
        if known.at is not None and known.at.made == event.revision:
            known.at.landed_at, known.at.owed = event.at, list(known.at.said.calls)

    def _refused(self, known: _Known, event: Refused) -> str | None:
        known.merges |= event.why == "Conflict"
        known.left &= event.why != "CommitUnknown"  # then it goes on, though the store gave no answer
        done = known.at
        if done is None or done.tried:
            return None
        done.tried = True
        if event.why == "CommitUnknown":
            self._unknown[event.commit] = done.said
        return "tried to commit, and nothing was explained" if done.said.record is None else None

    # --- its calls

    def _sent(self, known: _Known, event: Sent) -> str | None:
        if known.at is None:
            return None
        told = known.at.owed.pop(0) if known.at.owed else None
        if told is not None and _is_told(told, event):
            return None
        return f"sent {event.kind or 'a start'}, and explained was: {told or 'no call'}"

    def _withheld(self, known: _Known, event: Withheld) -> None:
        if known.at is not None and known.at.owed:
            known.at.owed.pop(0)

    # --- what ends it early

    def _hindered(self, known: _Known, event: Hindered) -> None:
        known.left = True

    def _stopped(self, known: _Known, event: Stopped) -> None:
        known.left = True


def _compared(said: Decision, after: Record) -> str | None:
    if said.record is None:
        return f"committed revision {after.revision}, and nothing was explained"
    if _but_commit(said.record) != _but_commit(after):
        return f"committed revision {after.revision}, and another one was explained"
    return None


_but_commit = attrgetter(*(name for name in Record.__struct_fields__ if name not in ("revision", "commit")))


def _is_told(told: Start | Send, sent: Sent) -> bool:
    if isinstance(told, Start):
        return (None, told.submission, told.attempt, told.deadline) == (
            sent.kind,
            sent.submission,
            sent.attempt,
            sent.deadline,
        )
    call = told.call
    return (call.kind, call.object, call.run, call.deadline) == (sent.kind, sent.object, sent.run, sent.deadline)


def _calls(record: Record) -> int:
    """How many calls the commits up to this one allow."""
    return sum(call.count for call in record.calls) + sum(len(s.attempts) for s in record.submissions)
