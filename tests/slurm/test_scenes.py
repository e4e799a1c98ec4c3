"""Scenes on one cluster whose controller is well: persons, nodes, preemption, limits, epilogs; side by side."""

from __future__ import annotations

import asyncio

import pytest

from dispatch_core.janitor import Janitor
from dispatch_core.names import object_name
from dispatch_core.plan import Action, Cause, Delay, Plan, Rule, Spec, When
from dispatch_core.reasons import Reason
from dispatch_core.record import Answer, Kind, Result, State
from tests.slurm.cluster import Cluster, Options, why_not
from tests.slurm.scenes import TABLE, Outcomes, Scene, marked, own_cluster, played, quiet_for, scene
from tests.slurm.stage import Actor, Stage, stage_on

OPTIONS = Options(nodes=7, cpus=4, message_timeout=2, credential_ttl=5)
PREEMPTED, DEAD, DEAF, DRAINED, CLOSED = BROKEN = ("n1", "n2", "n3", "n4", "n5")
"""Nodes for the scenes that break them; the others are for everybody."""


def on(cause: Cause, do: Action, **more: object) -> Plan:
    """A plan with one rule."""
    return Plan(rules=(Rule(name="again", when=When(cause=(cause,)), do=do, **more),))  # type: ignore[arg-type]


def after(seconds: float, do: Action) -> Plan:
    """A plan for what is pending too long."""
    return Plan(rules=(Rule(name="late", when=When(pending_longer_than_seconds=seconds), do=do),))


async def shut_behind(actor: Actor) -> str:
    """The Slurm job's number, once its gate was shut behind the running run."""

    def shut(record: object) -> bool:
        calls = getattr(record, "calls", ())
        return any(c.kind is Kind.SHUT and c.reply is not None and c.reply.answer is Answer.DONE for c in calls)

    await actor.until(shut, "the gate to be shut behind it")
    return await actor.number()


async def listed(stage: Stage, number: str, *states: str) -> None:
    async with asyncio.timeout(30):
        while (await stage.queue())[number].state not in states:
            await asyncio.sleep(0.1)


# --- nobody disturbs


@scene("P3")
async def undisturbed(stage: Stage) -> None:
    actor = await stage.play("undisturbed", seconds=[1.0])
    await stage.keeps_the_laws(actor, Result.SUCCEEDED, runs=1, submissions=1)


@scene("S2", "P3", "T2")
async def the_janitor_stops_what_lands_after_settlement(stage: Stage) -> None:
    """It adopts a job that nobody supervises, and sweeps when it is settled. (In a store of its own: it adopts all.)"""
    async with stage_on(stage.cluster) as own:
        own.broken = BROKEN
        actor = await own.play("adopted, and landed twice", attended=False, seconds=[1.0])
        janitor = Janitor(own.store, {"test": own.adapter}, period_seconds=1.0)
        janitor.supervisors["test"].record_seconds = 0.5
        actor.work = asyncio.ensure_future(janitor.run())  # type: ignore[arg-type]
        settled = await actor.settled()
        name = object_name(actor.uid, 1, 1)
        options = ("--hold", "--parsable", f"--job-name={name}", f"--comment=dispatch:{actor.key}", "--wrap", "true")
        late = await own.command("sbatch", *options)
        await listed(own, late, "CANCELLED")
        record = await actor.until(lambda r: any(o.id.startswith(f"{late}:") and o.retired for o in r.objects), "it")
        assert (record.settled, record.outcome, record.submissions) == (True, settled.outcome, settled.submissions)
        await own.keeps_the_laws(actor, Result.SUCCEEDED, runs=1, submissions=1)
        TABLE.append(await own.report(actor))


# --- cancels


