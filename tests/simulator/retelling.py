"""What a simulated history leads to when it is told: its text, its steps, and how its record differs from the other."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

from dispatch_core.record import Record
from tests.telling import Teller, blocks_of, commands
from tests.world import Impossible

TOLERATED_SECONDS = 0.01
"""Times are told to the millisecond."""


def retell(text: str) -> tuple[Record, list[str]]:
    """The record that a printed history leads to, and its steps."""
    teller, steps = Teller(), []
    for block in blocks_of(text):
        for command, more in commands(block):
            try:
                told = teller.tell(command, more)
            except Impossible as refused:
                told = [f"IMPOSSIBLE: {refused}"]
            steps += [f"> {command}", *told]
    return teller.world.record, steps


def differences(one: Record, other: Record) -> list[str]:
    """Where two records differ, by path; without what is not the same in both worlds:

    - the ids of commits, and times by less than a hundredth of a second;
    - the text of a reply that is unknown or late: what a supervisor makes of an error;
    - the time of an outcome that a person asked for, and since when nothing is known of an outage: both by the clock of
      whoever wrote it, shown and never judged by.
    """
    return list(_differences("", _plain(one), _plain(other)))


def _plain(record: Record) -> Any:
    plain = msgspec.to_builtins(record, builtin_types=(datetime,))
    plain["commit"] = ""
    rows = [*plain["calls"], *(a for s in plain["submissions"] for a in s["attempts"])]
    for row in rows:
        if row["reply"] is not None and row["reply"]["answer"] in ("unknown", "late"):
            row["reply"]["text"] = ""
    if plain["outcome"] is not None and plain["outcome"]["by"] == "ann":
        plain["outcome"]["at"] = None
    if plain["wait"] is not None and plain["wait"]["reason"] == "unreachable":
        plain["wait"]["since"] = None
    return plain


def _differences(path: str, one: Any, other: Any) -> Iterator[str]:
    if isinstance(one, datetime) and isinstance(other, datetime):
        if abs((one - other).total_seconds()) > TOLERATED_SECONDS:
            yield f"{path}: {one} {other}"
    elif isinstance(one, dict) and isinstance(other, dict):
        for name in {**one, **other}:
            yield from _differences(f"{path}.{name}", one.get(name), other.get(name))
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for number, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from _differences(f"{path}[{number}]", left, right)
    elif one != other:
        yield f"{path}: {one} {other}"
