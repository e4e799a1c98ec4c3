"""Checks of the gate and of the hold: what does not run, and what opens.

One rule: nothing runs until it is opened, and the hold is another bit than the gate.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from dispatch_core.adapters.conformance.rig import Case, Rig, check, expect, expect_reply, later
from dispatch_core.adapters.contract import Target
from dispatch_core.evidence import Sighting
from dispatch_core.record import Answer, Kind, Reply, State


@check("G1", "G10", "P1")
async def gated_objects_do_not_run(rig: Rig) -> None:
    case = Case(rig)
    target = await case.started()
    shown = await case.seen(target.id)
    expect(shown.state is State.GATED, f"a started object is {shown.state}, and should be gated")
    expect(not shown.nodes, f"a gated object occupies {shown.nodes}")
    await case.stays(target, State.GATED)


@check("G4")
async def an_object_carries_its_tags(rig: Rig) -> None:
    case = Case(rig, key='a key with "quotes", an é and a /slash')
    first, second = await case.started(attempt=1), await case.started(attempt=2)
    for target in (first, second):
        shown = await case.seen(target.id)
        expect(shown.name == target.name, f"the object's name is {shown.name!r}, and should be {target.name!r}")
        expect(shown.key in (case.job.key, ""), f"the object's key is {shown.key!r}, and should be {case.job.key!r}")
        expect(shown.run == 1, f"a new object is on run {shown.run}")
        expect(not shown.hold, "a new object has the hold bit")
    expect(first.id != second.id, "two objects have the same id")


@check("G1")
async def an_opened_object_runs_once(rig: Rig) -> None:
    case = Case(rig)
    target = await case.started()
    await case.open(target)
    await case.open(target)
    shown = await case.until(target, State.ENDED)
    await case.ran(1)
    expect(shown.run == 1, f"an object that was opened twice is on run {shown.run}")
    await case.adapter.open(target, await case.in_time())
    await case.stays(target, State.ENDED, runs=1)


@check("G1")
async def opening_at_once_runs_once(rig: Rig) -> None:
    case = Case(rig)
    target = await case.started()
    deadline = await case.in_time()
    await asyncio.gather(*(case.adapter.open(target, deadline) for _ in range(8)))
    await case.until(target, State.ENDED)
    await case.stays(target, State.ENDED, runs=1)


@check("G2", "G8")
async def a_hold_keeps_an_opened_object_from_running(rig: Rig) -> None:
    case = Case(rig)
    target = await case.started()
    expect_reply(await case.adapter.hold(target, await case.in_time()), Answer.DONE)
    await case.open(target)
    shown = await case.until(target, State.HELD)
    expect(shown.hold, "a held object is listed without its hold bit")
    await case.stays(target, State.HELD)
    expect_reply(await case.adapter.release(target, await case.in_time()), Answer.DONE)
    shown = await case.until(target, State.ENDED)
    await case.ran(1)


@check("G2")
async def gate_and_hold_are_two_things(rig: Rig) -> None:
    case = Case(rig)
    target = await case.started()
    for repeated in range(2):
        for call, hold in ((case.adapter.hold, True), (case.adapter.release, False)):
            expect_reply(await call(target, await case.in_time()), Answer.DONE)
            shown = await case.seen(target.id)
            expect(shown.hold is hold, f"after {call.__name__} number {repeated + 1} the hold bit is {shown.hold}")
            expect(shown.state is State.GATED, f"after {call.__name__} a gated object is {shown.state}")
    await case.stays(target, State.GATED)


@check("S1", "P3")
async def a_start_carried_out_twice_makes_one_object(rig: Rig) -> None:
    case = Case(rig)
    if not case.adapter.capabilities.starts_once:
        return
    launch, deadline = case.launch(rig.payload(case.line)), await case.in_time()
    replies = await asyncio.gather(*(case.adapter.start(launch, {}, deadline) for _ in range(4)))
    replies.append(await case.adapter.start(launch, {}, deadline))
    shown = (await case.find()).objects
    expect(len(shown) == 1, f"a Start that was carried out five times made {len(shown)} objects")
    for reply in replies:
        expect_reply(reply, Answer.DONE, Answer.UNKNOWN)  # anything else would say that the attempt made nothing
    made = {reply.text for reply in replies if reply.answer is Answer.DONE}
    expect(made == {shown[0].id}, f"five replies to one Start name {len(made)} objects, and one is listed")


@check("L1")
async def a_late_start_makes_no_object(rig: Rig) -> None:
    if Kind.OPEN in rig.unenforced:
        return
    case = Case(rig)
    reply = await case.adapter.start(case.launch(rig.payload(case.line)), {}, await case.too_late())
    expect_reply(reply, Answer.LATE)
    expect(not (await case.find()).objects, "a start that came too late made an object")


@dataclass
class Attempted:
    """A call that must change nothing."""

    kind: Kind
    target: Target
    case: Case

    async def reply(self, *, late: bool) -> Reply:
        adapter = self.case.adapter
        deadline = await (self.case.too_late() if late else self.case.in_time())
        calls = {
            Kind.OPEN: adapter.open,
            Kind.STOP: adapter.stop,
            Kind.HOLD: adapter.hold,
            Kind.RELEASE: adapter.release,
            Kind.REQUEUE: adapter.requeue,
        }
        if self.kind is Kind.STOP_JOB:
            return await adapter.stop_job((self.target.name,), deadline)
        return await calls[self.kind](self.target, deadline)


def essence(sighting: Sighting) -> tuple[object, ...]:
    return (sighting.id, sighting.state, sighting.run, sighting.hold, sighting.end)


@check("L1")
async def late_calls_change_nothing(rig: Rig) -> None:
    case = Case(rig)
    gated, held, ended = await case.started(attempt=1), await case.started(attempt=2), await case.started(attempt=3)
    await case.adapter.hold(held, await case.in_time())
    await case.open(ended)
    await case.until(ended, State.ENDED)
    runs = await case.runs()
    attempted = [Attempted(kind, gated, case) for kind in (Kind.OPEN, Kind.STOP, Kind.STOP_JOB, Kind.HOLD)]
    attempted.append(Attempted(Kind.RELEASE, held, case))
    if case.adapter.capabilities.requeues:
        attempted.append(Attempted(Kind.REQUEUE, ended, case))
    for call in attempted:
        if call.kind not in rig.unenforced:
            before = essence(await case.seen(call.target.id))
            expect_reply(await call.reply(late=True), Answer.LATE)
            after = essence(await case.seen(call.target.id))
            expect(after == before, f"a {call.kind} that came too late made {before} into {after}")
    await case.stays(gated, State.GATED, runs=runs)


@check("L1", "G7")
async def calls_on_another_identity_or_run_change_nothing(rig: Rig) -> None:
    case, other = Case(rig), Case(rig)
    target, neighbour = await case.started(), await other.started()
    strangers = (
        Target(id=target.id, name=neighbour.name, run=1),
        Target(id=target.id[::-1], name=target.name, run=1),
        Target(id="0", name=target.name, run=1),
        later(target),
    )
    before = essence(await case.seen(target.id))
    for stranger in strangers:
        for kind in (Kind.OPEN, Kind.STOP, Kind.HOLD, Kind.RELEASE, Kind.REQUEUE):
            if kind is Kind.REQUEUE and not case.adapter.capabilities.requeues:
                continue
            expect_reply(await Attempted(kind, stranger, case).reply(late=False), Answer.REFUSED)
            after = essence(await case.seen(target.id))
            expect(after == before, f"a {kind} on {stranger} made {before} into {after}")
    await case.stays(target, State.GATED)
    await other.stays(neighbour, State.GATED)
