"""The sentences of one telling, in their order; what nothing interrupts is said in one.

One rule: a sentence stands at a place in the trace: after so many events, or between two. Where it stands decides what
it may be told together with; the record is the same either way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

HAVING_READ = ", having read revision "
"""Said of what was done after a read that was not of the newest: a whole pass says nothing of the kind."""
TAKING = "{taking}"
"""Where a sentence says how long it takes."""


@dataclass
class Said:
    """One sentence."""

    place: float
    """The number of the event that it tells; a fraction less where it stands before that."""
    at: float
    text: str
    part: str = ""
    """Of a listing `asks`, `taken`, `given`, in one `lists`; of a call `sends`, `arrives`, in one `calls`; of a pass
    `reads`, the listing, `decides`, `commits`, the call."""
    of: object = None
    """Which listing, or which call."""
    whole: str = ""
    """Said instead of all the parts, where nothing interrupts them: of a listing how it lies, of a call its fate."""
    calls: int = 0
    """How many calls a commit allows."""
    timeless: bool = False
    """Nothing that it leads to depends on when it is."""
    lasts: int = 0
    """Milliseconds that pass while it is said."""


class Sentences:
    """All sentences of one telling."""

    def __init__(self) -> None:
        self._said: list[Said] = []

    def say(self, place: float, at: float, text: str, **parts: Any) -> Said:
        said = Said(place, at, text, **parts)
        self._said.append(said)
        return said

    def told(self) -> Iterator[Said]:
        """In their order, and in as few words as will do."""
        self._said.sort(key=lambda said: (said.place, said.at if said.place % 1 else 0.0))
        yield from _passes(_steps([said for said in self._said if said.text]))


def _steps(said: list[Said]) -> list[Said]:
    """Listings and calls in one sentence each."""
    steps: list[Said] = []
    number = 0
    while number < len(said):
        first = said[number]
        follow = [next for next in said[number + 1 : number + 3] if next.part and next.of is first.of]
        parts = [next.part for next in follow]
        if first.part == "asks" and parts == ["taken", "given"]:
            lasts = _milliseconds(follow[1].at) - _milliseconds(first.at)
            taking = f" taking {lasts / 1000:.12g}s" if lasts else ""
            lies = follow[1].whole.replace(TAKING, taking)
            name = first.text.partition(" ")[0]
            steps.append(Said(first.place, first.at, f"{name} lists{lies}", "lists", first.of, lies, lasts=lasts))
            number += 3
        elif first.part == "sends" and parts[:1] == ["arrives"] and said[number + 1] is follow[0] and follow[0].whole:
            fate = follow[0].whole.removeprefix("-")
            steps.append(Said(first.place, follow[0].at, f"{first.whole}{fate}", "calls", first.of, fate))
            number += 2
        else:
            steps.append(first)
            number += 1
    return steps


def _passes(steps: list[Said]) -> Iterator[Said]:
    """Whole passes in one sentence each; they take no time but their listings', and their calls arrive at once."""
    number = 0
    while number < len(steps):
        said, length = _pass(steps[number : number + 5])
        yield said
        number += length


def _pass(steps: list[Said]) -> tuple[Said, int]:
    """The sentence that some steps begin with, and how many of them it says."""
    first = steps[0]
    name = first.text.partition(" ")[0]
    parts = [step.part for step in steps[:4] if step.of is first.of]
    if parts != ["reads", "lists", "decides", "commits"]:
        return first, 1
    listing, commit = steps[1], steps[3]
    if (first.text, commit.text) != (f"{name} reads", f"{name} commits"):
        return first, 1
    sends = f"{name} sends"
    call = next((step for step in steps[4:] if step.text == sends or step.text.startswith(f"{sends}, ")), None)
    if commit.calls != (call is not None) or (call is not None and call.part not in ("sends", "calls")):
        return first, 1
    if call is not None and HAVING_READ in call.text:
        return first, 1
    fate = call.text.removeprefix(sends) if call is not None else ""
    text = f"{name} passes at once{listing.whole}{fate}"
    return Said(listing.place, listing.at, text, lasts=listing.lasts), 4 + (call is not None)


def _milliseconds(at: float) -> int:
    return round(at * 1000)
