"""Label and field selectors.

One rule: a selector that does not parse is refused as a whole, with the words of the real parser where a capture has
them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.kubernetes.server.refusing import bad_request

Matches = Callable[[dict[str, Any]], bool]

_TERM = re.compile(
    r"""\s*(?:
    (?P<absent>!)\s*(?P<absent_key>[\w./-]+)
  | (?P<key>[\w./-]+)\s*(?:
        (?P<set>in|notin)\s*\((?P<values>[^()]*)\)
      | (?P<equal>==|=|!=)\s*(?P<value>[\w.-]*)
    )?
    )\s*(?:,|$)""",
    re.VERBOSE,
)


def _requirement(found: re.Match[str]) -> Callable[[dict[str, str]], bool]:
    if found["absent"]:
        return lambda labels: found["absent_key"] not in labels
    key = found["key"]
    if found["set"]:
        values = {value.strip() for value in found["values"].split(",")}
        if found["set"] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if found["equal"] == "!=":
        return lambda labels: labels.get(key) != found["value"]
    if found["equal"]:
        return lambda labels: labels.get(key) == found["value"]
    return lambda labels: key in labels


def labels(selector: str) -> Matches:
    """What a labelSelector asks for."""
    wanted = []
    at = 0
    while at < len(selector):
        found = _TERM.match(selector, at)
        if found is None:
            odd = re.search(r"[=!]([!@#$%^&*(])", selector)
            raise bad_request(
                f"unable to parse requirement: found '{odd[1] if odd else selector[at]}', expected: identifier"
            )
        wanted.append(_requirement(found))
        at = found.end()
    return lambda found: all(ask(found["metadata"].get("labels") or {}) for ask in wanted)


def _value(found: Any, path: str) -> str:
    for part in path.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return "" if found is None else str(found)


def fields(selector: str) -> Matches:
    """What a fieldSelector asks for: any dotted path, which is more than a real server takes."""
    wanted = []
    for term in filter(None, selector.split(",")):
        found = re.fullmatch(r"\s*([\w.]+)\s*(==|=|!=)\s*(.*?)\s*", term)
        if found is None:
            raise bad_request(f"invalid field selector: {term!r}")
        wanted.append((found[1], found[2] == "!=", found[3]))
    return lambda found: all((_value(found, path) == value) != unequal for path, unequal, value in wanted)


def both(label_selector: str, field_selector: str) -> Matches:
    by_label, by_field = labels(label_selector), fields(field_selector)
    return lambda found: by_label(found) and by_field(found)
