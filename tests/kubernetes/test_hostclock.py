"""The server's clock, told from Date headers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from dispatch_core.adapters.kubernetes.hostclock import CLOCK_SECONDS, HostClock
from dispatch_core.errors import SchedulerUnavailable

START = datetime(2026, 11, 29, 14, 0, 0, 400_000, tzinfo=UTC)


def date(at: datetime) -> str:
    return format_datetime(at.replace(microsecond=0), usegmt=True)


def heard(clock: HostClock, server: datetime, monotonic: float, way: float = 0.01) -> None:
    clock.heard(date(server), monotonic - way, monotonic + way)


@pytest.mark.promise("L5")
def test_it_comes_close_and_is_never_ahead() -> None:
    clock = HostClock()
    for number in range(100):
        seconds = 0.37 * number
        heard(clock, START + timedelta(seconds=seconds), 1000.0 + seconds)
        error = (START + timedelta(seconds=seconds) - clock.at(1000.0 + seconds)).total_seconds()
        assert 0 <= error <= CLOCK_SECONDS
    assert error < 0.1


def test_it_does_not_run_back_while_the_servers_does_not() -> None:
    clock = HostClock()
    before = None
    for number in range(50):
        seconds = 0.53 * number
        heard(clock, START + timedelta(seconds=seconds), seconds, way=0.2 * (number % 3))
        now = clock.at(seconds)
        assert before is None or now >= before
        before = now


def test_a_server_whose_clock_steps_back_is_followed() -> None:
    clock = HostClock()
    heard(clock, START, 0.0)
    heard(clock, START - timedelta(hours=1), 1.0)
    assert abs((clock.at(1.0) - (START - timedelta(hours=1))).total_seconds()) <= 1.0


def test_what_is_no_date_is_no_news() -> None:
    clock = HostClock()
    for told in ("", "yesterday", "\u2026"):
        clock.heard(told, 0.0, 0.1)
    assert not clock.is_set
    with pytest.raises(SchedulerUnavailable):
        clock.at(0.1)
