"""The adapter suite on a real cluster, as root on this machine, with slurmdbd."""

from __future__ import annotations

import pytest

from dispatch_core.adapters.conformance import CHECKS, CLOSING, Check
from tests.slurm.cluster import Cluster
from tests.slurm.rig import Outcomes, marked, outcomes_of, slurm_rig


@pytest.fixture(scope="module")
def outcomes(whole_accounting_cluster: Cluster) -> Outcomes:
    return outcomes_of(lambda: slurm_rig(whole_accounting_cluster))


@pytest.mark.parametrize("check", [marked(check) for check in [*CHECKS, *CLOSING]])
def test_conforms(outcomes: Outcomes, check: Check) -> None:
    outcomes.tell(check)
