"""Scenes in which the controller itself is silent, dies, or forgets; each has a cluster of its own."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from pathlib import Path

import pytest

from dispatch_core.plan import Action, Cause, Plan, Rule, When
from dispatch_core.reasons import Reason
from dispatch_core.record import Answer, Record, Result, State
from tests.slurm.cluster import Options, why_not
from tests.slurm.scenes import Outcomes, Scene, alone, marked, quiet_for, scene
from tests.slurm.stage import Actor, Stage

OPTIONS = Options(nodes=2, cpus=4, message_timeout=2, credential_ttl=5)
AGAIN = Plan(rules=(Rule(name="again", when=When(cause=(Cause.EXIT,)), do=Action.REQUEUE),))
CAUGHT = ("sbatch", "release", "scancel", "requeuehold")


async def silent_at_four_calls(stage: Stage, prefix: str, after: float) -> tuple[Actor, Actor, Actor, Actor]:
    """A submit, an open, a stop and a requeue are on their way when the controller falls silent; it goes on `after`
    they were sent, and nobody supervises meanwhile."""
    stopped = await stage.play(f"{prefix}stop", waits=True)
    requeued = await stage.play(f"{prefix}requeue", plan=AGAIN, waits=True, codes=[3, 0])
    await asyncio.gather(stopped.runs(1), requeued.runs(1))
    stage.catch("release", "scancel", "requeuehold")
    opened = await stage.play(f"{prefix}open")
    await asyncio.gather(stage.client.cancel(stopped.key), stage.caught("release"))
    requeued.go()
    stage.catch("sbatch")
    submitted = await stage.play(f"{prefix}submit")
    await stage.caught(*CAUGHT)
    stage.cluster.controller.stop()
    sent = time.monotonic()
    stage.let_go(*CAUGHT)
    actors = (submitted, opened, stopped, requeued)
    await asyncio.gather(*(actor.leave() for actor in actors))
    await asyncio.sleep(max(0.0, sent + after - time.monotonic()))
    stage.catch_no_more()
    stage.cluster.controller.go_on()
    return actors


async def landed(stage: Stage, actors: tuple[Actor, Actor, Actor, Actor]) -> tuple[bool, bool, bool, bool]:
    """Which of the four the queue shows to have happened."""
    submitted = actors[0]
    numbers = [await actor.number() for actor in actors[1:]]
    queue = await stage.queue()
    rows = [queue[number] for number in numbers]
    exists = any(row.name.startswith(submitted.as_ours()) for row in queue.values())
    return exists, rows[0].priority != 0, rows[1].state in ("COMPLETING", "CANCELLED"), rows[2].restarts == 1


async def come_out(stage: Stage, actors: tuple[Actor, Actor, Actor, Actor]) -> None:
    for actor in actors:
        actor.attend()
    submitted, opened, stopped, requeued = actors
    await stage.keeps_the_laws(submitted, Result.SUCCEEDED, runs=1, submissions=1)
    await stage.keeps_the_laws(opened, Result.SUCCEEDED, runs=1, submissions=1)
    await stage.keeps_the_laws(stopped, Result.CANCELLED, runs=1, submissions=1)
    await stage.keeps_the_laws(requeued, Result.SUCCEEDED, runs=2, submissions=1, units=1)


@scene("L1", "L2", "G5")
async def a_silent_controller_goes_on_in_time(stage: Stage) -> None:
    """All four calls were given up, and all four land when it goes on."""
    actors = await silent_at_four_calls(stage, "in time: ", 0.0)
    for actor in actors:
        record = await actor.record()
        replies = [a.reply for s in record.submissions for a in s.attempts] + [call.reply for call in record.calls]
        assert "unknown" in [reply.answer for reply in replies if reply], await stage.history(actor)
    until = time.monotonic() + 10
    while (shown := await landed(stage, actors)) != (True, True, True, True):
        assert time.monotonic() < until, shown
        await asyncio.sleep(0.2)
    await come_out(stage, actors)


@scene("L1", "L2")
async def a_silent_controller_goes_on_too_late(stage: Stage) -> None:
    """It goes on when the calls' credentials are over: none of the four lands, then or later."""
    actors = await silent_at_four_calls(stage, "too late: ", OPTIONS.credential_ttl + 2.0)

    async def nothing() -> bool:
        shown = await landed(stage, actors)
        assert shown == (False, False, False, False), shown
        return True

    await quiet_for(4.0, nothing)
    await come_out(stage, actors)


