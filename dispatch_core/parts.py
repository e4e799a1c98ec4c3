"""What a person wrote, as a tree of parts that know where they stand: a YAML text, or the fields an engine was given.

One rule: nothing is guessed. Where YAML would make a boolean of `yes`, a number of `1:30` or `010`, or a date of
`2026-01-01`, it is refused with the line, and with the quotes that say what was meant. A part refuses what it holds in
one line that begins with its place. This room knows neither jobs nor plans.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import yaml

from dispatch_core.errors import BadInput

DEEPEST = 20
"""Levels; no job needs them, and a tree of thousands would overrun the stack."""

_TAG = "tag:yaml.org,2002:"
_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]{0,15})", re.ASCII)
_FLOAT = re.compile(r"[-+]?(0|[1-9][0-9]{0,15})\.[0-9]{0,30}([eE][-+]?[0-9]{1,3})?", re.ASCII)
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Part:
    """One value, with its place."""

    value: object
    """A dict of parts, a list of parts, or a scalar: str, int, float, bool, None, timedelta."""
    name: str
    """Its path: `plan.rules[0].do`; "" for the whole."""
    file: str
    """"" where it was not read from a file."""
    line: int
    source: str
    """A scalar as it was written."""

    def refuse(self, text: str) -> BadInput:
        """The error that says what is wrong here, and where here is."""
        place = f"{self.file}:{self.line}: " if self.file else ""
        return BadInput(f"{place}{self.name}: {text}" if self.name else f"{place}{text}")

    @property
    def shown(self) -> str:
        """What stands here, for a message."""
        match self.value:
            case None:
                return "nothing"
            case dict():
                return "a mapping"
            case list():
                return "a list"
            case bool():
                return f"the boolean {self.source}"
            case int() | float():
                return f"the number {self.source}"
            case str():
                return json.dumps(self.source if len(self.source) <= 60 else f"{self.source[:57]}...")
            case _:
                return f"a {type(self.value).__name__}"

    def at(self, path: Sequence[str | int]) -> Part:
        """The part at a path, or the deepest one on the way to it."""
        part = self
        for step in path:
            inner: Part | None = None
            if isinstance(part.value, dict) and isinstance(step, str):
                inner = part.value.get(step)
            elif isinstance(part.value, list) and isinstance(step, int) and step < len(part.value):
                inner = part.value[step]
            if inner is None:
                break
            part = inner
        return part


def from_fields(fields: object, name: str, depth: int = 0) -> Part:
    """The parts of what an engine was given: mappings, lists, tuples and scalars."""
    part = Part(value=fields, name=name, file="", line=0, source="")
    if depth > DEEPEST:
        raise part.refuse("it is nested too deep; nothing here has so many levels")
    value: object = fields
    match fields:
        case Mapping():
            for key in fields:
                if not isinstance(key, str):
                    raise part.refuse(f"a field is named by {type(key).__name__} {key!r:.60}; names are text")
            value = {str(key): from_fields(inner, _inner(name, key), depth + 1) for key, inner in fields.items()}
        case list() | tuple():
            value = [from_fields(inner, f"{name}[{index}]", depth + 1) for index, inner in enumerate(fields)]
        case str():
            value = str(fields)  # an enum's member is the text it stands for
        case None | bool() | int() | float() | timedelta():
            pass
        case _:
            raise part.refuse(
                f"a {type(fields).__name__} cannot be written down; give text, a number, a list or a dict"
            )
    return Part(value=value, name=name, file="", line=0, source=_source(value))


def from_yaml(text: str, file: str, *, needs: str = "a job needs at least key and spec") -> Part:
    """The parts of a YAML text; `needs` is said of an empty one.

    Raises BadInput for what is no YAML, or not the part of it that is read here."""
    text = text.removeprefix("\ufeff")
    odd = _UNPRINTABLE.search(text)
    if odd is not None:
        line = text.count("\n", 0, odd.start()) + 1
        raise BadInput(
            f"{file}:{line}: the character U+{ord(odd[0]):04X} is not allowed; write it as an escape in quotes"
        )
    try:
        root = yaml.compose(text, _Loader)
    except yaml.MarkedYAMLError as error:
        raise _unreadable(error, text, file) from None
    except RecursionError:
        raise BadInput(f"{file}:1: it is nested too deep; nothing here has so many levels") from None
    except (yaml.YAMLError, ValueError, OverflowError):
        # Escapes of characters that do not exist, and directives that PyYAML trips over.
        raise BadInput(f"{file}:1: it is not YAML; check its quotes and its escapes") from None
    if root is None:
        raise BadInput(f"{file}:1: it is empty; {needs}")
    return _part(root, "", file, root.start_mark.line + 1, 0)


class _Loader(yaml.SafeLoader):
    """Without aliases: what a line says is written in that line, and a short text cannot become a huge tree."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="aliases are not read; write the value out", problem_mark=mark)
        return super().compose_node(parent, index)


