"""Reading one value of a job: text, a number, a duration, a list, a mapping of known fields.

One rule: a value of another type is never bent into the one that is needed; the part that holds it refuses it, and says
what would be read. Every reader takes a part and returns its value, or raises BadInput.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

from dispatch_core.amounts import SIZES, SPELLINGS, read_bytes, read_seconds
from dispatch_core.errors import BadInput
from dispatch_core.parts import Part

LARGEST_COUNT = 1_000_000
LARGEST_FACTOR = 1000.0

T = TypeVar("T")
Reader = Callable[[Part], Any]


def fields_of(part: Part, readers: Mapping[str, Reader], needed: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a mapping, each read; a stranger, and one that is missing, is refused."""
    if not isinstance(part.value, dict):
        raise part.refuse(f"it is {part.shown}; write a mapping of {', '.join(readers)}")
    for name, inner in part.value.items():
        if name not in readers:
            near = difflib.get_close_matches(name, readers, n=1)
            meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(readers)}"
            raise inner.refuse(f"there is no such field; {meant}")
        if inner.value is None:
            raise inner.refuse("it has no value; give it one, or leave it out")
    for name in needed:
        if name not in part.value:
            raise part.refuse(f"{name} is missing; add it")
    return {name: readers[name](inner) for name, inner in part.value.items()}


def mapping(reader: Callable[[Part], T]) -> Callable[[Part], dict[str, T]]:
    def read(part: Part) -> dict[str, T]:
        if not isinstance(part.value, dict):
            raise part.refuse(f"it is {part.shown}; write a mapping, like {{NAME: ...}}")
        return {sound(part, name): reader(inner) for name, inner in part.value.items()}

    return read


def listed(part: Part, reader: Callable[[Part], T]) -> tuple[T, ...]:
    if not isinstance(part.value, list):
        raise part.refuse(f"it is {part.shown}; write a list, like [a, b]")
    return tuple(reader(inner) for inner in part.value)


def many(reader: Callable[[Part], T]) -> Callable[[Part], tuple[T, ...]]:
    """One value, or a list of them."""

    def read(part: Part) -> tuple[T, ...]:
        return listed(part, reader) if isinstance(part.value, list) else (reader(part),)

    return read


def one_of(*words: str) -> Callable[[Part], Any]:
    def read(part: Part) -> str:
        word = string(part)
        if word not in words:
            near = difflib.get_close_matches(word, words, n=1)
            meant = f"did you mean {near[0]}?" if near else f"write one of {', '.join(words)}"
            raise part.refuse(f"{part.shown} is not known here; {meant}")
        return word

    return read


def string(part: Part) -> str:
    if isinstance(part.value, str):
        return sound(part, part.value)
    if isinstance(part.value, bool | int | float):
        raise part.refuse(f'text is needed, and this is {part.shown}; quote it: "{part.source}"')
    raise part.refuse(f"text is needed, and this is {part.shown}")


def sound(part: Part, given: str) -> str:
    """Text that can be stored; half a character, as Python makes of broken bytes, cannot."""
    try:
        given.encode()
    except UnicodeEncodeError:
        raise part.refuse("it holds half a character, which cannot be stored; write it as UTF-8") from None
    return given


def boolean(part: Part) -> bool:
    if not isinstance(part.value, bool):
        raise part.refuse(f"true or false is needed, and this is {part.shown}")
    return part.value


def whole(part: Part) -> int:
    if isinstance(part.value, bool) or not isinstance(part.value, int):
        raise part.refuse(f"a whole number is needed, and this is {part.shown}")
    if abs(part.value) > LARGEST_COUNT:
        raise part.refuse(f"it is {part.shown}; the largest is {LARGEST_COUNT}")
    return part.value


def finite(part: Part) -> float:
    if isinstance(part.value, bool) or not isinstance(part.value, int | float):
        raise part.refuse(f"a number is needed, and this is {part.shown}")
    if not math.isfinite(part.value) or abs(part.value) > LARGEST_COUNT:
        raise part.refuse(f"it is {part.shown}; the largest is {LARGEST_COUNT}")
    return float(part.value)


def factor(part: Part) -> float:
    number = finite(part)
    if not 0 < number <= LARGEST_FACTOR:
        raise part.refuse(f"it is {part.shown}; a factor is above 0 and at most {LARGEST_FACTOR:g}")
    return number


def seconds(part: Part) -> float:
    if isinstance(part.value, bool) or not isinstance(part.value, str | int | float | timedelta):
        raise part.refuse(f"a duration is needed, and this is {part.shown}; {SPELLINGS}")
    try:
        return read_seconds(part.value)
    except BadInput as error:
        raise part.refuse(str(error)) from None


def size(part: Part) -> int:
    if not isinstance(part.value, str):
        raise part.refuse(f"a size is needed, and this is {part.shown}; {SIZES}")
    try:
        return read_bytes(part.value)
    except BadInput as error:
        raise part.refuse(str(error)) from None