async def saved(stage: Stage) -> Path:
    """A copy of all that the controller has saved by now."""
    kept = stage.cluster.folder / "kept"
    await asyncio.to_thread(shutil.copytree, stage.cluster.folder / "state", kept)
    return kept


async def rolled_back(stage: Stage, kept: Path) -> None:
    """A controller that died starts again with what it had saved then."""
    cluster, state = stage.cluster, stage.cluster.folder / "state"
    await asyncio.to_thread(shutil.rmtree, state)
    await asyncio.to_thread(kept.rename, state)
    for path in (state, *state.rglob("*")):
        shutil.chown(path, "slurm", "slurm")
    cluster.controller.start()
    await asyncio.to_thread(cluster.wait_until_up)


@scene("P1", "T27")
async def a_controller_forgets_and_gives_the_numbers_to_others(stage: Stage) -> None:
    """It dies with -9 after it had answered; what it saved is older, and it gives the same numbers to `other`."""
    cluster = stage.cluster
    kept = await saved(stage)
    running = await stage.play("forgotten: running", waits=True)
    await running.runs(1)
    held = await stage.play("forgotten: held", waits=True, attended=False)
    await stage.client.hold(held.key, reason="not yet")
    held.attend()
    await held.until(lambda r: any(o.state is State.HELD for o in r.objects), "the hold on, and the gate open")
    stage.catch("release")
    unopened = await stage.play("forgotten: opened as it dies")
    await stage.caught("release")
    dying = asyncio.ensure_future(unopened.leave())  # so that nobody opens it again
    numbers = [await actor.number() for actor in (running, held, unopened)]
    stage.catch("sbatch")
    acknowledged = await stage.play("forgotten: acknowledged")
    await stage.caught("sbatch")
    leaving = asyncio.ensure_future(acknowledged.leave())  # so that nobody lists what is answered
    await asyncio.sleep(0.1)
    stage.let_go("sbatch")
    await leaving
    record = await acknowledged.record()
    assert started(record), record
    assert record.objects == ()
    await asyncio.to_thread(cluster.controller.kill)
    stage.let_go("release")
    await dying
    stage.catch_no_more()
    await rolled_back(stage, kept)
    strangers = [
        await stage.command("sbatch", "--parsable", "--wrap", "sleep 600", "--nodelist=n2", user="other")
        for _ in range(4)
    ]
    assert set(numbers) <= set(strangers), "the numbers were not given to others"
    acknowledged.attend()
    unopened.attend()
    await stage.client.cancel(held.key)
    await asyncio.gather(
        goes_on_by_a_persons_word(stage, running, runs=2),
        goes_on_by_a_persons_word(stage, unopened, runs=1),
        stage.keeps_the_laws(held, Result.CANCELLED, runs=0, submissions=1),
        stage.keeps_the_laws(acknowledged, Result.SUCCEEDED, runs=1, submissions=1),
    )
    assert len((await acknowledged.record()).submissions[0].attempts) == 2
    queue = await stage.queue()
    assert {queue[number].state for number in strangers} == {"RUNNING"}, "a stranger's job was touched"


async def goes_on_by_a_persons_word(stage: Stage, actor: Actor, runs: int) -> None:
    """An object that was opened, and is gone: a person is asked, and says that it is launched again."""
    await actor.explained(Reason.VANISHED)
    record = await actor.until(lambda r: r.wait is not None and r.wait.reason is Reason.VANISHED, "it to be asked for")
    assert record.outcome is None
    actor.go()
    await stage.client.release(actor.key, revision=record.revision)
    await stage.keeps_the_laws(actor, Result.SUCCEEDED, runs=runs, submissions=2)


