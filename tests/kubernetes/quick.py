"""A scheduler with short bounds, for tests that wait until a job is settled: once no call of it can land any more.

One rule: a test that uses it makes no call land later than these bounds say.
"""

from __future__ import annotations

import msgspec

from dispatch_core.adapters.kubernetes.scheduler import KubernetesScheduler
from dispatch_core.evidence import Bounds


class Quick(KubernetesScheduler):
    """Of a server on this machine."""

    @property
    def bounds(self) -> Bounds:
        told = {"window_seconds": 4.0, "call_seconds": 0.5, "landing_seconds": 0.0, "repeat_seconds": 0.5}
        return msgspec.structs.replace(super().bounds, absence_seconds=1.0, **told)
