"""The adapter suite on a real cluster, as root on this machine, without accounting.

Slurm takes a second or two to start a job, so the checks run side by side, each with a connection of its own; those
that close theirs as well. Every check is a test that tells how it came out.
"""

from __future__ import annotations

import pytest

from dispatch_core.adapters.conformance import CHECKS, CLOSING, Check
from tests.slurm.cluster import Cluster
from tests.slurm.rig import Outcomes, marked, outcomes_of, slurm_rig


@pytest.fixture(scope="module")
def outcomes(whole_cluster: Cluster) -> Outcomes:
    return outcomes_of(lambda: slurm_rig(whole_cluster))


@pytest.mark.parametrize("check", [marked(check) for check in [*CHECKS, *CLOSING]])
def test_conforms(outcomes: Outcomes, check: Check) -> None:
    outcomes.tell(check)
