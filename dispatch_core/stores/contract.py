"""What a database must offer: one record a job, changed only against the revision that was read.

One rule: `commit` changes a record only if its revision is still the one that was read, in one statement, and adds the
history row in the same transaction. A commit whose result is not known is read back by its id, never assumed.
"""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from dispatch_core.plan import Value
from dispatch_core.record import Record


class Lease(Value, frozen=True):
    """A dated claim on a job: it spares others the work, and no promise rests on it."""

    uid: str
    owner: str
    epoch: int
    """Counted up each time somebody else takes the job; a commit that carries an older epoch is refused."""


class Change(Value, frozen=True):
    """One row of a job's history: one commit."""

    revision: int
    commit: str
    at: datetime
    """The store's clock."""
    actor: str
    """Who committed: `supervisor NAME`, `person NAME`, `evidence NAME`, ..."""
    lines: tuple[str, ...]
    """What changed, one plain sentence each."""


class Listed(Value, frozen=True):
    """One job in a list of jobs."""

    key: str
    uid: str
    revision: int
    """The newest, also of a record that cannot be read."""
    record: Record | None
    """None: it is stored, and this version of dispatch cannot read it."""
    problem: str
    """Why it cannot be read; "" where it can."""
    created: datetime
    updated: datetime
    """The store's clock, at the newest commit."""
    owner: str | None
    """Who holds its lease now; None: nobody, or the lease has run out."""


class Place(Value, frozen=True):
    """A place in the list of all jobs, newest change first: right behind this job, as it was listed."""

    updated: datetime
    uid: str


class Pruned(Value, frozen=True):
    """What one prune came to."""

    deleted: int
    """Records that are gone, with their histories; in a trial, those that would be."""
    unreadable: int
    """Keys under which one was left that this version of dispatch cannot read, and so does not judge either."""


class Store(Protocol):
    """One database. Every method raises StoreUnavailable when it does not answer or has no tables of ours."""

    async def create(self, record: Record, *, commit: str, actor: str, new: bool = False) -> Record:
        """Write revision 1 of a job, or return the record that its key has already.

        The same key, scheduler, spec and plan: the existing record, whatever its state. Another spec or plan: KeyTaken.
        `new`: where the existing one is settled, the next record under the key (the old one stays readable by uid);
        where it is not settled, KeyTaken. Racing creates of one key make one record.
        """

    async def read(self, key: str, uid: str | None = None) -> Record:
        """The newest record under a key, or the one with this uid. Raises NotFound."""

    async def revision(self, key: str, uid: str) -> int:
        """The newest revision of the record with this uid, for those who wait for a change: as `read`, but a store may
        take its time to answer many at once. Raises NotFound."""

    async def commit(
        self,
        record: Record,
        *,
        against: int,
        commit: str,
        actor: str,
        lines: tuple[str, ...],
        lease: Lease | None = None,
    ) -> Record:
        """Write `record` as revision `against` + 1 if `against` is still the newest; returns it with both numbers set.

        Raises Conflict if something else was committed since; Displaced if `lease` is given and no longer the newest
        epoch, checked in the same statement; CommitUnknown if the database broke off and reading back failed too.
        A commit is known by its id: repeated after it landed, it changes nothing and returns what it wrote.
        """

    async def jobs(
        self, *, settled: bool | None = None, key_prefix: str = "", uids: frozenset[str] | None = None
    ) -> list[Listed]:
        """Jobs, newest change first; older records under a reused key only when asked for by uid.

        One that cannot be read is listed without its record and hides no other.
        """

    async def history(self, key: str, uid: str | None = None) -> list[Change]:
        """Every commit of a job, oldest first. Raises NotFound."""

    async def acquire(self, record: Record, owner: str, seconds: float) -> Lease:
        """Claim a job for so long. The same owner claims it again at once, with a new epoch. Raises Owned."""

    async def renew(self, lease: Lease, seconds: float) -> None:
        """Claim it for so much longer. Raises Displaced if another has taken it."""

    async def release(self, lease: Lease) -> None:
        """Give it up; nothing happens if another has taken it."""

    async def prune(self, before: datetime, *, trial: bool = False) -> Pruned:
        """Delete the records that are settled and unchanged since `before`, each with its whole history.

        In batches, each whole or not at all, so that it can be broken off anywhere and begun again. Under a reused key
        the oldest go first: what is left under a key is always its newest. `trial`: nothing is deleted, only counted.
        """

    async def close(self) -> None:
        """End the connections."""


class Browsed(Store, Protocol):
    """A store whose jobs can also be looked through a few at a time, however many there are."""

    async def page(
        self,
        limit: int,
        *,
        after: Place | None = None,
        settled: bool | None = None,
        unattended: bool = False,
        key_prefix: str = "",
    ) -> list[Listed]:
        """At most `limit` jobs behind `after`, as `jobs` lists them; what changes meanwhile moves to the front.

        `unattended`: those that are not settled and that nobody supervises.
        """
