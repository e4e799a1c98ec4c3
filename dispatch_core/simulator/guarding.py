"""Every guard taken away in turn, until something goes wrong without it.

One rule: a guard counts as caught by a seed whose history breaks a law without the guard, and none with it. One of the
second line is hidden by others: it is shown by a pair, or by its own history in `tests/histories`.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import NamedTuple

from dispatch_core.guards import GUARDS, Guard
from dispatch_core.simulator.campaign import run_seed
from dispatch_core.simulator.history import Asked

HISTORIES = 5000
"""How many histories a guard is looked for in, at most."""
SECOND_LINE = 100
"""And one of the second line, which its own history shows."""


class Caught(NamedTuple):
    """Where a guard was missed."""

    name: str
    caught: bool
    histories: int | None
    """How many it took; None: no law was broken in any."""
    seed: int | None
    promise: str
    line: int
    removed: tuple[str, ...]
    """What was taken away: the guard, or the pair in which it is missed."""
    law: str
    text: str
    shown_by: str
    """The file in `tests/histories` that shows it."""


def removable() -> tuple[Guard, ...]:
    """The guards that are conditions; the others are how the code is built, and shown by a history."""
    return tuple(guard for guard in GUARDS.values() if guard.function is not None)


def look_for(name: str, asked: Asked, first: int, histories: int) -> Caught:
    """The first seed in whose history the guard is missed, alone, or with the one that hides it."""
    guard = GUARDS[name]
    removed = (name, guard.pair) if guard.pair else (name,)
    for seed in range(first, first + (histories if guard.line == 1 else min(histories, SECOND_LINE))):
        told = run_seed(seed, asked, removed)
        if told.violations and not any(run_seed(seed, asked, known).violations for known in ((), removed[1:])):
            worst = told.violations[0]
            took = seed - first + 1
            return _caught(guard, removed, took, seed, worst.law, worst.text)
    return _caught(guard, removed, None, None, "", "")


def _caught(guard: Guard, removed: tuple[str, ...], took: int | None, seed: int | None, law: str, text: str) -> Caught:
    return Caught(
        name=guard.name,
        caught=took is not None,
        histories=took,
        seed=seed,
        promise=guard.promise,
        line=guard.line,
        removed=removed,
        law=law,
        text=text,
        shown_by=guard.history,
    )


def take_each_away(
    asked: Asked,
    *,
    names: Sequence[str] = (),
    first: int = 0,
    histories: int = HISTORIES,
    workers: int = 1,
    progress: Callable[[Caught], None] = lambda caught: None,
) -> list[Caught]:
    """Every guard, or those named, taken away one after the other."""
    wanted = [guard.name for guard in removable() if not names or guard.name in names]
    if workers == 1:
        found = []
        for name in wanted:
            found.append(look_for(name, asked, first, histories))
            progress(found[-1])
        return found
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        waiting = [pool.submit(look_for, name, asked, first, histories) for name in wanted]
        found = []
        for future in as_completed(waiting):
            found.append(future.result())
            progress(found[-1])
    return sorted(found, key=lambda caught: wanted.index(caught.name))
