"""The adapter suite on a real cluster, as an ordinary user, over a real sshd."""

from __future__ import annotations

import pytest

from dispatch_core.adapters.conformance import CHECKS, CLOSING, Check
from dispatch_core.adapters.slurm.ssh import SshTransport
from tests.slurm.cluster import Cluster
from tests.slurm.rig import Outcomes, marked, outcomes_of, slurm_rig
from tests.slurm.sshd import USER, Sshd


@pytest.fixture(scope="module")
def outcomes(whole_cluster: Cluster, whole_sshd: Sshd) -> Outcomes:
    return outcomes_of(lambda: slurm_rig(whole_cluster, SshTransport(whole_sshd.host()), USER))


@pytest.mark.parametrize("check", [marked(check) for check in [*CHECKS, *CLOSING]])
def test_conforms(outcomes: Outcomes, check: Check) -> None:
    outcomes.tell(check)
