"""A thousand histories: no promise is broken, every kind of fault comes, and none of it is tame.

On one Python only; that the others live through the same histories is shown by a hash, in `test_simulated.py`.
"""

import pytest

from dispatch_core.simulator.campaign import campaign
from dispatch_core.simulator.faults import Fault
from dispatch_core.simulator.history import Asked


@pytest.mark.promise("V1")
@pytest.mark.promise("P1")
@pytest.mark.promise("P2")
@pytest.mark.promise("P3")
@pytest.mark.promise("P4")
@pytest.mark.promise("O2")
@pytest.mark.case("T8")
@pytest.mark.case("T49")
def test_no_promise_is_broken_in_a_thousand_histories() -> None:
    counted = campaign(0, 1000, Asked(), until=lambda counted: bool(counted.found))
    assert counted.found == []
    assert counted.missing(tuple(Fault)) == []
    assert counted.tame() == []
    assert counted.totals["explained"] > 20_000
