"""What a scheduler must offer: bounded asynchronous calls, and a listing that says whether it is complete.

One rule: a call that did not clearly fail may have happened. `Answer.UNKNOWN` is the honest answer to anything that
broke on the way; `REFUSED` and `LATE` promise that nothing happened. The adapter never decides, never repeats a call on
its own, and judges deadlines on the scheduler host's clock in the same command that acts.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from dispatch_core.evidence import Bounds, Capabilities, Listing, Sighting
from dispatch_core.names import read_name
from dispatch_core.plan import Spec, Value
from dispatch_core.record import Record, Reply, State


class Job(Value, frozen=True):
    """What a listing needs to know of a job."""

    key: str
    uid: str
    known: tuple[str, ...] = ()
    """Ids of the recorded objects, so that those no longer listed can be asked for by id."""
    runs: tuple[tuple[str, int], ...] = ()
    """The latest runs of those that were requeued, as recorded: a scheduler may forget how many there were."""
    may_launch: bool = False
    """The next decision may be a Start: whether the cluster has room for its object is asked."""

    @classmethod
    def of(cls, record: Record) -> Job:
        last = record.last
        open_ended = last is None or last.canonical is None or bool(record.intents)
        return cls(
            key=record.key,
            uid=record.uid,
            known=tuple([object.id for object in record.objects]),
            runs=tuple([(object.id, object.run) for object in record.objects if object.run > 1]),
            may_launch=record.outcome is None and open_ended,
        )

    def concerns(self, sighting: Sighting) -> bool:
        """Whether a listed object belongs into this job's listing: its own, known ones, and live ones with its key."""
        if sighting.id in self.known or (sighting.key == self.key and sighting.state is not State.ENDED):
            return True
        tags = read_name(sighting.name)
        return tags is not None and tags.uid == self.uid


class Target(Value, frozen=True):
    """The object and the run of it that a call means; the host compares both before it acts."""

    id: str
    name: str
    run: int


class Launch(Value, frozen=True):
    """What one Start makes: the object's name carries uid, submission and attempt."""

    key: str
    uid: str
    submission: int
    attempt: int
    name: str
    spec: Spec
    may_requeue: bool = False
    """The plan has a requeue rule, so the object must be one that can be requeued."""
    previous_cause: str = ""
    """How the run before ended, "" for the first: the run reads it in its environment."""
    watches_progress: bool = False
    """The plan has a rule on it, so listings must carry it."""


class Finding(Value, frozen=True):
    """One thing that was looked at on a cluster, for `dispatch doctor`."""

    name: str
    """What was looked at, in a word or two."""
    ok: bool | None
    """None: a note, neither good nor bad."""
    text: str
    """What was found, and where it is bad, what to do."""


class Log(StrEnum):
    """What there is of one of a run's two streams."""

    THERE = "there"
    NOT_BEGUN = "not_begun"
    """The run has not begun, so there is no log yet."""
    SHARED = "shared"
    """Standard error goes where standard output goes."""
    GONE = "gone"
    """It was removed, or cannot be read from the scheduler's host."""


class Piece(Value, frozen=True):
    """Some of what a run has written to one stream."""

    log: Log
    data: bytes = b""
    size: int = 0
    """Bytes that the run has written to this stream so far; fewer than before where somebody has shortened it."""
    path: str = ""
    """Where the log is, or was, as far as that is known."""
    why: str = ""
    """Why an opened run has not begun, in one line, where the scheduler tells."""


class Adapter(Protocol):
    """One cluster connection, shared by every job on it in this event loop; whoever opened it closes it."""

    capabilities: Capabilities

    @property
    def bounds(self) -> Bounds:
        """What the cluster declares; it may change once the cluster was asked."""

    def problems(self, spec: Spec) -> list[tuple[tuple[str | int, ...], str]]:
        """What this scheduler cannot launch: the path of the field, and one sentence."""

    async def find(self, job: Job) -> Listing:
        """A listing that began after this was called. Raises SchedulerUnavailable."""

    async def everything(self) -> Listing:
        """Every object on the cluster that carries our tag, whatever its job, for the janitor. Raises
        SchedulerUnavailable."""

    async def start(self, launch: Launch, secrets: Mapping[str, str], deadline: datetime) -> Reply:
        """Create one object, gated. `DONE` carries its id. The secrets are handed over by a file that only the run's
        user can read, never on a command line. Where `starts_once` is declared, a Start that is carried out again
        makes nothing: it replies with the id of what is there, or `unknown`, but not `refused`, which would say that
        the attempt made nothing."""

    async def open(self, target: Target, deadline: datetime) -> Reply:
        """Open the gate of this run."""

    async def shut(self, target: Target, deadline: datetime) -> Reply:
        """Shut the gate behind this running run, so that the next one comes back gated."""

    async def stop(self, target: Target, deadline: datetime) -> Reply:
        """Stop this run, and no other object; one that is gated never runs."""

    async def stop_job(self, names: tuple[str, ...], deadline: datetime) -> Reply:
        """Stop every object with one of these names, gated ones included."""

    async def hold(self, target: Target, deadline: datetime) -> Reply:
        """Set the hold bit; the gate is left as it is."""

    async def release(self, target: Target, deadline: datetime) -> Reply:
        """Clear the hold bit; the gate is left as it is."""

    async def requeue(self, target: Target, deadline: datetime) -> Reply:
        """Start the next run of an object whose run `target.run` has ended; it comes back gated."""

    async def watch(self, job: Job, seconds: float) -> None:
        """Return when something about the job may have changed, or after so many seconds: a hint, never the truth."""

    async def read_log(self, target: Target, stream: int, begin: int, length: int) -> Piece:
        """What the run has written to standard output (1) or standard error (2), from byte `begin` on: `length` bytes,
        or what there is. `adapters.logs` makes a whole log of it. Raises SchedulerUnavailable."""

    async def settled(self, uid: str, names: tuple[str, ...]) -> None:
        """This record is settled, so nothing is created for it any more: give up what the cluster keeps for that alone.
        `names`: of the objects of all its attempts; they are left as they are. It is told again until it was carried
        out, so once more does no harm. Raises SchedulerUnavailable."""

    async def kept(self) -> frozenset[str]:
        """The uids of the records that the cluster still keeps something for until they are settled, for the janitor.
        Raises SchedulerUnavailable."""

    async def close(self) -> None:
        """End the connection and what it polls with; no object is touched."""
