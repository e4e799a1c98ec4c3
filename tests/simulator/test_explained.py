"""What `explain` says is what the pass does: a pass that commits or sends anything else, or nothing, is noticed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from msgspec.structs import replace

from dispatch_core.evidence import Bounds, Capabilities, Listing
from dispatch_core.plan import Plan, Spec
from dispatch_core.record import Attempt, Record
from dispatch_core.simulator.campaign import run_seed
from dispatch_core.simulator.explained import Explained
from dispatch_core.simulator.history import Asked
from dispatch_core.simulator.trace import (
    Acknowledged,
    Committed,
    Event,
    Hindered,
    Looked,
    Read,
    Refused,
    Sent,
    Withheld,
)
from tests.world import EPOCH, KEY, UID

FIRST = Record(
    key=KEY, uid=UID, scheduler="cluster", spec=Spec(command=("train.sh",)), plan=Plan(), revision=1, commit="c1"
)


class Told:
    """One actor, whose passes are heard by an `Explained`."""

    def __init__(self) -> None:
        self.revisions = [FIRST]
        self.explained = Explained(Bounds(call_seconds=2.0, window_seconds=20.0), Capabilities(), self.revisions)
        self.now = 0.0
        self.texts: list[str] = []

    def tell(self, event: Event) -> None:
        text = self.explained.see(event)
        if text is not None:
            self.texts.append(text)

    def looks(self) -> None:
        """It reads the newest record, and is shown that nothing is there."""
        self.now += 1.0
        at = EPOCH + timedelta(seconds=self.now)
        self.tell(Read(self.now, "a", self.revisions[-1].revision))
        listing = Listing(objects=(), began=at, ended=at, complete=True)
        self.tell(Looked(self.now, "a", True, listing, self.now, self.now, ()))

    def decided(self) -> Record:
        """What it was explained to commit."""
        known = self.explained._actors["a"].at
        assert known is not None
        assert known.said.record is not None
        return replace(known.said.record, revision=self.revisions[-1].revision + 1, commit="c2")

    def commits(self, after: Record) -> None:
        before = self.revisions[-1]
        self.revisions.append(after)
        self.tell(Committed(self.now, "a", before, after, False, False, "a"))
        self.tell(Acknowledged(self.now, "a", after.revision, after.commit))

    def sends(self, attempt: int = 1) -> None:
        made: Attempt = self.revisions[-1].submissions[0].attempts[0]
        self.tell(Sent(self.now, "a", 1, None, None, 0, 1, attempt, "", (), made.deadline, 2))


def all_of_it(told: Told) -> None:
    told.commits(told.decided())
    told.sends()


def refused(told: Told) -> None:
    told.tell(Refused(told.now, "a", 1, "c2", "Conflict"))


def not_sent(told: Told) -> None:
    told.commits(told.decided())


def withheld(told: Told) -> None:
    told.commits(told.decided())
    told.tell(Withheld(told.now, "a", "there is no secret"))


def left(told: Told) -> None:
    told.commits(told.decided())
    told.tell(Hindered(told.now, "a", "the store is down"))


def sent_another(told: Told) -> None:
    told.commits(told.decided())
    told.sends(attempt=2)


def sent_twice(told: Told) -> None:
    all_of_it(told)
    told.sends()


def sent_after_a_refusal(told: Told) -> None:
    after = told.decided()
    refused(told)
    told.revisions.append(after)  # somebody else's
    told.sends()


def committed_another(told: Told) -> None:
    told.commits(replace(told.decided(), settled=False, scheduler="elsewhere"))
    told.sends()


def nothing(told: Told) -> None:
    pass


@pytest.mark.parametrize("does", [all_of_it, refused, withheld, left])
def test_what_was_explained_is_done(does: Callable[[Told], None]) -> None:
    told = Told()
    told.looks()
    does(told)
    told.looks()
    assert told.texts == []


@pytest.mark.parametrize(
    ("does", "text"),
    [
        (nothing, "a committed nothing, and a commit was explained"),
        (not_sent, "a did not send what was explained: Start"),
        (sent_another, "a sent a start, and explained was: Start"),
        (sent_twice, "a sent a start, and explained was: no call"),
        (sent_after_a_refusal, "a sent a start, and explained was: no call"),
        (committed_another, "a committed revision 2, and another one was explained"),
    ],
)
def test_what_was_not_explained_is_noticed(does: Callable[[Told], None], text: str) -> None:
    told = Told()
    told.looks()
    does(told)
    told.looks()
    assert [found[: len(text)] for found in told.texts] == [text]


def test_who_commits_where_nothing_was_explained_is_noticed() -> None:
    told = Told()
    told.looks()
    all_of_it(told)
    told.tell(Read(told.now, "b", 2))
    told.now += 0.5
    at = EPOCH + timedelta(seconds=told.now)
    listing = Listing(objects=(), began=at, ended=at, complete=True)
    told.tell(Looked(told.now, "b", True, listing, told.now, told.now, ()))
    told.tell(Refused(told.now, "b", 2, "c3", "Conflict"))
    assert told.texts == ["b tried to commit, and nothing was explained"]


def test_most_passes_are_compared() -> None:
    told = run_seed(3, Asked())
    assert told.world is not None
    passes = sum(type(event) is Looked and event.job for event in told.world.trace)
    assert told.explained * 2 > passes