@scene("X1", "X4", "T41")
async def a_person_requeues_what_was_just_cancelled(stage: Stage) -> None:
    actor = await stage.play("cancelled, then requeued by a person", plan=on(Cause.EXIT, Action.REQUEUE), waits=True)
    number = await shut_behind(actor)
    await stage.client.cancel(actor.key)
    await listed(stage, number, "COMPLETING", "CANCELLED")
    await stage.command("scontrol", "requeue", number)
    await stage.keeps_the_laws(actor, Result.CANCELLED, runs=1, submissions=1)
    assert (await stage.queue())[number].restarts == 1


@scene("X4", "L4")
async def our_requeue_lands_beside_a_cancel(stage: Stage) -> None:
    plan = on(Cause.EXIT, Action.REQUEUE)
    actor = await stage.play("cancelled beside our requeue", plan=plan, waits=True, codes=[3, 0])
    await actor.runs(1)
    requeue = f"requeuehold-{await actor.number()}"
    stage.catch(requeue)
    actor.go()
    await stage.caught(requeue)
    await stage.client.cancel(actor.key)
    stage.let_go(requeue)
    await stage.keeps_the_laws(actor, Result.CANCELLED, runs=1, submissions=1, units=1)
    queue = await stage.queue()
    assert (queue[await actor.number()].state, queue[await actor.number()].restarts) == ("CANCELLED", 1)


# --- persons


@scene("T45", "G2")
async def held_by_the_system_by_an_administrator_and_by_us(stage: Stage) -> None:
    """Only our hold is lifted by us, and only the administrator lifts the administrator's."""
    await stage.command("scontrol", "update", f"NodeName={CLOSED}", "State=drain", "Reason=test")
    actor = await stage.play("held by three", on=CLOSED)
    await actor.until(lambda r: any(o.state is State.PENDING for o in r.objects), "the system to keep it waiting")
    number = await actor.number()
    await stage.command("scontrol", "hold", number)

    async def held() -> bool:
        row = (await stage.queue())[number]
        assert (row.state, row.reason, row.priority) == ("PENDING", "JobHeldAdmin", 0), row
        return True

    await quiet_for(4.0, held)
    await stage.client.hold(actor.key, reason="look at it first")
    await actor.until(lambda r: any(o.hold for o in r.objects), "our hold to be on")
    await stage.command("scontrol", "update", f"NodeName={CLOSED}", "State=undrain")
    await stage.client.release(actor.key)
    await actor.until(lambda r: not any(o.hold for o in r.objects), "our hold to be off")
    await quiet_for(4.0, held)
    answers = [call.reply.answer for call in (await actor.record()).calls if call.kind is Kind.OPEN and call.reply]
    assert answers == [Answer.REFUSED], answers
    await stage.command("scontrol", "release", number)
    await stage.keeps_the_laws(actor, Result.SUCCEEDED, runs=1, submissions=1)


@scene("T47", "G2")
async def a_person_opens_what_we_hold(stage: Stage) -> None:
    """`scontrol release` by hand opens the gate; our hold is another thing, and stands."""
    actor = await stage.play("held, and opened by hand", attended=False)
    await stage.client.hold(actor.key, reason="not yet")
    actor.attend()
    await actor.until(lambda r: any(o.state is State.HELD for o in r.objects), "the hold to be on, and the gate open")
    number = await actor.number()
    await stage.command("scontrol", "release", number)

    async def quiet() -> bool:
        return not actor.starts() and (await stage.queue())[number].state == "PENDING"

    await quiet_for(4.0, quiet)
    await stage.client.release(actor.key)
    await stage.keeps_the_laws(actor, Result.SUCCEEDED, runs=1, submissions=1)


