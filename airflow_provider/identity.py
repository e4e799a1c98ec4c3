"""Which job is a task's: the key, and the generation that a clear counts up.

One rule: automatic retries of a task find the same key, and so the same job; a clear finds the next one. Airflow keeps
no counter for that: `max_tries - retries` grows with every clear and with nothing else, as long as nobody edits
`retries` meanwhile, so what was seen first is pinned in the task's state store and read from there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

from dispatch_core.record import KEY_LENGTH

PREFIX = "airflow"
PIN = "dispatch"
"""The name of the pin in the task's state store."""

STEM_LENGTH = KEY_LENGTH - 12
"""What is left of a key when its generation is taken off."""

PART = 60
"""A part of a stem that is too long is cut to so many characters, for people to read; a hash keeps them apart."""


class Seen(NamedTuple):
    """What Airflow says about one try."""

    max_tries: int
    retries: int
    cleared: int
    """How often anything in this DAG run was cleared."""


class Pin(NamedTuple):
    """What was seen when the generation was first met."""

    generation: int
    seen: Seen

    def stored(self) -> dict[str, int]:
        return {"generation": self.generation, **self.seen._asdict()}


def stem(dag_id: str, run_id: str, task_id: str, map_index: int) -> str:
    """What the keys of all generations of one task instance begin with.

    >>> stem("etl", "manual__2026-11-29", "train", -1)
    'airflow/etl/manual__2026-11-29/train/-1'
    """
    parts = [part.replace("%", "%25").replace("/", "%2F") for part in (dag_id, run_id, task_id)]
    whole = "/".join((PREFIX, *parts, str(map_index)))
    if len(whole) <= STEM_LENGTH:
        return whole
    digest = hashlib.sha256(whole.encode()).hexdigest()[:16]
    return "/".join((PREFIX, *(_cut(part) for part in parts), f"{map_index}~{digest}"))


def _cut(part: str) -> str:
    return part if len(part) <= PART else f"{part[: PART // 2 - 1]}..{part[1 - PART // 2 :]}"


def key(stem: str, generation: int) -> str:
    """The key of one generation.

    >>> key(stem("etl", "manual__2026-11-29", "train", 3), 1)
    'airflow/etl/manual__2026-11-29/train/3/1'
    """
    return f"{stem}/{generation}"


def generation_of(stem: str, key: str) -> int | None:
    """The generation that a key of this stem names."""
    rest = key.removeprefix(f"{stem}/")
    return int(rest) if rest != key and rest.isdecimal() else None


def read_pin(stored: object) -> Pin | None:
    """The pin in a stored value; None where there is none, or something else was stored under its name."""
    names = ("generation", *Seen._fields)
    if not isinstance(stored, Mapping) or not all(isinstance(stored.get(name), int) for name in names):
        return None
    return Pin(stored["generation"], Seen(*(stored[name] for name in Seen._fields)))


def pinned(pin: Pin | None, seen: Seen) -> Pin:
    """The generation of this try, and what is to be pinned of it.

    Only a clear changes `max_tries`, so a change of it is one, whatever became of `retries`. Where `retries` was edited
    and `max_tries` is as it was, the two may have made up for each other: then a clear in the run is taken for ours.
    """
    counted = max(seen.max_tries - seen.retries, 0)
    if pin is None:
        return Pin(counted, seen)
    known = pin.seen
    edited = seen.retries != known.retries
    cleared = seen.max_tries != known.max_tries or (edited and seen.cleared != known.cleared)
    return Pin(max(counted, pin.generation + 1) if cleared else pin.generation, seen)


def after(pin: Pin, generation: int) -> Pin:
    """The pin once the job of this generation has failed and a retry policy may ask for another; twice is as once."""
    return Pin(max(pin.generation, generation + 1), pin.seen)
