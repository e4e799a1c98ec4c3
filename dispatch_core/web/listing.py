"""The list of jobs, a page at a time.

One rule: a page is bounded, whatever the store holds: so many jobs are shown, so many are looked at, and where more may
follow the page says from where. A record that cannot be read is listed with its problem and hides no other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from urllib.parse import urlencode

from dispatch_core.errors import BadInput
from dispatch_core.plan import Cause, Value
from dispatch_core.reasons import FOR_A_PERSON
from dispatch_core.record import KEY_LENGTH, Record
from dispatch_core.status import Status, attention, status_of
from dispatch_core.stores.contract import Browsed, Listed, Place

SHOWN = 50
"""Jobs on one page."""

AT_ONCE = 500
LOOKED_AT = 5000
"""Jobs looked at for one page: whether one needs a person is in its document alone, and who may see it is not told by
the store."""


class Which(StrEnum):
    """Which jobs are asked for."""

    OPEN = "open"
    PERSON = "person"
    UNATTENDED = "unattended"
    SETTLED = "settled"
    ALL = "all"


WHICH_WORDS = {
    Which.OPEN: "open",
    Which.PERSON: "needs a person",
    Which.UNATTENDED: "unattended",
    Which.SETTLED: "settled",
    Which.ALL: "all",
}


class Asked(Value, frozen=True):
    """What one list shows."""

    which: Which = Which.OPEN
    key: str = ""
    """What the keys begin with."""
    after: Place | None = None

    def query(self, which: Which | None = None, after: Place | None = None) -> str:
        """The query of the list like this one, from its beginning or from behind a place."""
        fields = {"show": str(which or self.which)}
        if self.key:
            fields["key"] = self.key
        if after is not None:
            fields["after"] = f"{after.updated.astimezone(UTC).isoformat()} {after.uid}"
        return urlencode(fields)


def read_asked(query: Mapping[str, str]) -> Asked:
    """What a query asks for. Raises BadInput."""
    try:
        which = Which(query.get("show", Which.OPEN))
        moment, _, uid = query.get("after", "").partition(" ")
        after = Place(updated=datetime.fromisoformat(moment), uid=uid) if moment else None
    except ValueError:
        raise BadInput("this list cannot be shown: its address is not one that these pages make") from None
    if after is not None and after.updated.tzinfo is None:
        raise BadInput("this list cannot be shown: its address names a time without a zone")
    return Asked(which=which, key=query.get("key", "")[:KEY_LENGTH], after=after)


class Row(Value, frozen=True):
    """One job of the list."""

    key: str
    uid: str
    state: str
    since: datetime
    cause: str
    """Why it ended, or why its newest run that ended did; "" where none has."""
    scheduler: str
    created: datetime
    supervisor: str
    """Who supervises it; "" for nobody."""
    flags: tuple[str, ...]
    """Why somebody should look, beside its state."""
    settled: bool
    why: tuple[str, ...]
    """What it waits for, why it is held, how it came out, or why its record cannot be read."""
    advice: str


class Found(Value, frozen=True):
    """One page of the list."""

    rows: tuple[Row, ...]
    after: Place | None
    """Where the next page begins; None: this is the last one."""


Readable = Callable[[frozenset[str]], Awaitable[frozenset[str]]]
"""Which of the jobs with these keys may be shown to who asks."""


async def look(store: Browsed, asked: Asked, readable: Readable) -> Found:
    """The page that is asked for, of the jobs that may be shown."""
    settled = None if asked.which is Which.ALL else asked.which is Which.SETTLED
    unattended = asked.which is Which.UNATTENDED
    at_once = AT_ONCE if asked.which is Which.PERSON else SHOWN + 1
    found: list[Row] = []
    place, looked_at = asked.after, 0
    while looked_at < LOOKED_AT:
        listed = await store.page(at_once, after=place, settled=settled, unattended=unattended, key_prefix=asked.key)
        shown = await readable(frozenset(job.key for job in listed))
        for job in listed:
            if len(found) == SHOWN:
                return Found(rows=tuple(found), after=place)
            place = _behind(job)
            if job.key in shown and (asked.which is not Which.PERSON or needs_a_person(job)):
                found.append(row_of(job))
        looked_at += len(listed)
        if len(listed) < at_once:
            place = None
            break
        at_once = AT_ONCE
    return Found(rows=tuple(found), after=place)


def _behind(job: Listed) -> Place:
    return Place(updated=job.updated, uid=job.uid)


def needs_a_person(job: Listed) -> bool:
    """Whether only a person can let a job go on, or settle; a record that cannot be read needs one too."""
    record = job.record
    if record is None:
        return True
    if any(not hold.lifted for hold in record.holds):
        return True
    return not record.settled and record.wait is not None and record.wait.reason in FOR_A_PERSON


def row_of(job: Listed) -> Row:
    """A job as the list shows it."""
    record = job.record
    shown = status_of(record, job) if record is not None else None
    state = shown.state if shown else "unreadable"
    return Row(
        key=job.key,
        uid=job.uid,
        state=state,
        since=shown.since if shown else job.updated,
        cause=str(cause_of(record) or "") if record is not None else "",
        scheduler=shown.scheduler if shown else "",
        created=job.created,
        supervisor=job.owner or "",
        flags=tuple(flag for flag in attention(job) if flag != state),
        settled=shown.settled if shown else False,
        why=_why(shown) if shown else (job.problem,),
        advice=shown.advice if shown else "",
    )


def _why(shown: Status) -> tuple[str, ...]:
    """What a person wants to know of it beside its state."""
    held = [f"held: {hold.reason} ({hold.asked_by})" for hold in shown.holds if not hold.lifted]
    waits = [shown.wait.text] if shown.wait is not None and not held and not shown.settled else []
    came_out = [shown.outcome.message] if shown.outcome is not None and shown.outcome.message else []
    clean = [f"clean-up waits for: {shown.receipt.waits_for}"] if shown.receipt and not shown.receipt.clean else []
    return tuple(dict.fromkeys([*held, *came_out, *(clean or waits)]))


def cause_of(record: Record) -> Cause | None:
    """Why the job ended; before it has, why the newest of its runs that ended did."""
    if record.outcome is not None:
        return record.outcome.cause
    ends = [row for object in record.objects if not object.foreign for row in object.ends]
    return max(ends, key=lambda row: row.at).end.cause if ends else None
