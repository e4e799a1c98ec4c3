"""Which task instances a job belongs to, read back from what is stored of it anyway: its key, and its history.

One rule: nothing is guessed; a job of which this cannot be read belongs to nobody here. A key that a task made for
itself names the task instance. A key that was given does not, nor does one that had to be cut: there the actor of the
commit that made the record is the try that made it, and another task that comes to a job under a given key writes one
commit, which changes nothing, to stand in the history as well. So a record needs no field that only Airflow would fill,
records of every format are read alike, and whose a job is can be read by a person too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from airflow_provider import identity
from dispatch_core.stores.contract import Change

_ACTOR = re.compile(r"airflow task ([^/\s]+)/([^/\s]+)/([^/\s]+)/(-?\d+), ")


class Instance(NamedTuple):
    """One task instance, whatever its tries."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Instance | None:
        """The one that is told of by these names; None where one of them is missing."""
        return cls(*(told[name] for name in cls._fields)) if told.keys() >= set(cls._fields) else None

    @property
    def stem(self) -> str:
        """What the keys of all its generations begin with."""
        return identity.stem(*self)

    def actor(self, rest: str) -> str:
        """How it signs a commit; `rest` says which try it was.

        >>> Instance("etl", "manual 1", "train", -1).actor("try 1")
        'airflow task etl/manual%201/train/-1, try 1'
        """
        names = "/".join(quote(part, safe="+:") for part in self[:3])
        return f"airflow task {names}/{self.map_index}, {rest}"


def of_key(key: str) -> Instance | None:
    """The task instance that made this key; None where it was given, or cut."""
    parts = key.split("/")
    if len(parts) != 6 or not re.fullmatch(r"-1|\d+", parts[4]):
        return None
    dag_id, run_id, task_id = (part.replace("%2F", "/").replace("%25", "%") for part in parts[1:4])
    instance = Instance(dag_id, run_id, task_id, int(parts[4]))
    return instance if identity.generation_of(instance.stem, key) is not None else None


def of_actor(actor: str) -> Instance | None:
    """The task instance that signed a commit so; None for anybody else."""
    found = _ACTOR.match(actor)
    if found is None:
        return None
    dag_id, run_id, task_id = map(unquote, found.groups()[:3])
    return Instance(dag_id, run_id, task_id, int(found[4]))


def of_history(changes: Iterable[Change]) -> frozenset[Instance]:
    """Every task instance that made the record or came to it."""
    return frozenset(filter(None, (of_actor(change.actor) for change in changes)))