@scene("G1", "T33")
async def a_person_requeues_what_runs(stage: Stage) -> None:
    """It comes back gated, also from a long epilog; the plan's rule for a rerun is what opens it, or stops it."""
    wanted = await stage.play(
        "requeued by a person, and wanted", plan=on(Cause.NODE_FAILURE, Action.REQUEUE), waits=True
    )
    unwanted = await stage.play("requeued by a person, unwanted", plan=on(Cause.EXIT, Action.REQUEUE), waits=True)
    for actor in (wanted, unwanted):
        number = await shut_behind(actor)
        await asyncio.to_thread((stage.cluster.work / f"epilog-{number}").write_text, "3")
        await stage.command("scontrol", "requeue", number)
        row = (await stage.queue())[number]
        assert (row.state, row.restarts) == ("COMPLETING", 1), row
    await stage.keeps_the_laws(wanted, Result.SUCCEEDED, runs=2, submissions=1, units=1)
    await stage.keeps_the_laws(unwanted, Result.FAILED, Cause.RERUN, runs=1, submissions=1)


@scene("T33", "G3")
async def rerun_before_its_gate_could_be_shut(stage: Stage) -> None:
    """What no design can keep from running: it is seen, judged by the plan, and counted."""
    plan = on(Cause.PREEMPTED, Action.REQUEUE)
    actor = await stage.play("rerun, and its gate not shut yet", plan=plan, waits=True, seconds=[0.0, 6.0])
    shut = f"uhold-{await actor.number()}"
    stage.catch(shut)
    await stage.caught(shut)
    await stage.command("scontrol", "requeue", await actor.number())
    await stage.keeps_the_laws(actor, Result.SUCCEEDED, runs=2, submissions=1, units=1)
    record = await actor.record()
    assert [call.run for call in record.calls if call.kind is Kind.OPEN] == [1]


@scene("T41")
async def a_person_cancels_by_hand(stage: Stage) -> None:
    running = await stage.play("scancel by hand, running", waits=True)
    held = await stage.play("scancel by hand, held", attended=False)
    await stage.client.hold(held.key, reason="not yet")
    held.attend()
    await running.runs(1)
    await stage.command("scancel", await running.number())
    await held.until(lambda r: any(o.hold for o in r.objects), "the hold to be on")
    await stage.command("scancel", await held.number())
    await stage.keeps_the_laws(running, Result.FAILED, Cause.STOPPED_OUTSIDE, runs=1, submissions=1)
    await stage.keeps_the_laws(held, Result.FAILED, Cause.STOPPED_OUTSIDE, runs=0, submissions=1)


# --- nodes


@scene("P1", "G9")
async def a_node_loses_its_power(stage: Stage) -> None:
    cluster, node = stage.cluster, stage.cluster.nodes[DEAD]
    lost = on(Cause.NODE_FAILURE, Action.RESUBMIT)
    again = await stage.play("node without power: resubmit", plan=lost, on=DEAD, waits=True)
    same = await stage.play(
        "node without power: requeue", plan=on(Cause.NODE_FAILURE, Action.REQUEUE), on=DEAD, waits=True
    )
    await asyncio.gather(again.runs(1), shut_behind(same))
    await asyncio.to_thread(node.kill_all)
    await asyncio.to_thread(cluster.set_node, DEAD, "down")
    await again.until(lambda r: len(r.submissions) == 2, "the next submission")
    await same.until(lambda r: r.objects[0].run == 2, "the scheduler to requeue it")
    await asyncio.to_thread(node.start)
    await stage.keeps_the_laws(again, Result.SUCCEEDED, runs=2, submissions=2, units=1)
    await stage.keeps_the_laws(same, Result.SUCCEEDED, runs=2, submissions=1, units=1)


@scene("P1", "G9")
async def a_node_is_deaf_and_its_step_lives(stage: Stage) -> None:
    """The queue says NODE_FAIL, and the run goes on: only the rule's delay keeps the next one apart from it."""
    cluster, node = stage.cluster, stage.cluster.nodes[DEAF]
    plan = on(Cause.NODE_FAILURE, Action.RESUBMIT, delay=Delay(seconds=10))
    actor = await stage.play("deaf node, the step lives", plan=plan, on=DEAF, waits=True)
    await actor.runs(1)
    await asyncio.to_thread(node.kill)
    await asyncio.to_thread(cluster.set_node, DEAF, "down")
    await actor.explained(Reason.AWAITING_DELAY)
    assert await asyncio.to_thread(node.steps)
    await asyncio.to_thread(node.start)
    await stage.keeps_the_laws(actor, Result.SUCCEEDED, runs=2, submissions=2, units=1)


