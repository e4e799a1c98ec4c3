"""A job whose task has stopped waiting for it: left to run, in its history's own words.

One rule: that a job was left is committed before its task ends, so that whoever later finds the task failed and the
job running knows that it was meant. A try that waits for the job again says so too; the newest of the two counts.
"""

from __future__ import annotations

from dispatch_core.errors import Conflict
from dispatch_core.record import Record
from dispatch_core.stores.contract import Store
from dispatch_core.surroundings import fresh_id

LEFT = "its task waits no longer, and leaves it running"
BACK = "a task waits for it again"


async def leave(store: Store, record: Record, who: str) -> None:
    """Commit that the task no longer waits."""
    await _say(store, record, who, LEFT)


async def come_back(store: Store, record: Record, who: str) -> None:
    """Commit that a task waits again, where one had left it."""
    if await is_left(store, record):
        await _say(store, record, who, BACK)


async def is_left(store: Store, record: Record) -> bool:
    """Whether the job was left running by its task, on purpose."""
    for change in reversed(await store.history(record.key, record.uid)):
        for word in (LEFT, BACK):
            if word in change.lines:
                return word == LEFT
    return False


async def _say(store: Store, record: Record, who: str, line: str) -> None:
    """A commit that changes nothing else, against whatever the revision is by then."""
    commit = fresh_id()
    while True:
        read = await store.read(record.key, record.uid)
        if read.outcome is not None:
            return
        try:
            await store.commit(read, against=read.revision, commit=commit, actor=who, lines=(line,))
            return
        except Conflict:
            continue
