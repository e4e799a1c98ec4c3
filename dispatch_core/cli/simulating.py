"""`simulate`: many histories of the real supervisor in a world in which everything goes wrong.

One rule: the answer is on standard output and depends on the seeds alone, but for how fast it went; progress is on
standard error.
"""

from __future__ import annotations

import os
import sys
import time

from dispatch_core.amounts import read_seconds
from dispatch_core.cli import exits
from dispatch_core.cli.screen import Screen, plural
from dispatch_core.errors import BadInput
from dispatch_core.guards import off
from dispatch_core.simulator.campaign import ENOUGH, Counted, Found, campaign
from dispatch_core.simulator.faults import Fault, chosen
from dispatch_core.simulator.guarding import HISTORIES, Caught, take_each_away
from dispatch_core.simulator.history import BOUND_SECONDS, Asked
from dispatch_core.simulator.points import every_point
from dispatch_core.simulator.shrink import shrink
from dispatch_core.simulator.telling import history

SEEDS = 1000
"""As many as are run where nothing is said."""
SHOWN = 3
"""Violations that are shrunk and printed; the others are counted."""


def simulate(
    screen: Screen,
    *,
    seeds: str | None,
    seed: int | None,
    lasting: str | None,
    supervisors: int,
    faults: str,
    guard_off: str,
    workers: int | None,
) -> int:
    """Run histories, and say what they showed."""
    removed = tuple(name.strip() for name in guard_off.split(",") if name.strip())
    with off(*removed):
        pass  # an unknown name is refused before anything runs
    allowed = chosen(faults)
    asked = Asked(supervisors=supervisors, faults=allowed)
    first, last, seconds = _range(seeds, seed, lasting)
    single = last is not None and last - first == 1
    began = time.monotonic()
    counted = campaign(
        first,
        last,
        asked,
        removed=removed,
        workers=1 if single else _workers(workers),
        seconds=seconds,
        progress=_progress if sys.stderr.isatty() or not single else lambda counted, rate: None,
    )
    rate = counted.seeds / max(time.monotonic() - began, 1e-9)
    lacking = _lacking(counted, asked) if counted.seeds >= ENOUGH and not removed else []
    stories = [_story(found, asked, removed) for found in _worst(counted)]
    screen.result(_value(counted), _lines(counted, rate, lacking, stories))
    return exits.UNEXPECTED if counted.found or lacking else exits.FINE


def guards(screen: Screen, *, seeds: str | None, supervisors: int, faults: str, only: str, workers: int | None) -> int:
    """Take each guard away in turn, and say where it was missed."""
    first, last, _ = _range(seeds or f"0:{HISTORIES}", None, None)
    names = tuple(name.strip() for name in only.split(",") if name.strip())
    with off(*names):
        pass
    found = take_each_away(
        Asked(supervisors=supervisors, faults=chosen(faults)),
        names=names,
        first=first,
        histories=(last or HISTORIES) - first,
        workers=_workers(workers),
        progress=lambda caught: screen.say(_caught_line(caught)),
    )
    missed = [caught for caught in found if caught.line == 1 and not caught.caught]
    screen.result({"guards": [caught._asdict() for caught in found]}, _guard_lines(found, missed))
    return exits.UNEXPECTED if missed else exits.FINE


def points(screen: Screen, *, seeds: str | None, seed: int | None, supervisors: int) -> int:
    """A crash and a stall at every single point of the plans of these seeds."""
    first, last, _ = _range(seeds if seeds or seed is not None else "0:5", seed, None)
    counted, number = every_point(
        range(first, last or first + 1),
        Asked(supervisors=supervisors),
        lambda counted, so_far: screen.say(f"{so_far} points, {counted.seeds} histories, {_violations(counted)}"),
    )
    value = {"points": number, **_value(counted)}
    screen.result(value, [f"{number} points, {counted.seeds} histories", *_found_lines(counted), _violations(counted)])
    return exits.UNEXPECTED if counted.found else exits.FINE


def _range(seeds: str | None, seed: int | None, lasting: str | None) -> tuple[int, int | None, float | None]:
    """The first seed, the one after the last (None: without end), and for how many seconds."""
    if sum(given is not None for given in (seeds, seed, lasting)) > 1:
        raise BadInput("--seeds, --seed and --for exclude each other; give one of them")
    if lasting is not None:
        return 0, None, read_seconds(lasting)
    if seed is not None:
        return seed, seed + 1, None
    first, colon, last = (seeds or f"0:{SEEDS}").partition(":")
    if not (colon and first.isdigit() and last.isdigit() and int(first) < int(last)):
        raise BadInput(f"--seeds {seeds}: give the first seed and the one after the last, like 0:1000")
    return int(first), int(last), None


