"""Checks of ends, stops and requeues.

One rule: a stop, or a requeue, touches the run that it names and no other.
"""

from __future__ import annotations

import asyncio

from dispatch_core.adapters.conformance.rig import Case, Rig, check, expect, expect_reply, later
from dispatch_core.plan import Cause, End
from dispatch_core.record import Answer, State


def expect_end(end: End | None, *causes: Cause) -> End:
    told = "nothing" if end is None else str(end.cause)
    expect(end is not None and end.cause in causes, f"the end is {told}, and should be {' or '.join(causes)}")
    return end or End(cause=Cause.UNRECOGNIZED)


@check("P3")
async def ends_are_told_with_their_cause(rig: Rig) -> None:
    case = Case(rig)
    specs = (rig.payload("fine"), rig.payload("three", exit_code=3), rig.payload("signal", signal=9))
    targets = [await case.started(spec, attempt) for attempt, spec in enumerate(specs, start=1)]
    for target in targets:
        await case.open(target)
    fine, three, signalled = [(await case.until(target, State.ENDED)).end for target in targets]
    expect(expect_end(fine, Cause.COMPLETED).exit_code in (0, None), f"a success is told as {fine}")
    expect(expect_end(three, Cause.EXIT).exit_code == 3, f"exit 3 is told as {three}")
    ended = expect_end(signalled, Cause.SIGNAL, Cause.EXIT)
    expect(9 in (ended.signal, (ended.exit_code or 0) - 128), f"an end by signal 9 is told as {signalled}")
    shown = {sighting.id: sighting.end for sighting in (await case.find()).objects}
    expect([shown[target.id] for target in targets] == [fine, three, signalled], "an end changed in a later listing")


@check("G7", "X2", "P1")
async def a_stopped_gated_object_never_runs(rig: Rig) -> None:
    case = Case(rig)
    target, kept = await case.started(attempt=1), await case.started(attempt=2)
    expect_reply(await case.adapter.stop(target, await case.in_time()), Answer.DONE)
    expect_end((await case.until(target, State.ENDED)).end, Cause.STOPPED_OUTSIDE)
    await case.adapter.open(target, await case.in_time())
    expect_reply(await case.adapter.stop(target, await case.in_time()), Answer.DONE)
    await case.stays(target, State.ENDED)
    await case.stays(kept, State.GATED)


@check("X2")
async def a_stopped_held_object_never_runs(rig: Rig) -> None:
    case = Case(rig)
    target = await case.started()
    await case.adapter.hold(target, await case.in_time())
    await case.open(target)
    await case.until(target, State.HELD)
    expect_reply(await case.adapter.stop(target, await case.in_time()), Answer.DONE)
    await case.until(target, State.ENDED)
    await case.adapter.release(target, await case.in_time())
    await case.stays(target, State.ENDED)


@check("G7")
async def a_stop_ends_the_run_that_it_names(rig: Rig) -> None:
    case = Case(rig)
    stopped, kept = await case.running(attempt=1), await case.running(attempt=2)
    expect_reply(await case.adapter.stop(stopped, await case.in_time()), Answer.DONE)
    expect_end((await case.until(stopped, State.ENDED)).end, Cause.STOPPED_OUTSIDE)
    shown = await case.seen(kept.id)
    expect(shown.state is State.RUNNING, f"the stop of another object made this one {shown.state}")
    await rig.go(case.line)
    expect_end((await case.until(kept, State.ENDED)).end, Cause.COMPLETED)
    expect_reply(await case.adapter.stop(kept, await case.in_time()), Answer.DONE)
    expect_end((await case.seen(kept.id)).end, Cause.COMPLETED)


@check("X2")
async def a_stop_of_the_job_stops_all_of_it_and_no_other(rig: Rig) -> None:
    case, other = Case(rig), Case(rig)
    running, gated, kept = await case.running(1), await case.started(attempt=2), await case.started(attempt=3)
    neighbour = await other.running()
    reply = await case.adapter.stop_job((running.name, gated.name), await case.in_time())
    expect_reply(reply, Answer.DONE)
    for target in (running, gated):
        expect_end((await case.until(target, State.ENDED)).end, Cause.STOPPED_OUTSIDE)
    await case.stays(kept, State.GATED, runs=1)
    shown = await other.seen(neighbour.id)
    expect(shown.state is State.RUNNING, f"the stop of one job made an object of another {shown.state}")
    await rig.go(other.line)
    await other.until(neighbour, State.ENDED)
    nobody = await case.adapter.stop_job((Case(rig).launch(rig.payload("x")).name,), await case.in_time())
    expect_reply(nobody, Answer.DONE)


@check("G1", "L1")
async def a_requeued_run_comes_back_gated_and_once(rig: Rig) -> None:
    case = Case(rig)
    if not case.adapter.capabilities.requeues:
        return
    target = await case.started()
    expect_reply(await case.adapter.requeue(target, await case.in_time()), Answer.REFUSED)
    await case.open(target)
    first = (await case.until(target, State.ENDED)).end
    deadline = await case.in_time()
    replies = await asyncio.gather(*(case.adapter.requeue(target, deadline) for _ in range(4)))
    done = [reply for reply in replies if reply.answer is Answer.DONE]
    expect(len(done) == 1, f"{len(done)} of four requeues of one run were done")
    shown = await case.until(target, State.GATED)
    expect(shown.run == 2, f"after one requeue, and three that came twice, the object is on run {shown.run}")
    told = dict(shown.earlier_ends)
    expect(told.get(1, first) == first, f"the end of run 1 became {told.get(1)}, and was {first}")
    await case.stays(target, State.GATED, runs=1)
    await case.open(later(target))
    await case.until(target, State.ENDED)
    await case.ran(2)
    expect_reply(await case.adapter.requeue(target, await case.in_time()), Answer.REFUSED)
    expect((await case.seen(target.id)).run == 2, "a requeue that names run 1 made run 3")


@check("L1", "G7")
async def a_call_that_names_an_earlier_run_spares_the_later(rig: Rig) -> None:
    case = Case(rig)
    if not case.adapter.capabilities.requeues:
        return
    target = await case.started(rig.payload(case.line, waits=True))
    await case.open(target)
    await case.ran(1)
    await rig.go(case.line)
    await case.until(target, State.ENDED)
    expect_reply(await case.adapter.requeue(target, await case.in_time()), Answer.DONE)
    for call in (case.adapter.open, case.adapter.stop, case.adapter.hold):
        expect_reply(await call(target, await case.in_time()), Answer.REFUSED)
        shown = await case.seen(target.id)
        expect((shown.run, shown.state, shown.hold) == (2, State.GATED, False), f"it made run 2 {shown.state}")
    await case.open(later(target))
    await case.until(target, State.ENDED)
    await case.ran(2)


@check("G2")
async def a_requeued_run_can_be_held_again(rig: Rig) -> None:
    case = Case(rig)
    if not case.adapter.capabilities.requeues:
        return
    target = await case.started()
    await case.open(target)
    await case.until(target, State.ENDED)
    await case.adapter.requeue(target, await case.in_time())
    second = later(target)
    expect_reply(await case.adapter.hold(second, await case.in_time()), Answer.DONE)
    await case.open(second)
    await case.until(second, State.HELD)
    await case.stays(second, State.HELD, runs=1)
    expect_reply(await case.adapter.release(second, await case.in_time()), Answer.DONE)
    await case.until(second, State.ENDED)
    await case.ran(2)