@scene("T33", "G3")
async def preempted(stage: Stage) -> None:
    """With a requeue rule it is PENDING again under its number, gated: one submission, a new run, one unit. Without, it
    has ended as preempted."""
    two = Spec(command=(), options={"cpus_per_task": 2})
    same = await stage.play(
        "preempted: requeue", plan=on(Cause.PREEMPTED, Action.REQUEUE), on=PREEMPTED, spec=two, waits=True
    )
    again = await stage.play(
        "preempted: resubmit", plan=on(Cause.PREEMPTED, Action.RESUBMIT), on=PREEMPTED, spec=two, waits=True
    )
    await asyncio.gather(shut_behind(same), again.runs(1))
    options = ("--parsable", "-p", "urgent", "-c4", f"--nodelist={PREEMPTED}", "--wrap", "sleep 2")
    urgent = await stage.command("sbatch", *options)
    await listed(stage, urgent, "RUNNING")
    await stage.keeps_the_laws(same, Result.SUCCEEDED, runs=2, submissions=1, units=1)
    await stage.keeps_the_laws(again, Result.SUCCEEDED, runs=2, submissions=2, units=1)
    assert (await same.row()).restarts == 1


# --- limits


@scene("T20")
async def still_queued_at_its_start_deadline(stage: Stage) -> None:
    """Stopped, or kept, as the rule says; what has failed never starts."""
    await stage.command("scontrol", "update", f"NodeName={DRAINED}", "State=drain", "Reason=test")
    stopped = await stage.play("start deadline: fail", plan=after(3.0, Action.FAIL), on=DRAINED)
    kept = await stage.play("start deadline: hold", plan=after(3.0, Action.HOLD), on=DRAINED)
    await stopped.until(lambda r: r.outcome is not None and r.objects[0].state is State.ENDED, "it to be stopped")
    await kept.until(lambda r: r.objects and r.objects[0].hold, "it to be held")
    await stage.command("scontrol", "update", f"NodeName={DRAINED}", "State=undrain")

    async def quiet() -> bool:
        return not stopped.starts() and not kept.starts()

    await quiet_for(4.0, quiet)
    await stage.client.release(kept.key)
    await stage.keeps_the_laws(stopped, Result.FAILED, Cause.DEADLINE, runs=0, submissions=1, units=1)
    await stage.keeps_the_laws(kept, Result.SUCCEEDED, runs=1, submissions=1, units=1)


@scene("T32", "G8")
async def a_long_epilog(stage: Stage) -> None:
    """COMPLETING is not an end: requeue and resubmit both wait."""
    same = await stage.play(
        "long epilog: requeue", plan=on(Cause.EXIT, Action.REQUEUE), waits=True, codes=[3, 0], seconds=[0.0]
    )
    again = await stage.play(
        "long epilog: resubmit", plan=on(Cause.EXIT, Action.RESUBMIT), waits=True, codes=[3, 0], seconds=[0.0]
    )
    for actor in (same, again):
        await actor.runs(1)
        number = await actor.number()
        await asyncio.to_thread((stage.cluster.work / f"epilog-{number}").write_text, "15")
        actor.go()
    for actor in (same, again):
        await listed(stage, await actor.number(), "COMPLETING")

    async def waits() -> bool:
        for actor in (same, again):
            record = await actor.record()
            assert all(call.kind is not Kind.REQUEUE for call in record.calls)
            assert len(actor.starts()) == len(record.submissions) == 1
            assert (await actor.row()).state == "COMPLETING"
        return True

    await quiet_for(3.0, waits)
    await stage.keeps_the_laws(same, Result.SUCCEEDED, runs=2, submissions=1, units=1)
    await stage.keeps_the_laws(again, Result.SUCCEEDED, runs=2, submissions=2, units=1)
    assert Reason.MOVED_BACK not in same.reasons() | again.reasons()