def _unreadable(error: yaml.MarkedYAMLError, text: str, file: str) -> BadInput:
    mark = error.problem_mark or error.context_mark
    number = mark.line if mark is not None else 0
    lines = text.splitlines()
    line = lines[number] if number < len(lines) else ""
    said = error.problem or "it is not YAML"
    if "\t" in line[: mark.column + 1 if mark is not None else 0] or ("\\t" in said and "\t" in line):
        said = "there is a tab; YAML is indented and spaced with spaces only"
    elif "but found another document" in said:
        said = "a second document begins; keep one of them in the file"
    elif not said.startswith("aliases"):
        said = f"it is not YAML: {said}; check the indentation, brackets and quotes up to here"
    return BadInput(f"{file}:{number + 1}: {said}")


def _part(node: yaml.Node, name: str, file: str, line: int, depth: int) -> Part:
    part = Part(value=None, name=name, file=file, line=line, source="")
    if depth > DEEPEST:
        raise part.refuse("it is nested too deep; nothing here has so many levels")
    if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
        return Part(value=_fields(node, part, depth), name=name, file=file, line=line, source="")
    if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
        value = [
            _part(inner, f"{name}[{index}]", file, inner.start_mark.line + 1, depth + 1)
            for index, inner in enumerate(node.value)
        ]
        return Part(value=value, name=name, file=file, line=line, source="")
    if not isinstance(node, yaml.ScalarNode):
        raise part.refuse(f"the tag {_tag(node)} is not read here; leave it out")
    return Part(value=_scalar(node, part), name=name, file=file, line=line, source=str(node.value))


def _fields(node: yaml.MappingNode, whole: Part, depth: int) -> dict[str, Part]:
    fields: dict[str, Part] = {}
    for key, inner in node.value:
        line = key.start_mark.line + 1
        here = Part(value=None, name=whole.name, file=whole.file, line=line, source="")
        if not isinstance(key, yaml.ScalarNode):
            raise here.refuse("a field is named by a list or a mapping; names are text")
        name = str(key.value)
        if name in fields:
            raise here.refuse(f"{name} is given twice, first in line {fields[name].line}; keep one of them")
        fields[name] = _part(inner, _inner(whole.name, name), whole.file, line, depth + 1)
    return fields


def _scalar(node: yaml.ScalarNode, part: Part) -> object:
    text = str(node.value)
    kind = node.tag.removeprefix(_TAG)
    quoted = json.dumps(text)
    match kind:
        case "str":
            return text
        case "null":
            return None
        case "bool" if text.lower() in ("true", "false"):
            return text.lower() == "true"
        case "bool":
            raise part.refuse(f"YAML reads {text} as a boolean; quote it: {quoted}, or write true or false")
        case "int" if _DECIMAL.fullmatch(text):
            return int(text)
        case "float" if _FLOAT.fullmatch(text):
            return float(text)
        case "int" | "float":
            raise part.refuse(f"YAML reads {text} as a number, and not everywhere as the same; quote it: {quoted}")
        case "timestamp":
            raise part.refuse(f"YAML reads {text} as a date; quote it: {quoted}")
        case "value" | "merge":
            raise part.refuse(f"YAML gives {text} a meaning of its own; quote it: {quoted}")
        case _:
            raise part.refuse(f"the tag {_tag(node)} is not read here; leave it out")


def _tag(node: yaml.Node) -> str:
    return str(node.tag).replace(_TAG, "!!")[:60]


def _inner(name: str, key: str) -> str:
    shown = key if re.fullmatch(r"[\w-]{1,60}", key) else json.dumps(key[:60])
    return f"{name}.{shown}" if name else shown


def _source(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 200:
        return "of this length"
    return "" if isinstance(value, dict | list) else str(value)
