"""Short ways to jobs of the adapter on the cluster of the tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

from dispatch_core.adapters.conformance.rig import Case
from dispatch_core.adapters.contract import Target
from dispatch_core.plan import Spec
from dispatch_core.record import State
from tests.slurm.cluster import Job
from tests.slurm.rig import SlurmRig


def spec_of(script: str, **told: Any) -> Spec:
    return Spec(command=("sh", "-c", script), **told)


async def ran(rig: SlurmRig, spec: Spec, *, key: str | None = None) -> tuple[Case, Target]:
    """A job that was started, opened, and has ended."""
    case = Case(rig, key=key)
    target = await case.started(spec)
    await case.open(target)
    await case.until(target, State.ENDED)
    return case, target


async def until(rig: SlurmRig, holds: Callable[[], Awaitable[bool]], what: str) -> None:
    async for _ in patiently(rig):
        if await holds():
            return
    raise TimeoutError(what)


async def patiently(rig: SlurmRig) -> AsyncIterator[None]:
    async for _ in rig.patiently():
        yield


def job_of(rig: SlurmRig, target: Target) -> Job:
    """What Slurm shows of an object."""
    return rig.cluster.job(target.id.partition(":")[0])


def watched(case: Case, spec: Spec, attempt: int = 1) -> Any:
    """A launch whose plan has a rule on progress."""
    return msgspec.structs.replace(case.launch(spec, attempt), watches_progress=True)
