"""Scenes in which a job has left the queue before anybody looked: with accounting, without, and while it is down."""

from __future__ import annotations

import asyncio

import pytest

from dispatch_core.plan import Action, Cause, Plan, Rule, When
from dispatch_core.reasons import Reason
from dispatch_core.record import Kind, Result
from tests.slurm.cluster import Options, why_not
from tests.slurm.scenes import Outcomes, Scene, alone, marked, quiet_for, scene
from tests.slurm.stage import Actor, Stage

OPTIONS = Options(nodes=2, cpus=4, message_timeout=2, credential_ttl=5, min_job_age=2)
FAILED = When(cause=(Cause.EXIT, Cause.VANISHED))
RESUBMIT = Plan(rules=(Rule(name="again", when=FAILED, do=Action.RESUBMIT),))
REQUEUE = Plan(rules=(Rule(name="again", when=When(cause=(Cause.EXIT,)), do=Action.REQUEUE),))


async def purged_unseen(stage: Stage, *actors: Actor) -> None:
    """Each was seen running; each ends, and is purged, while nobody looks."""
    for actor in actors:
        await actor.until(lambda r: any(o.state == "running" for o in r.objects), "it to be seen running")
    numbers = {await actor.number() for actor in actors}
    for actor in actors:
        await actor.leave()
        actor.go()
    async with asyncio.timeout(60):
        while numbers & (await stage.queue()).keys():
            await asyncio.sleep(0.3)


@scene("T26")
async def purged_and_accounting_knows(stage: Stage) -> None:
    well = await stage.play("purged, accounting: ends well", plan=RESUBMIT, waits=True)
    badly = await stage.play("purged, accounting: resubmit", plan=RESUBMIT, waits=True, codes=[3, 0])
    same = await stage.play("purged, accounting: requeue rule", plan=REQUEUE, waits=True, codes=[3, 0])
    killed = await stage.play("purged, accounting: scancel by hand", waits=True)
    await killed.runs(1)
    await stage.command("scancel", await killed.number())
    await purged_unseen(stage, well, badly, same)
    for actor in (well, badly, same):
        actor.attend()
    await stage.keeps_the_laws(well, Result.SUCCEEDED, runs=1, submissions=1)
    await stage.keeps_the_laws(badly, Result.SUCCEEDED, runs=2, submissions=2, units=1)
    await stage.keeps_the_laws(same, Result.SUCCEEDED, runs=2, submissions=2, units=1)
    await stage.keeps_the_laws(killed, Result.FAILED, Cause.STOPPED_OUTSIDE, runs=1, submissions=1)


@scene("T26")
async def purged_while_accounting_is_down(stage: Stage) -> None:
    """Nothing is said of what left the queue, until slurmdbd is back and has been told."""
    accounting = stage.cluster.accounting
    assert accounting is not None
    well = await stage.play("purged, slurmdbd down: ends well", plan=RESUBMIT, waits=True)
    badly = await stage.play("purged, slurmdbd down: resubmit", plan=RESUBMIT, waits=True, codes=[3, 0])
    await asyncio.gather(well.runs(1), badly.runs(1))
    await asyncio.to_thread(accounting.kill)
    await purged_unseen(stage, well, badly)
    for actor in (well, badly):
        actor.attend()

    async def untouched() -> bool:
        records = [await actor.record() for actor in (well, badly)]
        return all(not r.budget and r.outcome is None and len(r.submissions) == 1 for r in records)

    await quiet_for(8.0, untouched)
    accounting.start()
    await stage.keeps_the_laws(well, Result.SUCCEEDED, runs=1, submissions=1)
    await stage.keeps_the_laws(badly, Result.SUCCEEDED, runs=2, submissions=2, units=1)


@scene("T26", "T25")
async def purged_without_accounting(stage: Stage) -> None:
    """What ran and is gone is no success, and no failure: a person says what it was, or the plan's rule does. What was
    never opened is launched again."""
    asked = await stage.play("purged, no accounting: a person says", waits=True)
    ruled = await stage.play("purged, no accounting: a rule says", plan=RESUBMIT, waits=True)
    await asyncio.gather(asked.runs(1), ruled.runs(1))
    gated = await stage.play("purged, no accounting: never opened", attended=False)
    await stage.client.hold(gated.key, reason="not yet")
    supervised = stage.supervisor(gated.key)
    for _ in range(2):  # its submission, and its object; a third pass would open it
        await supervised.sweep(await gated.record())
    assert all(call.kind is not Kind.OPEN for call in (await gated.record()).calls)
    await stage.command("scancel", await gated.number())
    await purged_unseen(stage, asked, ruled)
    async with asyncio.timeout(60):
        while await gated.number() in await stage.queue():
            await asyncio.sleep(0.3)
    await stage.client.release(gated.key)
    for actor in (asked, ruled, gated):
        actor.attend()
    await asked.explained(Reason.VANISHED)
    record = await asked.until(lambda r: r.wait is not None, "a person to be asked")
    assert record.outcome is None
    await stage.client.resolve(asked.key, Result.SUCCEEDED, reason="its files are there", revision=record.revision)
    await ruled.until(lambda r: len(r.submissions) == 2, "the rule for what vanished")
    await stage.keeps_the_laws(asked, Result.SUCCEEDED, runs=1, submissions=1)
    await stage.keeps_the_laws(gated, Result.SUCCEEDED, runs=1, submissions=2, units=1)
    asked_again = await ruled.until(lambda r: r.wait is not None and r.wait.reason is Reason.GONE, "a person's word")
    await stage.client.release(ruled.key, revision=asked_again.revision)
    await stage.keeps_the_laws(ruled, Result.SUCCEEDED, runs=2, submissions=2, units=1)


SCENES = {
    purged_and_accounting_knows: OPTIONS._replace(accounting=True),
    purged_while_accounting_is_down: OPTIONS._replace(accounting=True),
    # What it launches in the end is seen ended in the queue, or not at all: for longer than a slow listing's pause.
    purged_without_accounting: OPTIONS._replace(min_job_age=25),
}


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    if reason := why_not(OPTIONS._replace(accounting=True)):
        pytest.skip(reason)
    told = Outcomes()

    async def run() -> None:
        await asyncio.gather(*(alone(options, play, told) for play, options in SCENES.items()))

    asyncio.run(run())
    return told


@pytest.mark.parametrize("play", [marked(play) for play in SCENES])
def test_scene(outcomes: Outcomes, play: Scene) -> None:
    outcomes.tell(play)
