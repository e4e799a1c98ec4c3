"""The choice tape: the same seed, the same choices; one taken back leaves the others where they are."""

from __future__ import annotations

from dispatch_core.simulator.tape import Branch, Tape


def draws(branch: Branch, count: int = 6) -> list[int]:
    return [branch.draw() for _ in range(count)]


def test_the_same_seed_gives_the_same_draws() -> None:
    assert draws(Tape(7).branch("a")) == draws(Tape(7).branch("a"))
    assert draws(Tape(7).branch("a")) != draws(Tape(8).branch("a"))


def test_draws_are_these_numbers_on_every_python() -> None:
    assert draws(Tape(7).branch("a"), 4) == WRITTEN


def test_branches_are_independent() -> None:
    tape = Tape(7)
    a, b = tape.branch("a"), tape.branch("b")
    mixed = [(a.draw(), b.draw()) for _ in range(6)]
    assert [first for first, _ in mixed] == draws(Tape(7).branch("a"))
    assert [second for _, second in mixed] == draws(Tape(7).branch("b"))
    assert draws(Tape(7).branch("a")) != draws(Tape(7).branch("b"))


def test_a_choice_taken_back_is_0_and_moves_no_other() -> None:
    calm = Tape(7, frozenset({("a", 2)}))
    a = draws(Tape(7).branch("a"))
    assert draws(calm.branch("a")) == [a[0], 0, *a[2:]]
    assert draws(calm.branch("b")) == draws(Tape(7).branch("b"))


def taken_back() -> Branch:
    return Tape(7, frozenset(("a", number) for number in range(1, 100))).branch("a")


def test_0_is_the_calm_choice() -> None:
    calm = taken_back()
    assert not calm.chance(0.999)
    assert calm.below(10) == 0
    assert calm.among("abc") == "a"
    assert calm.some("abc", 0.999) == ()
    assert calm.seconds(2.0, 5.0) == 2.0


def test_what_came_out_unusual_is_noted_with_its_place() -> None:
    tape = Tape(7)
    branch = tape.branch("a")
    came = [branch.chance(0.5) for _ in range(20)]
    assert tape.unusual == [("a", number) for number, unusual in enumerate(came, 1) if unusual]
    calm = Tape(7, frozenset(tape.unusual)).branch("a")
    assert not any(calm.chance(0.5) for _ in range(20))


def test_draws_stay_within_their_bounds() -> None:
    branch = Tape(7).branch("a")
    assert {branch.below(3) for _ in range(100)} == {0, 1, 2}
    assert all(1.0 <= branch.seconds(1.0, 2.0) < 2.0 for _ in range(100))
    assert not any(branch.chance(0.0) for _ in range(100))
    assert all(branch.chance(1.0) for _ in range(100))


WRITTEN = [4180326302, 1462911151, 2430610741, 606494968]
