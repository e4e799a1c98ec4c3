"""The guards: every condition of the decision code that carries a promise, by name, and how one is taken away.

One rule: a guard is a plain function that answers one question. The decorator writes it down and returns it as it is,
so there is no switch, no flag and no cost in what runs; only `off` takes a condition away, and only the simulator and
the tests call it, to see that something goes wrong without it. This room knows no other room but the errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import TypeVar

from dispatch_core.errors import BadInput

F = TypeVar("F", bound=Callable[..., object])

Without = bool | Callable[..., object]
"""What a condition becomes when it is taken away: a constant, or what is asked instead, with the same arguments. It is
run in the guard's own room, so it may name what that room knows; it must close over nothing."""


@dataclass(frozen=True, kw_only=True)
class Guard:
    """One named condition."""

    name: str
    promise: str
    """The promises that it carries, by number, and the cases."""
    history: str
    """The file in `tests/histories` that shows it."""
    line: int = 1
    """1: the simulator must miss it, alone or with its pair. 2: other guards, or chance, hide it: its own history shows
    it."""
    pair: str = ""
    """The guard that hides it: both taken away together are missed, and the other one alone is not. "" for none."""
    function: Callable[..., object] | None = None
    """None: it is how the code is built, and there is no condition to take away."""
    without: Without = True


GUARDS: dict[str, Guard] = {}
"""Those of every room that was imported, by name."""


def guard(
    name: str, *, promise: str, without: Without, line: int = 1, history: str = "", pair: str = ""
) -> Callable[[F], F]:
    """Make a function the guard of this name; `history` where the one that shows it has another name."""

    def noted(function: F) -> F:
        _add(
            Guard(
                name=name,
                promise=promise,
                history=history or name,
                line=line,
                pair=pair,
                function=function,
                without=without,
            )
        )
        return function

    return noted


def built_in(name: str, *, promise: str, line: int = 2, history: str = "") -> None:
    """Write down a guard that is how the code is built, and not a condition."""
    _add(Guard(name=name, promise=promise, history=history or name, line=line))


@contextmanager
def off(*names: str) -> Iterator[None]:
    """Take these conditions away, and nothing else, wherever they are asked, until the block ends.

    The functions keep their identity and get other code, so that every room that imported one sees it. Not for use
    while another thread decides. Raises BadInput for a name that no guard has.
    """
    removed = [_removable(name) for name in names]
    kept = [(f, f.__code__, f.__defaults__, f.__kwdefaults__) for f, _ in removed]
    try:
        for function, instead in removed:
            function.__code__ = instead.__code__
            function.__defaults__ = instead.__defaults__
            function.__kwdefaults__ = instead.__kwdefaults__
        yield
    finally:
        for function, code, defaults, named_defaults in reversed(kept):
            function.__code__, function.__defaults__ = code, defaults
            function.__kwdefaults__ = named_defaults


def _add(added: Guard) -> None:
    if added.name in GUARDS:
        raise ValueError(f"two guards have the name {added.name}")
    GUARDS[added.name] = added


def _removable(name: str) -> tuple[FunctionType, FunctionType]:
    """The function of a guard, and the one whose code stands in for it."""
    found = GUARDS.get(name)
    if found is None:
        raise BadInput(f"there is no guard {name!r}; the guards are: {', '.join(sorted(GUARDS))}")
    if found.function is None:
        raise BadInput(f"the guard {name!r} is how the code is built: there is no condition to take away")
    instead = found.without if callable(found.without) else _always if found.without else _never
    return _plain(found.function), _plain(instead)


def _plain(function: object) -> FunctionType:
    assert isinstance(function, FunctionType)  # noqa: S101 - what has no code of its own cannot be a guard
    return function


def _always(*_: object, **__: object) -> bool:
    return True


def _never(*_: object, **__: object) -> bool:
    return False
