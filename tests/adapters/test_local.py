"""What only the local scheduler has: runners, slots, leftovers, the spool and what can be done to it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dispatch_core.adapters.contract import Job, Launch, Target
from dispatch_core.adapters.local.scheduler import LocalScheduler
from dispatch_core.plan import Cause, Spec
from dispatch_core.record import Answer, State, object_name

UID = "0f3a9c21b7d4e865"


async def test_an_object_is_gated_until_it_is_opened_and_then_runs(tmp_path: Path) -> None:
    scheduler = LocalScheduler(tmp_path / "spool", listing_seconds=0.02)
    deadline = datetime.now(UTC) + timedelta(seconds=30)
    spec = Spec(command=("sh", "-c", "echo ran; exit 3"))
    launch = Launch(key="k", uid=UID, submission=1, attempt=1, name=object_name(UID, 1, 1), spec=spec)
    job = Job(key="k", uid=UID)
    reply = await scheduler.start(launch, {}, deadline)
    assert reply.answer is Answer.DONE
    (shown,) = (await scheduler.find(job)).objects
    assert (shown.id, shown.name, shown.state) == (reply.text, launch.name, State.GATED)
    target = Target(id=shown.id, name=shown.name, run=1)
    assert (await scheduler.open(target, deadline)).answer is Answer.DONE
    async with asyncio.timeout(20):
        while shown.state is not State.ENDED:
            (shown,) = (await scheduler.find(job)).objects
    assert shown.end is not None
    assert (shown.end.cause, shown.end.exit_code) == (Cause.EXIT, 3)
    assert [chunk async for chunk in scheduler.logs(target)] == [b"ran\n"]
    await scheduler.close()
