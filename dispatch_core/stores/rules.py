"""What every store answers alike, whatever it keeps the records in.

One rule: nothing is written that could not be read back, and nothing that cannot be read is taken for a record. This
room turns records into documents and back, and words the refusals; it knows no database and no clock.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dispatch_core.errors import (
    BadInput,
    CommitUnknown,
    Conflict,
    Displaced,
    KeyTaken,
    NotFound,
    Owned,
    UnreadableRecord,
)
from dispatch_core.guards import guard
from dispatch_core.record import Record, decode, encode
from dispatch_core.stores.contract import Change, Lease

CREATED = ("the job was created",)
"""The lines of the first row of every history."""


def prepare(record: Record, revision: int, commit: str) -> tuple[Record, bytes]:
    """The record as this revision, just as a reader will get it, and the document that holds it."""
    try:
        document = encode(msgspec.structs.replace(record, revision=revision, commit=commit))
        return decode(document), document
    except (UnreadableRecord, UnicodeEncodeError) as error:
        # The constructor does not check types, reading does: what is let through here would be lost for good.
        # Half a character, as in an argument that is not UTF-8, cannot even be encoded.
        raise BadInput(f"job {record.key!r}: nothing was written, it could not be read back: {error}") from error


def read_document(document: bytes | str, key: str, uid: str, revision: int) -> Record:
    """The record in a stored document; raises UnreadableRecord, naming the job."""
    try:
        record = decode(document)
    except UnreadableRecord as error:
        raise UnreadableRecord(f"job {key!r} (record {uid}): {error}") from error
    if (record.key, record.uid, record.revision) != (key, uid, revision):
        # Written by something that went round the store: its content is not what the row's commits made.
        raise UnreadableRecord(
            f"job {key!r} (record {uid}): the stored document says {record.key!r}, {record.uid}, revision"
            f" {record.revision}, and its row says revision {revision}; it was left as it is; restore it from a backup"
        )
    return record


def existing(found: Record | None, asked: Record, new: bool) -> Record | None:
    """The record that answers a create, given the newest under its key; None: a new one is to be written."""
    if found is None:
        return None
    if found.key != asked.key:
        # MySQL takes no notice of spaces at the end of a text.
        raise KeyTaken(
            f"the key {asked.key!r} is the same to this database as {found.key!r}, which another job has; nothing was"
            " written; choose another key"
        )
    if new and found.uid != asked.uid:
        if not found.settled:
            raise KeyTaken(
                f"job {asked.key!r} is not settled, so its key cannot be used again yet; nothing was written; cancel"
                " it, or wait until it is settled"
            )
        return None
    fields = ("scheduler", "spec", "plan")
    other = [name for name in fields if getattr(found, name) != getattr(asked, name)]
    if other:
        raise KeyTaken(
            f"the key {asked.key!r} belongs to a job with another {' and another '.join(other)}; nothing was written;"
            " choose another key, or ask for a new job under it once that one is settled"
        )
    return found


# What the SQL store asks in its statements; here for the store in memory.


@guard("commit_against_revision", promise="C1", without=True)
def is_newest(against: int, newest: int) -> bool:
    """Whether nothing was committed since a commit's record was read: else it would write over what others decided."""
    return against == newest


@guard("unknown_commit_read_back", promise="C5", without=False)
def has_landed(changes: Sequence[Change], against: int, commit: str) -> bool:
    """Whether this very commit made the revision after `against`, the newest or not: repeated, it changes nothing."""
    return len(changes) > against and changes[against].commit == commit


@guard("decisions_carry_the_lease", promise="C2", line=2, without=True)
def is_held(lease: Lease, uid: str, owner: str | None, epoch: int) -> bool:
    """Whether nobody has taken the lease since; for liveness only, the revision alone keeps supervisors apart."""
    return (lease.uid, lease.owner, lease.epoch) == (uid, owner, epoch)


def conflict(key: str, against: int, newest: int) -> Conflict:
    return Conflict(
        f"job {key!r}: revision {against} was read and revision {newest} is the newest; nothing was written; read"
        " again, then decide again"
    )


def displaced(key: str, lease: Lease) -> Displaced:
    return Displaced(
        f"job {key!r}: {lease.owner} no longer holds its lease (epoch {lease.epoch}); nothing was written; the job goes"
        " on under whoever holds it now"
    )


def owned(key: str, owner: str) -> Owned:
    return Owned(f"job {key!r} is supervised by {owner}; leave it to that one, or wait until its lease has run out")


def not_found(key: str, uid: str | None = None) -> NotFound:
    return NotFound(f"there is no job {key!r}" + (f" with the record {uid}" if uid else ""))


def no_record(uid: str) -> NotFound:
    return NotFound(f"there is no record {uid}")


def unknown(key: str, commit: str) -> CommitUnknown:
    return CommitUnknown(
        f"job {key!r}: the database broke off in commit {commit} and could not be asked since; it may have landed;"
        " read the job again before anything is decided about it"
    )


def used_twice(key: str, commit: str, uid: str) -> BadInput:
    return BadInput(f"job {key!r}: commit {commit} or record {uid} exists already elsewhere; nothing was written")
