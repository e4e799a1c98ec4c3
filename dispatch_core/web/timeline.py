"""A job's history as a timeline: every commit, its time, who made it, and what each line of it is about.

One rule: the lines are the history's own sentences, whole and in order; what a line is called beside it only helps the
eye, and nothing rests on it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from dispatch_core.plan import Value
from dispatch_core.stores.contract import Change

NEWEST = 100
"""Commits shown before anybody asks for all."""

_KINDS = (
    ("hold", r"hold \d+ is |(hold|release) of .* (replied|is asked for)"),
    ("gate", r"(open|shut) of .* (replied|is asked for)"),
    ("call", r"(stop|requeue) of .* (replied|is asked for)"),
    ("submission", r"submission \d+ is authorized"),
    ("attempt", r"(attempt|start) \d+\.\d+ "),
    ("rule", r".* spends one unit of |(resubmit|requeue) is intended for |the (resubmit|requeue) for "),
    ("job", r"the job (has|was) |settled$|(not )?every launch |waits: |created: "),
)
_FOUND = tuple((kind, re.compile(pattern, re.DOTALL)) for kind, pattern in _KINDS)


class Line(Value, frozen=True):
    """One sentence of a commit, and what it is about."""

    kind: str
    text: str


class Moment(Value, frozen=True):
    """One commit."""

    revision: int
    at: datetime
    actor: str
    lines: tuple[Line, ...]


class Timeline(Value, frozen=True):
    """The commits that are shown, the newest first."""

    moments: tuple[Moment, ...]
    earlier: int
    """How many older ones there are."""


def kind_of(line: str) -> str:
    """What a line is about: hold, gate, call, submission, attempt, rule, job, or else an object.

    >>> kind_of("open of 17, run 1 replied done")
    'gate'
    """
    return next((kind for kind, pattern in _FOUND if pattern.match(line)), "object")


def timeline(changes: Sequence[Change], *, whole: bool = False) -> Timeline:
    """The newest commits, or all of them."""
    shown = changes if whole else changes[-NEWEST:]
    return Timeline(moments=tuple(map(_moment, reversed(shown))), earlier=len(changes) - len(shown))


def _moment(change: Change) -> Moment:
    lines = tuple(Line(kind=kind_of(line), text=line) for line in change.lines)
    return Moment(revision=change.revision, at=change.at, actor=change.actor, lines=lines)
