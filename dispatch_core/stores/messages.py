"""What goes over the line between a store over HTTP and its server: the same values on both sides.

One rule: an error arrives as what it was raised as, and a record that one side cannot read is told, never dropped. This
room knows no socket: `http` sends and `web.api` answers.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec

from dispatch_core import errors
from dispatch_core.errors import DispatchError, UnreadableRecord
from dispatch_core.plan import Value
from dispatch_core.record import Record, decode, encode
from dispatch_core.stores.contract import Lease, Listed

PREFIX = "/api"
"""Where a server has the store, below the address that it is reached at."""

MARK, PROTOCOL = "dispatch-store", "1"
"""The header of every answer of ours: another program's, or a proxy's, is not taken for one."""

LARGEST_BYTES = 8 * 1024 * 1024
"""Of one request. A record holds its spec once for each submission, and a spec is a file of 1 MB at most."""

_NULL = b"null"

Aware = Annotated[datetime, msgspec.Meta(tz=True)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]


class Creating(Value, frozen=True):
    record: Record
    commit: str
    actor: str
    new: bool = False


class Committing(Value, frozen=True):
    """The revision that it is against is in If-Match."""

    record: Record
    commit: str
    actor: str
    lines: tuple[str, ...]
    lease: Lease | None = None


class Finding(Value, frozen=True):
    settled: bool | None = None
    key_prefix: str = ""
    uids: frozenset[str] | None = None


class Found(Value, frozen=True):
    """A row of a list; the record is read for itself, so that one that cannot be read hides no other."""

    key: str
    uid: str
    revision: int
    record: msgspec.Raw
    problem: str
    created: Aware
    updated: Aware
    owner: str | None

    @classmethod
    def of(cls, row: Listed) -> Found:
        return cls(
            key=row.key,
            uid=row.uid,
            revision=row.revision,
            record=msgspec.Raw(_NULL if row.record is None else encode(row.record)),
            problem=row.problem,
            created=row.created,
            updated=row.updated,
            owner=row.owner,
        )

    def listed(self) -> Listed:
        record, problem = None, self.problem
        if bytes(self.record) != _NULL:
            try:
                record = read(bytes(self.record), self.key)
            except UnreadableRecord as error:
                problem = str(error)
        return Listed(
            key=self.key,
            uid=self.uid,
            revision=self.revision,
            record=record,
            problem=problem,
            created=self.created,
            updated=self.updated,
            owner=self.owner,
        )


class Asking(Value, frozen=True):
    records: tuple[tuple[str, str], ...]
    """Key and uid of each whose newest revision is asked for; those that are not there are left out of the answer."""


class Claiming(Value, frozen=True):
    key: str
    uid: str
    owner: str
    seconds: Seconds


class Renewing(Value, frozen=True):
    lease: Lease
    seconds: Seconds


class Releasing(Value, frozen=True):
    lease: Lease


class Pruning(Value, frozen=True):
    before: Aware
    trial: bool = False


class Refusal(Value, frozen=True):
    """What an answer that is an error holds."""

    error: str
    """The exception's name; "Denied" for who may not."""
    text: str


DENIED = "Denied"

STATUS: dict[type[DispatchError], int] = {
    errors.BadInput: 400,
    errors.NotFound: 404,
    errors.KeyTaken: 409,
    errors.Displaced: 409,
    errors.Conflict: 412,
    errors.Owned: 423,
    errors.UnreadableRecord: 500,
    errors.SchedulerUnavailable: 502,
    errors.StoreUnavailable: 503,
    errors.CommitUnknown: 504,
    errors.DispatchError: 500,
}
"""What each is on the line; the name in the body tells apart what shares a number."""

_KINDS = {kind.__name__: kind for kind in STATUS}


def told(error: DispatchError) -> tuple[int, Refusal]:
    """The status and the body of an error."""
    kind = next(kind for kind in type(error).__mro__ if kind in STATUS)
    return STATUS[kind], Refusal(error=kind.__name__, text=str(error))


def raised(refusal: Refusal) -> DispatchError | None:
    """The error that was told; None: it is no error of the store."""
    kind = _KINDS.get(refusal.error)
    return None if kind is None else kind(refusal.text)


def read(document: bytes, key: str) -> Record:
    """A record from the line. Raises UnreadableRecord, naming the job."""
    try:
        return decode(document)
    except UnreadableRecord as error:
        raise UnreadableRecord(f"job {key!r}: {error}") from error
