"""The sentences of one telling, in their order; what nothing interrupts is said in one.

One rule: a sentence stands at a place in the trace: after so many events, or between two. Where it stands decides what
it may be told together with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


TAKING = "{taking}"
"""Where a sentence says how long it takes."""


@dataclass
class Said:
    """One sentence."""

    place: float
    """The number of the event that it tells; one half less where it stands before that."""
    at: float
    text: str
    part: str = ""
    """Of what it is a part: `asks`, `taken`, `given` of a listing; `sends`, `arrives` of a call."""
    of: object = None
    """Which listing, or which call."""
    whole: str = ""
    """What is said instead of all the parts, where nothing interrupts them."""
    lasts: int = 0
    """Milliseconds that pass while it is said."""


class Sentences:
    """All sentences of one telling."""

    def __init__(self) -> None:
        self._said: list[Said] = []

    def say(self, place: float, at: float, text: str, **parts: str | object) -> Said:
        said = Said(place, at, text, **parts)  # type: ignore[arg-type]
        self._said.append(said)
        return said

    def told(self) -> Iterator[Said]:
        """In their order, and in as few words as will do."""
        self._said.sort(key=lambda said: (said.place, said.at if said.place % 1 else 0.0))
        left = [said for said in reversed(self._said) if said.text]
        while left:
            said = left.pop()
            follow = [next for next in left[-2:][::-1] if next.of is said.of and said.part]
            parts = [said.part, *(next.part for next in follow)]
            if parts == ["asks", "taken", "given"]:
                del left[-2:]
                lasts = round(follow[1].at * 1000) - round(said.at * 1000)
                yield Said(said.place, said.at, _taking(follow[1].whole, lasts), lasts=lasts)
            elif parts[:2] == ["sends", "arrives"] and left[-1] is follow[0] and follow[0].whole:
                left.pop()
                yield Said(said.place, follow[0].at, f"{said.whole}{follow[0].whole.removeprefix('-')}")
            else:
                yield said


def _taking(words: str, lasts: int) -> str:
    return words.replace(TAKING, f" taking {lasts / 1000:.12g}s" if lasts else "")
