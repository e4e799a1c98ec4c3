"""As much of CEL as an admission policy for Jobs needs.

One rule: an expression is read whole before it is used, and what is not understood is refused when the policy is
created, never taken for true. There are literals, lists, fields, indexes, optional ones (`.?a`, `[?b]`), calls,
`has`, `timestamp`, `size`, the macros `all`, `exists` and `filter`, and the operators; not arithmetic, not maps.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

Names = dict[str, Any]
Evaluate = Callable[[Names], Any]

TOKENS = re.compile(
    r"\s*(?:('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(\d+)|([A-Za-z_]\w*)|(\.\?|\[\?|&&|\|\||[=!<>]=|[-.!<>?:,()\[\]]))"
)
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    **{"==": operator.eq, "!=": operator.ne, "<=": operator.le},
    **{">=": operator.ge, "<": operator.lt, ">": operator.gt},
}


class NotCel(ValueError):
    """The expression does not compile."""


class CelError(Exception):
    """The expression has no value for this object."""


@dataclass(frozen=True)
class Optional:
    """A value that may be absent."""

    value: Any = None
    there: bool = False


def _field(of: Any, name: Any) -> Any:
    if isinstance(of, Optional):
        return _optional_field(of, name)
    try:
        return of[name]
    except (KeyError, IndexError, TypeError) as error:
        raise CelError(f"no such key: {name}") from error


def _optional_field(of: Any, name: Any) -> Optional:
    inner = of.value if isinstance(of, Optional) else of
    if isinstance(inner, dict) and name in inner:
        return Optional(inner[name], there=True)
    return Optional()


def _timestamp(text: Any) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except (ValueError, TypeError) as error:
        raise CelError("type conversion error from 'string' to 'google.protobuf.Timestamp'") from error


METHODS: dict[str, Callable[..., Any]] = {
    "contains": lambda of, part: part in of,
    "startsWith": lambda of, part: of.startswith(part),
    "endsWith": lambda of, part: of.endswith(part),
    "matches": lambda of, pattern: re.search(pattern, of) is not None,
    "split": lambda of, by: of.split(by),
    "size": len,
    "orValue": lambda of, other: of.value if of.there else other,
    "hasValue": lambda of: of.there,
    "value": lambda of: of.value,
    "lowerAscii": lambda of: of.lower(),
}
FUNCTIONS: dict[str, Callable[..., Any]] = {"timestamp": _timestamp, "size": len, "string": str, "int": int}
MACROS: dict[str, Callable[[list[Any], list[bool]], Any]] = {
    "all": lambda _, truths: all(truths),
    "exists": lambda _, truths: any(truths),
    "filter": lambda items, truths: [item for item, true in zip(items, truths, strict=True) if true],
}


def compiled(text: str) -> Evaluate:
    """Raises NotCel."""
    return _Reader(text).whole()


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        at = 0
        while text[at:].strip():
            found = TOKENS.match(text, at)
            if found is None:
                raise NotCel(f"token recognition error at: {text[at:].strip()[0]!r}")
            self._tokens.append(found[0].strip())
            at = found.end()

    def whole(self) -> Evaluate:
        read = self._choice()
        if self._tokens:
            raise NotCel(f"extraneous input {self._tokens[0]!r}")
        return read

    def _take(self, *wanted: str) -> str:
        if self._tokens and (not wanted or self._tokens[0] in wanted):
            return self._tokens.pop(0)
        return ""

    def _need(self, wanted: str) -> None:
        if not self._take(wanted):
            found = self._tokens[0] if self._tokens else "<EOF>"
            raise NotCel(f"Syntax error: mismatched input '{found}' expecting '{wanted}'")

    def _choice(self) -> Evaluate:
        asked = self._either()
        if not self._take("?"):
            return asked
        yes = self._choice()
        self._need(":")
        no = self._choice()
        return lambda names: yes(names) if asked(names) else no(names)

    def _either(self) -> Evaluate:
        read = self._both()
        while self._take("||"):
            read = _absorbing(read, self._both(), decides=True)
        return read

    def _both(self) -> Evaluate:
        read = self._comparison()
        while self._take("&&"):
            read = _absorbing(read, self._comparison(), decides=False)
        return read

    def _comparison(self) -> Evaluate:
        left = self._unary()
        sign = self._take(*COMPARE, "in")
        if not sign:
            return left
        right = self._unary()
        if sign == "in":
            return lambda names: left(names) in right(names)
        return lambda names: COMPARE[sign](left(names), right(names))

    def _unary(self) -> Evaluate:
        if self._take("!"):
            inner = self._unary()
            return lambda names: not inner(names)
        return self._postfix(self._primary())

    def _primary(self) -> Evaluate:
        token = self._take()
        if token == "(":
            inner = self._choice()
            self._need(")")
            return inner
        if token == "[":
            items = self._arguments("]")
            return lambda names: [item(names) for item in items]
        if token[:1] in ("'", '"'):
            return _constant(re.sub(r"\\(.)", r"\1", token[1:-1]))
        if token.isdecimal():
            return _constant(int(token))
        if token in ("true", "false", "null"):
            return _constant({"true": True, "false": False, "null": None}[token])
        if re.fullmatch(r"[A-Za-z_]\w*", token) and token != "in":
            return self._called(token) if self._take("(") else lambda names: _field(names, token)
        raise NotCel(f"Syntax error: mismatched input '{token or '<EOF>'}'")

    def _called(self, name: str) -> Evaluate:
        arguments = self._arguments(")")
        if name == "has" and len(arguments) == 1:
            return lambda names: _has(arguments[0], names)
        if name not in FUNCTIONS:
            raise NotCel(f"undeclared reference to '{name}'")
        return lambda names: FUNCTIONS[name](*(argument(names) for argument in arguments))

    def _arguments(self, end: str) -> list[Evaluate]:
        read: list[Evaluate] = []
        while not self._take(end):
            if read:
                self._need(",")
            read.append(self._choice())
        return read

    def _postfix(self, read: Evaluate) -> Evaluate:
        while sign := self._take(".", ".?", "[", "[?"):
            if sign.startswith("["):
                index = self._choice()
                self._need("]")
                read = _indexed(read, index, optional=sign == "[?")
                continue
            name = self._take()
            if sign == "." and self._take("("):
                read = self._method(read, name)
            else:
                read = _indexed(read, _constant(name), optional=sign == ".?")
        return read

    def _method(self, of: Evaluate, name: str) -> Evaluate:
        if name in MACROS:
            variable = self._take()
            self._need(",")
            body = self._choice()
            self._need(")")

            def each(names: Names) -> Any:
                items = of(names)
                return MACROS[name](items, [bool(body({**names, variable: item})) for item in items])

            return each
        arguments = self._arguments(")")
        if name not in METHODS:
            raise NotCel(f"undeclared reference to '{name}'")
        return lambda names: METHODS[name](of(names), *(argument(names) for argument in arguments))


def _constant(value: Any) -> Evaluate:
    return lambda names: value


def _indexed(of: Evaluate, index: Evaluate, *, optional: bool) -> Evaluate:
    if optional:
        return lambda names: _optional_field(of(names), index(names))
    return lambda names: _field(of(names), index(names))


def _has(field: Evaluate, names: Names) -> bool:
    try:
        field(names)
    except CelError:
        return False
    return True


def _absorbing(left: Evaluate, right: Evaluate, *, decides: bool) -> Evaluate:
    """`||` (true decides) and `&&` (false decides): an error counts only where the other side does not decide."""

    def both(names: Names) -> bool:
        try:
            if bool(left(names)) is decides:
                return decides
        except CelError:
            if bool(right(names)) is decides:
                return decides
            raise
        return bool(right(names))

    return both
