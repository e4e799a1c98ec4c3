"""Every law speaks when it must, is silent when it must, and a test notices where it does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dispatch_core.simulator.laws import LAWS, ON, closing
from tests.simulator import (  # noqa: F401 - their stories
    laws_of_calls,
    laws_of_closing,
    laws_of_gates,
    laws_of_launching,
    laws_of_outcomes,
    laws_of_records,
)
from tests.simulator.story import BREACHES, NEAR_MISSES, Story, Tells

AT_THE_END = ("says_so", "nothing_left")
"""Laws that are asked of a job that has come to rest."""

EVERY = (*LAWS, *AT_THE_END)
BROKEN = [(law, story, broken) for law, stories in BREACHES.items() for story, broken in stories]
NEAR = [(law, story) for law, stories in NEAR_MISSES.items() for story in stories]


def laws_broken_by(story: Tells) -> set[str]:
    told = Story()
    story(told)
    return told.laws


def name_of(value: object) -> str:
    return value if isinstance(value, str) else getattr(value, "__name__", "")


@pytest.mark.parametrize(("law", "story", "broken"), BROKEN, ids=name_of)
def test_a_breach_is_seen(law: str, story: Tells, broken: frozenset[str]) -> None:
    assert laws_broken_by(story) == broken


@pytest.mark.parametrize(("law", "story"), NEAR, ids=name_of)
def test_a_near_miss_is_none(law: str, story: Tells) -> None:
    assert laws_broken_by(story) == set()


def test_every_law_has_a_breach_and_a_near_miss() -> None:
    assert set(BREACHES) == set(NEAR_MISSES) == set(EVERY)
    assert set(ON) == set(LAWS)


Law = Callable[..., str | None]


def replaced(monkeypatch: pytest.MonkeyPatch, name: str, law: Law) -> None:
    if name in LAWS:
        monkeypatch.setitem(LAWS, name, law)
    else:
        monkeypatch.setattr(closing, name, law)


def noticed(name: str) -> tuple[bool, bool]:
    """Whether a breach of this law, and a near miss of it, would fail their tests now."""
    unseen = any(laws_broken_by(story) != broken for story, broken in BREACHES[name])
    alarm = any(laws_broken_by(story) for story in NEAR_MISSES[name])
    return unseen, alarm


@pytest.mark.parametrize("name", EVERY)
def test_a_law_that_is_dropped_is_missed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    replaced(monkeypatch, name, lambda *what: None)
    assert noticed(name) == (True, False)


@pytest.mark.parametrize("name", EVERY)
def test_a_law_that_always_speaks_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    replaced(monkeypatch, name, lambda *what: "it is broken")
    assert noticed(name)[1]


@pytest.mark.parametrize("name", EVERY)
def test_a_law_that_is_inverted_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    law: Law = LAWS[name] if name in LAWS else getattr(closing, name)
    replaced(monkeypatch, name, lambda *what: None if law(*what) else "it is not broken")
    assert noticed(name) == (True, True)
