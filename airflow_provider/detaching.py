"""A job whose task has stopped waiting for it: left to run, in its history's own words.

One rule: that a job was left is committed before its task ends, so that whoever later finds the task failed and the
job running knows that it was meant. It is each task's own word: another one that waits for the same job, under a key
that was given, has not left it. It is the newest try's: each try that comes to the job stands in the history, and a
trigger of an earlier one, slow to be told that it is not wanted any more, says nothing for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from airflow_provider import tasks
from airflow_provider.tasks import Instance
from dispatch_core.errors import Conflict
from dispatch_core.record import Record
from dispatch_core.stores.contract import Change, Store
from dispatch_core.surroundings import fresh_id

LEFT = "its task waits no longer, and leaves it running"
BACK = "a task waits for it again"
AGAIN = "another try of its task waits for it"

_TRY = re.compile(r", try (\d+)\b")


class Word(NamedTuple):
    """What one try of a task, or its trigger, has said of a job."""

    number: int
    """Which try of its task instance it was; Airflow counts them up, also over a clear."""
    ti_id: str
    left: bool

    @classmethod
    def of(cls, actor: str, *, left: bool = False) -> Word:
        number = _TRY.search(actor)
        return cls(0 if number is None else int(number[1]), actor.rpartition(", ")[2], left)


def words(changes: Iterable[Change]) -> dict[Instance, Word]:
    """The last word of the newest try of each task instance that is in a job's history."""
    found: dict[Instance, Word] = {}
    for change in changes:
        instance = tasks.of_actor(change.actor)
        if instance is None:
            continue
        word = Word.of(change.actor, left=LEFT in change.lines)
        if instance not in found or word.number >= found[instance].number:
            found[instance] = word
    return found


def leavers(changes: Iterable[Change]) -> frozenset[Instance]:
    """The task instances that have left the job running, on purpose."""
    return frozenset(instance for instance, word in words(changes).items() if word.left)


async def leave(store: Store, record: Record, instance: Instance, ti_id: str) -> bool:
    """Commit that a task no longer waits; False where this try may not say so: a later one has come, or the job has an
    outcome."""
    commit = fresh_id()
    while True:
        read = await store.read(record.key, record.uid)
        said = words(await store.history(record.key, record.uid)).get(instance)
        if read.outcome is not None or (said is not None and said.ti_id != ti_id):
            return False
        who = instance.actor(f"try {said.number if said else 0}, its trigger, {ti_id}")
        if await _says(store, read, who, LEFT, commit):
            return True


async def come_back(store: Store, record: Record, who: str) -> None:
    """Commit that this try waits, unless that is known: an earlier one has, or the task had left the job."""
    instance, mine, commit = tasks.of_actor(who), Word.of(who), fresh_id()
    while instance is not None and record.outcome is None:
        said = words(await store.history(record.key, record.uid)).get(instance)
        if said is not None and (said.number > mine.number or said == mine):
            return
        line = BACK if said is not None and said.left else AGAIN
        if await _says(store, record, who, line, commit):
            return
        record = await store.read(record.key, record.uid)


async def _says(store: Store, record: Record, who: str, line: str, commit: str) -> bool:
    """A commit that changes nothing else; False where something was committed meanwhile."""
    try:
        await store.commit(record, against=record.revision, commit=commit, actor=who, lines=(line,))
    except Conflict:
        return False
    return True
