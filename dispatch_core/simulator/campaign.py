"""Many histories: by seed, on several cores, counted, and judged as a whole.

One rule: the answer depends on the seeds and nothing else, however many workers there are. A campaign fails on a
violation, and where it was long enough to say so also on a kind of fault that never came, or never on one side of its
effect, or on histories that are too tame to show anything.
"""

from __future__ import annotations

import gc
import hashlib
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from typing import NamedTuple

from dispatch_core.guards import off
from dispatch_core.simulator.faults import STEPS, Fault
from dispatch_core.simulator.history import Asked, History, Told

CHUNK = 20
"""Seeds that one worker is given at a time."""
ENOUGH = 300
"""A campaign of fewer histories is not judged for what it did not show."""
LEAST = {"calls": 8.0, "commits": 8.0, "submissions": 1.3, "faults": 3.0}
"""Means a history below which a campaign is too tame."""


class Found(NamedTuple):
    """A history in which a law was broken."""

    seed: int
    law: str
    text: str
    at: float


@dataclass
class Counted:
    """What some histories showed."""

    seeds: int = 0
    found: list[Found] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)
    """Of kinds that may come on either side of an effect, as `reply_lost after`."""
    totals: Counter[str] = field(default_factory=Counter)
    digests: dict[int, str] = field(default_factory=dict)
    latest: float = -1e9
    """The longest that a job took to settle, once faults had stopped."""

    def add(self, told: Told) -> None:
        self.seeds += 1
        self.found += [Found(told.seed, v.law, v.text, v.at) for v in told.violations]
        self.faults.update(told.faults)
        self.steps.update(told.steps)
        self.totals.update(
            calls=told.calls,
            commits=told.commits,
            submissions=told.submissions,
            faults=sum(told.faults.values()),
            explained=told.explained,
        )
        self.digests[told.seed] = told.digest
        self.latest = max(self.latest, told.settled_after)

    def merge(self, other: Counted) -> None:
        self.seeds += other.seeds
        self.found += other.found
        self.faults.update(other.faults)
        self.steps.update(other.steps)
        self.totals.update(other.totals)
        self.digests.update(other.digests)
        self.latest = max(self.latest, other.latest)

    @property
    def means(self) -> dict[str, float]:
        return {name: round(self.totals[name] / max(self.seeds, 1), 2) for name in LEAST}

    @property
    def hash(self) -> str:
        """Of every event of every history, in the order of the seeds."""
        whole = hashlib.blake2b(digest_size=16)
        for seed in sorted(self.digests):
            whole.update(self.digests[seed].encode())
        return whole.hexdigest()

    def missing(self, allowed: tuple[Fault, ...]) -> list[str]:
        """Kinds of fault that were asked for and never came, or never at one of their steps, as `reply_lost after`."""
        kinds: list[str] = [fault for fault in allowed if not self.faults[fault]]
        steps = (f"{fault} {step}" for fault in allowed if self.faults[fault] for step in STEPS.get(fault, ()))
        return kinds + [step for step in steps if not self.steps[step]]

    def steps_of(self, fault: str) -> dict[str, int]:
        """How often it came at each of its steps; empty for a kind that has none."""
        return {step: self.steps[f"{fault} {step}"] for step in STEPS.get(Fault(fault), ())}

    def tame(self) -> list[str]:
        """Means that are too low, as `calls 3.1 (at least 8)`."""
        return [
            f"{name} {self.means[name]:g} (at least {low:g})" for name, low in LEAST.items() if self.means[name] < low
        ]


def run_seed(seed: int, asked: Asked, removed: tuple[str, ...] = ()) -> Told:
    """One history, with these guards taken away."""
    with off(*removed):
        return History(seed, asked).run()


def run_seeds(seeds: range, asked: Asked, removed: tuple[str, ...] = ()) -> Counted:
    """Some histories, one after the other, in this program. They make a great deal of garbage, of which little is in
    cycles; collected as often as Python would, it took a twentieth of the time."""
    counted, often = Counted(), gc.get_threshold()
    gc.set_threshold(50_000, 20, 100)
    try:
        for seed in seeds:
            counted.add(run_seed(seed, asked, removed))
    finally:
        gc.set_threshold(*often)
    return counted


def chunks(first: int, last: int | None) -> Iterator[range]:
    """The seeds in portions; without `last`, without end."""
    while last is None or first < last:
        end = first + CHUNK if last is None else min(first + CHUNK, last)
        yield range(first, end)
        first = end


def campaign(
    first: int,
    last: int | None,
    asked: Asked,
    *,
    removed: tuple[str, ...] = (),
    workers: int = 1,
    seconds: float | None = None,
    until: Callable[[Counted], bool] = lambda counted: False,
    progress: Callable[[Counted, float], None] = lambda counted, rate: None,
) -> Counted:
    """The histories of the seeds from `first` to below `last`, or for so many seconds, or `until` something is seen."""
    counted, began = Counted(), time.monotonic()
    portions = chunks(first, last)

    def is_over() -> bool:
        return until(counted) or (seconds is not None and time.monotonic() - began > seconds)

    if workers == 1:
        for portion in portions:
            counted.merge(run_seeds(portion, asked, removed))
            progress(counted, counted.seeds / (time.monotonic() - began))
            if is_over():
                break
        counted.found.sort()
        return counted
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        waiting: set[Future[Counted]] = set()
        for portion in portions:
            waiting.add(pool.submit(run_seeds, portion, asked, removed))
            if len(waiting) < 2 * workers:
                continue
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                counted.merge(future.result())
            progress(counted, counted.seeds / (time.monotonic() - began))
            if is_over():
                break
        for future in waiting:
            counted.merge(future.result())
    counted.found.sort()
    return counted