@scene("T39")
async def exit_137_is_not_out_of_memory(stage: Stage) -> None:
    plan = on(Cause.OUT_OF_MEMORY, Action.RESUBMIT)
    code = await stage.play("exit 137, and no other reason", plan=plan, codes=[137])
    signal = await stage.play("a signal 9 of its own", plan=plan, codes=[-9])
    await stage.keeps_the_laws(code, Result.FAILED, Cause.EXIT, runs=1, submissions=1)
    await stage.keeps_the_laws(signal, Result.FAILED, Cause.SIGNAL, runs=1, submissions=1)
    outcome = (await code.record()).outcome
    assert outcome is not None
    assert outcome.exit_code == 137


async def a_time_limit(stage: Stage) -> None:
    limit = Spec(command=(), time_limit_seconds=60)
    ends = await stage.play("time limit: fails", spec=limit, waits=True)
    plan = on(Cause.TIME_LIMIT, Action.RESUBMIT)
    again = await stage.play("time limit: resubmit", spec=limit, plan=plan, waits=True)
    same = await stage.play("time limit: requeue", spec=limit, plan=on(Cause.TIME_LIMIT, Action.REQUEUE), waits=True)
    for actor in (ends, again, same):
        await actor.until(lambda r: r.outcome or r.budget, "its limit", 150.0)
    await stage.keeps_the_laws(ends, Result.FAILED, Cause.TIME_LIMIT, runs=1, submissions=1)
    await stage.keeps_the_laws(again, Result.SUCCEEDED, runs=2, submissions=2, units=1)
    await stage.keeps_the_laws(same, Result.SUCCEEDED, runs=2, submissions=1, units=1)


SCENES = [
    undisturbed,
    the_janitor_stops_what_lands_after_settlement,
    a_person_requeues_what_was_just_cancelled,
    our_requeue_lands_beside_a_cancel,
    held_by_the_system_by_an_administrator_and_by_us,
    a_person_opens_what_we_hold,
    a_person_requeues_what_runs,
    rerun_before_its_gate_could_be_shut,
    a_person_cancels_by_hand,
    a_node_loses_its_power,
    a_node_is_deaf_and_its_step_lives,
    preempted,
    still_queued_at_its_start_deadline,
    a_long_epilog,
    exit_137_is_not_out_of_memory,
]

EPILOG = """#!/bin/sh
[ -e {work}/epilog-$SLURM_JOB_ID ] && sleep "$(cat {work}/epilog-$SLURM_JOB_ID)"
exit 0
"""


def with_epilog(cluster: Cluster) -> None:
    """Every job has an epilog, which is as long as a file says."""
    place = cluster.work / "epilog"
    place.write_text(EPILOG.format(work=cluster.work))
    place.chmod(0o755)
    cluster.conf.write_text(f"{cluster.conf.read_text().rstrip()}\nEpilog={place}\n")
    cluster.command("scontrol", "reconfigure", check=True)
    cluster.wait_until_up()


async def play_on_one(scenes: list[Scene], told: Outcomes) -> None:
    async with own_cluster(OPTIONS) as cluster:
        await asyncio.to_thread(with_epilog, cluster)
        async with stage_on(cluster) as stage:
            stage.broken = BROKEN
            await played(stage, scenes, told)


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    if reason := why_not():
        pytest.skip(reason)
    told = Outcomes()
    asyncio.run(play_on_one(SCENES, told))
    return told


@pytest.mark.parametrize("play", [marked(play) for play in SCENES])
def test_scene(outcomes: Outcomes, play: Scene) -> None:
    outcomes.tell(play)


@pytest.mark.long
def test_a_time_limit() -> None:
    if reason := why_not():
        pytest.skip(reason)
    told = Outcomes()
    asyncio.run(play_on_one([a_time_limit], told))
    told.tell(a_time_limit)