def _workers(workers: int | None) -> int:
    return workers if workers is not None else len(os.sched_getaffinity(0))


def _progress(counted: Counted, rate: float) -> None:
    sys.stderr.write(f"\r{counted.seeds} histories, {rate:.1f} a second, {_violations(counted)} ")
    sys.stderr.flush()


def _violations(counted: Counted) -> str:
    return plural(len(counted.found), "violation") if counted.found else "no violation"


def _lacking(counted: Counted, asked: Asked) -> list[str]:
    """What a campaign did not show, though it ought to have."""
    missing = [f"fault {name} never came" for name in counted.missing(asked.faults)]
    tame = [f"too tame: {text}" for text in counted.tame()] if asked.faults == tuple(Fault) else []
    return missing + tame


def _worst(counted: Counted) -> list[Found]:
    """The first violation of each law."""
    laws: dict[str, Found] = {}
    for found in counted.found:
        laws.setdefault(found.law, found)
    return list(laws.values())[:SHOWN]


def _story(found: Found, asked: Asked, removed: tuple[str, ...]) -> str:
    """A violation, shrunk, as a history of the tests tells it."""
    small = shrink(found.seed, asked, found.law, removed)
    repeat = f"dispatch simulate --seed {found.seed} --supervisors {asked.supervisors}"
    if removed:
        repeat += f" --guard-off {','.join(removed)}"
    return f"# once more: {repeat}\n{history(small.told, found.law, removed)}"


def _value(counted: Counted) -> dict[str, object]:
    return {
        "seeds": counted.seeds,
        "violations": [found._asdict() for found in counted.found],
        "faults": dict(sorted(counted.faults.items())),
        "steps": {name: steps for name in sorted(counted.faults) if (steps := counted.steps_of(name))},
        "means": counted.means,
        "explained": counted.totals["explained"],
        "hash": counted.hash,
    }


def _lines(counted: Counted, rate: float, lacking: list[str], stories: list[str]) -> list[str]:
    means = ", ".join(f"{name} {mean:g}" for name, mean in counted.means.items())
    faults = ", ".join(_fault_words(counted, name) for name in sorted(counted.faults))
    lines = [
        f"{plural(counted.seeds, 'history', 'histories')}, {rate:.1f} a second",
        f"means a history: {means}",
        f"faults that changed an answer or an order: {faults or 'none'}",
        f"passes that did what explain had said: {counted.totals['explained']}",
        f"the slowest job settled {counted.latest:.0f} s after faults had stopped (the bound is {BOUND_SECONDS:.0f})",
        f"hash {counted.hash}",
        *lacking,
    ]
    for story in stories:
        lines += ["", *story.splitlines(), ""]
    return [*lines, *_found_lines(counted), _violations(counted)]


def _fault_words(counted: Counted, name: str) -> str:
    """`reply_lost 12 (5 before, 7 after)`, ..."""
    steps = ", ".join(f"{count} {step}" for step, count in counted.steps_of(name).items())
    return f"{name} {counted.faults[name]}{f' ({steps})' if steps else ''}"


def _found_lines(counted: Counted) -> list[str]:
    return [f"seed {found.seed} at {found.at:.3f} s breaks {found.law}: {found.text}" for found in counted.found[:20]]


def _caught_line(caught: Caught) -> str:
    removed = " and ".join(caught.removed)
    if caught.caught:
        after = plural(caught.histories or 0, "history", "histories")
        return f"{removed}: missed after {after} (seed {caught.seed}), {caught.law}: {caught.text}"
    where = f"shown by tests/histories/{caught.shown_by}.txt" if caught.line == 2 else "NOT CAUGHT"
    return f"{removed}: not missed in any history; {where}"


def _guard_lines(found: list[Caught], missed: list[Caught]) -> list[str]:
    first = [caught for caught in found if caught.line == 1]
    early = sum(caught.caught and (caught.histories or 0) <= 1000 for caught in first)
    return [
        *(_caught_line(caught) for caught in found),
        f"first line: {len(first) - len(missed)} of {len(first)} caught, {early} within 1,000 histories",
    ]
