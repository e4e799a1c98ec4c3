"""Which job is a task's: the key and the generation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.identity import Pin, Seen, generation_of, key, pinned, read_pin, stem
from dispatch_core.record import KEY_LENGTH

PARTS = st.tuples(st.text(max_size=250), st.text(max_size=250), st.text(max_size=250), st.integers(-1, 10_000))


@given(PARTS, st.integers(0, 9_999_999_999))
def test_every_key_fits_and_its_generation_is_read_back(parts: tuple[str, str, str, int], generation: int) -> None:
    whole = key(stem(*parts), generation)
    assert len(whole) <= KEY_LENGTH
    assert generation_of(stem(*parts), whole) == generation


@given(PARTS, PARTS)
def test_two_tasks_never_share_a_key(one: tuple[str, str, str, int], other: tuple[str, str, str, int]) -> None:
    assert (stem(*one) == stem(*other)) == (one == other)


def test_a_slash_in_a_name_is_no_border() -> None:
    assert stem("a/b", "c", "d", -1) != stem("a", "b/c", "d", -1)


def test_a_long_key_is_cut_where_people_can_still_read_it() -> None:
    long = stem("d" * 250, "manual__2026-11-29T00:00:00+00:00", "train_" + "t" * 200, 7)
    assert long.startswith("airflow/ddddd")
    assert "/manual__2026-11-29T00:00:00+00:00/train_" in long
    assert "/7~" in long
    assert long != stem("d" * 250, "manual__2026-11-29T00:00:00+00:00", "train_" + "t" * 201, 7)


def test_mapped_instances_have_jobs_of_their_own() -> None:
    assert stem("etl", "r", "train", 0) != stem("etl", "r", "train", 1)


def test_a_key_of_another_task_is_no_generation_of_this_one() -> None:
    assert generation_of("airflow/etl/r/train/-1", "airflow/etl/r/train/-1/x") is None
    assert generation_of("airflow/etl/r/train/-1", "airflow/etl/r/train/1/0") is None


# max_tries, retries and the run's clears of one try after another, and the generation of each.
STORIES = {
    "a first run": [((0, 0, 0), 0)],
    "an automatic retry": [((1, 1, 0), 0), ((1, 1, 0), 0)],
    "a clear without retries": [((0, 0, 0), 0), ((1, 0, 1), 1), ((2, 0, 2), 2)],
    "a clear with retries": [((2, 2, 0), 0), ((2, 2, 0), 0), ((4, 2, 1), 2)],
    "another task was cleared": [((1, 1, 0), 0), ((1, 1, 1), 0)],
    "retries were raised": [((1, 1, 0), 0), ((1, 5, 0), 0)],
    "retries were lowered": [((3, 3, 0), 0), ((3, 1, 0), 0), ((3, 1, 0), 0)],
    "retries were edited, later another task was cleared": [((3, 3, 0), 0), ((3, 1, 0), 0), ((3, 1, 1), 0)],
    "retries were lowered, then a clear that makes up for it": [((3, 3, 0), 0), ((3, 2, 1), 1)],
    "retries were raised, then a clear": [((1, 1, 0), 0), ((6, 5, 1), 1)],
    "a clear that leaves the run as it is": [((0, 0, 0), 0), ((1, 0, 0), 1)],
    "a clear by an Airflow that no longer finds the dag": [((0, 0, 0), 0), ((1, 0, 1), 1)],
}


@pytest.mark.promise("A4")
@pytest.mark.parametrize("name", STORIES)
def test_a_generation_ends_with_a_clear_and_with_nothing_else(name: str) -> None:
    pin: Pin | None = None
    for numbers, expected in STORIES[name]:
        pin = pinned(pin, Seen(*numbers))
        assert pin.generation == expected
        assert read_pin(pin.stored()) == pin


@pytest.mark.parametrize("stored", [None, "x", 3, [], {}, {"generation": "1"}, {"generation": 1}])
def test_what_is_no_pin_is_not_read_as_one(stored: object) -> None:
    assert read_pin(stored) is None
