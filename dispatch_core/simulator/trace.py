"""What happened in a simulated world, one value for each event: the only thing that the laws read.

One rule: these are the scheduler's own history, the store's commits and reads, and the times of both, never what a
supervisor believed. An event is written when it happens, by whoever it happens to.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from dispatch_core.evidence import Listing
from dispatch_core.plan import Cause, End
from dispatch_core.record import Kind, Record, Reply, State


class Read(NamedTuple):
    """The store gave an actor a record."""

    at: float
    actor: str
    revision: int
    former: bool = False
    """Something that the actor had begun before it came to its end was still under way, and reads."""


class Committed(NamedTuple):
    """The store took a commit."""

    at: float
    actor: str
    before: Record | None
    after: Record
    leased: bool
    """It carried a lease."""
    displaced: bool
    """That lease was no longer the newest."""
    by: str
    """What the history row says: a supervisor, `evidence of ...`, a person."""
    late: bool = False
    """Its sender had given it up."""
    holder: bool = False
    """The store had given its actor the lease of the job, and was not given it back."""


class Acknowledged(NamedTuple):
    """An actor was told that its commit landed."""

    at: float
    actor: str
    revision: int
    commit: str


class Refused(NamedTuple):
    """An actor was told that its commit did not land, or that nobody knows."""

    at: float
    actor: str
    against: int
    commit: str
    why: str


class Hindered(NamedTuple):
    """An actor leaves whatever it was at: the store gave it no answer, its lease is another's, or it has swept."""

    at: float
    actor: str
    why: str


class Looked(NamedTuple):
    """The scheduler answered a listing."""

    at: float
    actor: str
    job: bool
    """Of one job; else of the whole cluster."""
    listing: Listing
    began: float
    taken: float
    """When it was as it shows."""
    lies: tuple[str, ...]
    """What is left out that was there."""
    places: tuple[int, int, int] = (0, 0, 0)
    """How many events were told before its beginning, before the moment that it shows, and before its end."""


class Unanswered(NamedTuple):
    """A listing failed, or was given up."""

    at: float
    actor: str
    why: str
    """"" where it was given up."""


class Withheld(NamedTuple):
    """A Start was not sent: its secret could not be read."""

    at: float
    actor: str
    why: str


class Sent(NamedTuple):
    """An actor sent a call."""

    at: float
    actor: str
    number: int
    """Counted over the whole history."""
    kind: Kind | None
    """None: a Start."""
    object: str | None
    run: int
    submission: int
    attempt: int
    name: str
    """Of the object that it makes or means; "" for StopJob."""
    names: tuple[str, ...]
    deadline: datetime
    read: int
    """The newest revision that its actor had read."""


class Arrived(NamedTuple):
    """A call took effect, or was refused, on the scheduler's host."""

    at: float
    sent: Sent
    reply: Reply
    name: str
    """Of the object that it met there; "" where it met none."""
    run: int
    """The run of that object, before the call."""
    beyond: bool
    """It took effect after it had expired; only a Start may."""
    again: bool
    """It was delivered a second time."""
    answers: bool = True
    """Its sender hears of this delivery, if of any."""


class Replied(NamedTuple):
    """The reply of a call reached its sender, who still waited for it."""

    at: float
    actor: str
    number: int


class Made(NamedTuple):
    """An object came into being."""

    at: float
    id: str
    name: str
    by: Sent | None
    """None: somebody else made it."""
    beyond: bool
    """Its Start had expired."""
    phase: State = State.PENDING


class Opened(NamedTuple):
    """The gate of a run was opened."""

    at: float
    id: str
    run: int
    by: Sent | None
    """None: a person, or the scheduler itself."""


class Started(NamedTuple):
    """A run began."""

    at: float
    id: str
    run: int
    nodes: tuple[str, ...] = ()


class Ending(NamedTuple):
    """A run has begun to end."""

    at: float
    id: str
    run: int
    end: End | None
    """As far as it is said already."""
    by: str
    """"" by itself, `call`, `admin`."""


class Finished(NamedTuple):
    """A run ended, or an object that never ran was stopped."""

    at: float
    id: str
    run: int
    end: End
    told: bool = True
    """The scheduler says how it ended."""
    by: str = ""
    """"" by itself, `call`, `admin`, `rerun` where the next run follows, `stray` where it appeared ended."""


class Reran(NamedTuple):
    """An object came back for its next run."""

    at: float
    id: str
    run: int
    open: bool
    """Its gate was not shut."""
    by: Sent | None
    """None: a person, or the scheduler itself."""


class HoldBit(NamedTuple):
    """A hold was put on an object, or taken off it."""

    at: float
    id: str
    on: bool
    by: Sent | None


class Vanished(NamedTuple):
    """An object is no longer there: purged after its end, or lost."""

    at: float
    id: str
    lost: bool


LOST_NODE = End(cause=Cause.NODE_FAILURE)
"""How a run has ended of which the scheduler believes so, and which runs on."""


class Slipped(NamedTuple):
    """A controller restarted from an older copy, an object is in a state that it had left; or it learns how it is."""

    at: float
    id: str
    back: bool
    phase: State
    relapse: bool = False
    """It had ended, and is run again as the same run."""


class Noted(NamedTuple):
    """Something about an object that no law looks at, as a history says it: `progresses`, `is unrecognized`."""

    at: float
    id: str
    what: str


class Faulted(NamedTuple):
    """A fault changed an answer or an order."""

    at: float
    kind: str


class Stopped(NamedTuple):
    """An actor came to its end: it was ended from outside, it was asked to leave, or it raised."""

    at: float
    actor: str
    why: str
    error: BaseException | None = None


Event = (
    Read
    | Committed
    | Acknowledged
    | Refused
    | Hindered
    | Looked
    | Unanswered
    | Withheld
    | Sent
    | Arrived
    | Replied
    | Made
    | Opened
    | Started
    | Ending
    | Finished
    | Reran
    | HoldBit
    | Vanished
    | Slipped
    | Noted
    | Faulted
    | Stopped
)

JANITOR = "janitor"
SWEEPER = "sweeper"
"""The janitor while it looks and sweeps: it may supervise the same job at the same time."""

UNCOUNTED = frozenset({Read, Hindered, Unanswered, Withheld, Replied, Noted, Faulted})
"""Events that are no place for something else to happen at."""
