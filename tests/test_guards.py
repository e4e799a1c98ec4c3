"""Every guard of the decision code has a name, can be taken away, and is missed when it is."""

import pytest

from dispatch_core import find, gate
from dispatch_core.errors import BadInput
from dispatch_core.guards import GUARDS, off


def test_a_removed_condition_is_seen_wherever_it_is_asked() -> None:
    asked = gate._is_sole
    with off("all_retired_before_open"):
        assert asked(["o2"])
        assert gate._is_sole is asked
    assert not asked(["o2"])


def test_an_unknown_name_is_refused_in_one_line() -> None:
    with pytest.raises(BadInput, match=r"^there is no guard 'lock'; the guards are: [a-z_, ]+$"), off("lock"):
        pass


def test_nothing_is_left_behind_after_an_error() -> None:
    before = {guard.name: getattr(guard.function, "__code__", None) for guard in GUARDS.values()}
    with pytest.raises(ZeroDivisionError), off("expired_after_call_bound", "expiry_by_listing_beginning"):
        find.Observed.expiry.__code__ is before["expired_after_call_bound"] or 1 / 0
    assert {guard.name: getattr(guard.function, "__code__", None) for guard in GUARDS.values()} == before


def test_what_is_no_condition_cannot_be_taken_away() -> None:
    with pytest.raises(BadInput, match="how the code is built"), off("listing_begun_after_read"):
        pass
