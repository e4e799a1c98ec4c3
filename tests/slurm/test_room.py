"""Places for new objects, on a clock that stands still unless it is moved."""

from __future__ import annotations

import pytest

from dispatch_core.adapters.slurm.room import FORGET_SECONDS, FULL_SECONDS, Room

START = 40.0
"""How long a Start may take here."""


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def told(room: Room, *uids: str, alive: int = 0) -> list[float]:
    """What each is told, asking one after the other."""
    return [room.seconds(uid, alive, START) for uid in uids]


def has_place(room: Room, uid: str, alive: int = 0) -> bool:
    return told(room, uid, alive=alive) == [0.0]


def test_so_many_a_second_and_the_rest_are_told_when(clock: Clock) -> None:
    """What was saved up is one second's worth, and one."""
    room = Room(4.0, None, clock)
    names = [f"j{number}" for number in range(10)]
    assert told(room, *names) == [0, 0, 0, 0, 0, 0.25, 0.5, 0.75, 1.0, 1.25]
    clock.now += 0.24
    assert not has_place(room, "j5")
    clock.now += 0.02
    assert has_place(room, "j5")


def test_over_a_minute_no_more_than_the_rate(clock: Clock) -> None:
    """Everyone asks every tenth of a second, far more of them than there are places."""
    room = Room(0.5, None, clock)
    given: set[str] = set()
    for _ in range(600):
        waiting = [f"j{number}" for number in range(100) if f"j{number}" not in given]
        given |= {uid for uid in waiting if has_place(room, uid)}
        for uid in given:
            room.listed(uid)
        clock.now += 0.1
    assert 30 <= len(given) <= 31


def test_who_asked_first_is_first(clock: Clock) -> None:
    """Whoever asks more often, or at the right moment, is no earlier for it."""
    room = Room(1.0, None, clock)
    assert told(room, "a", "b") == [0.0, 0.0]
    assert told(room, "c", "d", "e", "e", "e") == pytest.approx([1.0, 2.0, 3.0, 3.0, 3.0])
    clock.now += 1.0
    assert told(room, "e", "d") == pytest.approx([2.0, 1.0])
    assert told(room, "c", "d") == pytest.approx([0.0, 1.0])


def test_a_place_is_kept_while_its_start_may_be_under_way(clock: Clock) -> None:
    room = Room(1.0, 1, clock)
    assert has_place(room, "a")
    clock.now += START
    assert has_place(room, "a")
    assert told(room, "b") == [FULL_SECONDS]
    clock.now += 0.1
    assert has_place(room, "b")
    assert told(room, "a") == [FULL_SECONDS]


def test_at_most_so_many_alive_those_on_their_way_included(clock: Clock) -> None:
    room = Room(1000.0, 3, clock)
    assert told(room, "a", alive=3) == [FULL_SECONDS]
    assert has_place(room, "a", alive=1)
    assert has_place(room, "b", alive=1)
    assert told(room, "c", alive=1) == [FULL_SECONDS]
    room.listed("a")
    assert told(room, "c", alive=2) == [FULL_SECONDS]  # a is one of the two, b is on its way
    clock.now += 1.0
    assert has_place(room, "c", alive=1)


def test_room_for_one_is_the_firsts(clock: Clock) -> None:
    room = Room(1000.0, 2, clock)
    assert told(room, "a", "b", alive=2) == [FULL_SECONDS, FULL_SECONDS]
    assert told(room, "b", alive=1) == [FULL_SECONDS]
    assert has_place(room, "a", alive=1)


def test_what_was_listed_needs_no_place_and_may_ask_for_another(clock: Clock) -> None:
    room = Room(1.0, None, clock)
    assert told(room, "a", "b", "c") == pytest.approx([0.0, 0.0, 1.0])
    room.listed("c")
    assert told(room, "d") == pytest.approx([1.0])
    room.listed("a")
    assert told(room, "a") == pytest.approx([2.0])


def test_who_asks_no_more_is_not_waited_for(clock: Clock) -> None:
    room = Room(1000.0, 1, clock)
    assert told(room, "gone", "b", alive=1) == [FULL_SECONDS, FULL_SECONDS]
    clock.now += FORGET_SECONDS
    assert told(room, "b") == [FULL_SECONDS]
    clock.now += 0.1
    assert has_place(room, "b")