def started(record: Record) -> bool:
    """Whether its first Start was answered with an object."""
    reply = record.submissions[0].attempts[0].reply if record.submissions else None
    return reply is not None and reply.answer is Answer.DONE


async def down_while_a_job_ends(stage: Stage, seconds: float) -> None:
    again = Plan(rules=(Rule(name="again", when=When(cause=tuple(CAUSES)), do=Action.RESUBMIT, budget=3),))
    well = await stage.play("down: ends well", plan=again, waits=True)
    badly = await stage.play("down: ends badly, and goes again", plan=again, waits=True, codes=[4, 0])
    await asyncio.gather(well.runs(1), badly.runs(1))
    controller = stage.cluster.controller
    controller.send(signal.SIGTERM)
    await stage.wait_until(lambda: not controller.alive, "the controller to end")
    for actor in (well, badly):
        actor.go()
        record = await actor.until(lambda r: r.wait is not None, "the outage to be told")
        assert record.wait is not None
        assert record.wait.reason is Reason.UNREACHABLE

    async def untouched() -> bool:
        records = [await actor.record() for actor in (well, badly)]
        return all(not r.budget and r.outcome is None and len(r.submissions) == 1 for r in records)

    await quiet_for(seconds, untouched)
    controller.start()
    await stage.keeps_the_laws(well, Result.SUCCEEDED, runs=1, submissions=1)
    await stage.keeps_the_laws(badly, Result.SUCCEEDED, runs=2, submissions=2, units=1)


@scene("P1")
async def a_controller_forgets_that_a_job_was_opened(stage: Stage) -> None:
    """It dies with -9, and what it saved shows the running job with its gate shut."""
    stage.catch("release")
    actor = await stage.play("forgotten: that it runs", waits=True)
    await stage.caught("release")
    name = f"dispatch-{actor.uid}-1-1"
    await stage.wait_until(lambda: stage.cluster.saved(name), "the gated job to be saved")
    kept = await saved(stage)
    stage.let_go("release")
    await actor.until(lambda r: any(o.state is State.RUNNING for o in r.objects), "it to be seen running")
    await actor.runs(1)
    await asyncio.to_thread(stage.cluster.controller.kill)
    stage.catch_no_more()
    await rolled_back(stage, kept)
    await actor.explained(Reason.UNRECOGNIZED)
    actor.go()
    record = await actor.until(lambda r: r.wait and r.wait.reason is Reason.UNRECOGNIZED, "a person to be asked")
    await stage.client.release(actor.key, revision=record.revision)
    await stage.keeps_the_laws(actor, Result.SUCCEEDED, runs=2, submissions=2)


CAUSES = (Cause.EXIT, Cause.SIGNAL, Cause.NODE_FAILURE, Cause.VANISHED, Cause.NEVER_CREATED)


@scene("T21")
async def a_controller_is_down_while_jobs_end(stage: Stage) -> None:
    await down_while_a_job_ends(stage, 15.0)


@scene("T21")
async def a_controller_is_down_for_long(stage: Stage) -> None:
    await down_while_a_job_ends(stage, 180.0)


SCENES = [
    a_silent_controller_goes_on_in_time,
    a_silent_controller_goes_on_too_late,
    a_controller_forgets_and_gives_the_numbers_to_others,
    a_controller_forgets_that_a_job_was_opened,
    a_controller_is_down_while_jobs_end,
]


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    if reason := why_not():
        pytest.skip(reason)
    told = Outcomes()

    async def run() -> None:
        await asyncio.gather(*(alone(OPTIONS, play, told) for play in SCENES))

    asyncio.run(run())
    return told


@pytest.mark.parametrize("play", [marked(play) for play in SCENES])
def test_scene(outcomes: Outcomes, play: Scene) -> None:
    outcomes.tell(play)


@pytest.mark.long
def test_a_controller_is_down_for_long() -> None:
    if reason := why_not():
        pytest.skip(reason)
    told = Outcomes()
    asyncio.run(alone(OPTIONS, a_controller_is_down_for_long, told))
    told.tell(a_controller_is_down_for_long)
