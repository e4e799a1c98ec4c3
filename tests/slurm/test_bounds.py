"""What a call on a cluster takes at most, from what the cluster says of itself."""

from __future__ import annotations

import pytest

from dispatch_core.adapters.slurm import reading
from dispatch_core.adapters.slurm.cluster import SlurmCluster
from dispatch_core.adapters.slurm.configured import of_configuration
from dispatch_core.adapters.slurm.scheduler import WINDOW_SECONDS, SlurmScheduler
from dispatch_core.adapters.slurm.transport import LocalTransport

DEFAULTS = """Configuration data as of 2026-11-29T00:00:00
AuthInfo                = (null)
MessageTimeout          = 10 sec
"""


def scheduler(printed: str | None, **settings: float) -> SlurmScheduler:
    made = SlurmScheduler(SlurmCluster(name="c", **settings), LocalTransport({}))
    made.configuration = None if printed is None else reading.configuration(printed)
    return made


def told(authinfo: str, timeout: int) -> str:
    return DEFAULTS.replace("(null)", authinfo).replace("10 sec", f"{timeout} sec")


@pytest.mark.parametrize(
    ("printed", "command", "landing"),
    [
        (None, 25.0, 300.0),
        (DEFAULTS, 25.0, 300.0),
        (told("ttl=30", 60), 125.0, 30.0),
        (told("socket=/run/munge/socket,ttl=600,cred_expire=5", 100), 205.0, 600.0),
    ],
    ids=["not asked yet", "Slurm's defaults", "short-lived messages", "long ones"],
)
def test_a_call_takes_two_timeouts_and_lands_while_its_credential_lives(
    printed: str | None, command: float, landing: float
) -> None:
    made = scheduler(printed)
    assert made.command_seconds == command
    assert (made.bounds.call_seconds, made.bounds.landing_seconds) == (command + 2.0, landing)
    assert made.bounds.window_seconds == WINDOW_SECONDS


def test_until_the_cluster_was_asked_a_persons_word_counts() -> None:
    settings = {"message_timeout_seconds": 30.0, "credential_seconds": 60.0, "absence_seconds": 90.0}
    bounds = scheduler(None, **settings).bounds
    assert (bounds.call_seconds, bounds.landing_seconds, bounds.absence_seconds) == (67.0, 60.0, 90.0)
    bounds = scheduler(told("ttl=30", 60), **settings).bounds
    assert (bounds.call_seconds, bounds.landing_seconds, bounds.absence_seconds) == (127.0, 30.0, 90.0)


@pytest.mark.parametrize(("printed", "seconds"), [(DEFAULTS, 347), (told("ttl=30", 60), 177)])
def test_the_doctor_says_the_sum(printed: str, seconds: int) -> None:
    made = scheduler(printed)
    assert made.configuration is not None
    found = {row.name: row.text for row in of_configuration(made.cluster, made.configuration, made.bounds)}
    assert f"settled after {seconds} s at most" in found["calls"]
