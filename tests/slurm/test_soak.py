"""A hundred jobs, random faults, three supervising programs: `DISPATCH_SOAK_SECONDS=200 pytest -n 0 -s -m long
tests/slurm/test_soak.py`; `DISPATCH_SOAK_SEED=7` lives the seed 7 again, as far as chance is the seed's."""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
import time
from pathlib import Path

import pytest

from dispatch_core.stores.migrations import upgrade
from dispatch_core.stores.sql import open_store
from tests.slurm.cluster import running, why_not
from tests.slurm.soak import OPTIONS, Soak, seconds_asked

JOBS = 100
SECONDS = 20 * 60.0


@pytest.mark.long
def test_a_hundred_jobs_are_disturbed() -> None:
    if reason := why_not():
        pytest.skip(reason)
    seconds = seconds_asked(SECONDS)
    seed = int(os.environ.get("DISPATCH_SOAK_SEED", random.SystemRandom().randrange(10**6)))
    jobs = min(JOBS, max(10, int(JOBS * seconds / 400)))
    print(f"\nsoak seed {seed}, {seconds:g} s, {jobs} jobs")
    began = time.monotonic()
    with running(OPTIONS) as cluster:
        folder = Path(tempfile.mkdtemp(prefix="soak-", dir=cluster.work))
        folder.chmod(0o777)

        async def live() -> list[str]:
            url = f"sqlite:///{folder}/jobs.db"
            await upgrade(url)
            store = open_store(url)
            try:
                soak = Soak(seed, cluster, folder, store, jobs, seconds)
                wrong = await soak.live()
                print(f"{soak.report()}; {time.monotonic() - began:.0f} s")
                return wrong
            finally:
                await store.close()

        wrong = asyncio.run(live())
    assert wrong == [], "\n".join(wrong)
