"""The local scheduler, run against the suite that any adapter is run against."""

from __future__ import annotations

from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from dispatch_core.adapters.conformance import CHECKS, CLOSING, SHOWS, Check
from tests.adapters.local import local_rig

CASES = {"a_secret_arrives_and_is_nowhere_else": ("T53",), "gate_and_hold_are_two_things": ("T45",)}


def marked(check: Check) -> ParameterSet:
    name = check.__name__
    marks = [pytest.mark.promise(number) for number in SHOWS[name]]
    marks += [pytest.mark.case(number) for number in CASES.get(name, ())]
    return pytest.param(check, id=name, marks=marks)


@pytest.mark.parametrize("check", [marked(check) for check in CHECKS + CLOSING])
async def test_local(check: Check, tmp_path: Path) -> None:
    async with local_rig(tmp_path) as rig:
        await check(rig)
