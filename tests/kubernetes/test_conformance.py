"""The adapter suite over real HTTP, on the API server of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatch_core.adapters.conformance import CHECKS, CLOSING, SHOWS, Check
from tests.kubernetes.rig import kubernetes_rig


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, id=check.__name__, marks=[pytest.mark.promise(number) for number in SHOWS[check.__name__]])
        for check in [*CHECKS, *CLOSING]
    ],
)
async def test_conforms(check: Check, tmp_path: Path) -> None:
    async with kubernetes_rig(tmp_path) as rig:
        await check(rig)
