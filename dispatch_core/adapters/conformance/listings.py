"""Checks of listings, of the wake-ups that hint at them, and of a closed connection.

One rule: a listing shows all that was there when it was asked for, whoever else asks at the time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from dispatch_core.adapters.conformance.rig import CLOSING, Case, Rig, check, expect, expect_reply
from dispatch_core.adapters.contract import Job, Target
from dispatch_core.errors import DispatchError
from dispatch_core.record import Answer, Reply, State


@contextlib.asynccontextmanager
async def asking(case: Case, many: int) -> AsyncIterator[None]:
    """So many others who ask for listings all the time."""

    async def ask() -> None:
        while True:
            await case.find()

    others = [asyncio.create_task(ask()) for _ in range(many)]
    try:
        yield
    finally:
        for other in others:
            other.cancel()
        await asyncio.wait(others)


@check("C4")
async def a_listing_shows_what_was_there_when_it_was_asked_for(rig: Rig) -> None:
    case = Case(rig)
    async with asking(case, 3):
        for attempt in range(1, 9):
            target = await case.started(attempt=attempt)
            shown = [sighting.id for sighting in (await case.find()).objects]
            expect(target.id in shown, "a listing that was asked for after a Start does not show its object")
    expect(len((await case.find()).objects) == 8, "the job's eight objects are not all listed")


@check("C4")
async def a_listing_begins_after_it_was_asked_for(rig: Rig) -> None:
    case = Case(rig)
    first = await case.find()
    async with asking(case, 3):
        for _ in range(5):
            second = await case.find()
            expect(second.began >= first.ended, "a listing began before the one ended that was awaited before")
            first = second


@check()
async def a_listing_shows_the_job_and_nobody_else(rig: Rig) -> None:
    case, other = Case(rig), Case(rig)
    mine, _ = await case.started(), await other.started()
    shown = [sighting.id for sighting in (await case.find()).objects]
    expect(shown == [mine.id], f"the listing of a job with one object shows {len(shown)}")
    nobody = await rig.adapter.find(Job(key=f"no {case.uid}", uid=case.uid[::-1]))
    expect(nobody.complete and not nobody.objects, "the listing of a job without objects shows some")


@check("S1")
async def another_record_of_the_same_key_is_seen_while_it_lives(rig: Rig) -> None:
    older = Case(rig)
    newer = Case(rig, key=older.job.key)
    left = await older.started()
    shown = [sighting for sighting in (await newer.find()).objects if sighting.id == left.id]
    expect(len(shown) == 1 and shown[0].name == left.name, "a live object with the job's key is not listed")
    await older.adapter.stop(left, await older.in_time())
    await older.until(left, State.ENDED)
    known = Job(key=newer.job.key, uid=newer.uid, known=(left.id,))
    expect(bool((await rig.adapter.find(known)).objects), "an ended object is not listed though its id was named")


@check("S2")
async def everything_is_listed_whatever_its_job(rig: Rig) -> None:
    cases = [Case(rig), Case(rig)]
    targets = [await case.started() for case in cases]
    names = {sighting.id: sighting.name for sighting in (await rig.adapter.everything()).objects}
    for target in targets:
        expect(names.get(target.id) == target.name, "an object is not in the listing of everything")


@check()
async def who_stops_asking_does_no_harm(rig: Rig) -> None:
    case = Case(rig)
    target = await case.started()
    for _ in range(5):
        leaving, staying = asyncio.create_task(case.find()), asyncio.create_task(case.find())
        await asyncio.sleep(0)
        leaving.cancel()
        async with asyncio.timeout(rig.patience_seconds):
            listing = await staying
        expect([sighting.id for sighting in listing.objects] == [target.id], "a listing lost the job's object")
        with contextlib.suppress(asyncio.CancelledError):
            await leaving


@check()
async def many_jobs_share_a_listing(rig: Rig) -> None:
    cases = [Case(rig) for _ in range(50)]
    before = rig.listings()
    if before is None:
        return
    await asyncio.gather(*(case.find() for case in cases))
    made = (rig.listings() or 0) - before
    expect(made <= 2, f"fifty jobs that asked at the same time cost {made} listings")


@check("A3")
async def a_watch_wakes_when_something_changes(rig: Rig) -> None:
    case = Case(rig)
    target = await case.started()
    await case.find()
    watching = asyncio.create_task(case.adapter.watch(case.job, rig.patience_seconds * 2))
    await case.open(target)
    done, _ = await asyncio.wait([watching], timeout=rig.patience_seconds)
    expect(bool(done), "a watch did not wake when an object was opened and ran")
    await case.until(target, State.ENDED)
    await case.find()
    try:
        async with asyncio.timeout(rig.patience_seconds):
            await case.adapter.watch(case.job, 0.1)
    except TimeoutError:
        expect(False, "a watch of a job at rest did not return after its time")


@check(into=CLOSING)
async def calls_after_close_say_so(rig: Rig) -> None:
    case = Case(rig)
    deadline = await case.in_time()
    await rig.adapter.close()
    target, adapter = Target(id="0123456789abcdef", name="dispatch-0123456789abcdef-1-1", run=1), rig.adapter
    for call in (
        adapter.find(case.job),
        adapter.everything(),
        adapter.start(case.launch(rig.payload("x")), {}, deadline),
        adapter.open(target, deadline),
        adapter.stop(target, deadline),
        adapter.stop_job((target.name,), deadline),
        adapter.hold(target, deadline),
        adapter.release(target, deadline),
        adapter.requeue(target, deadline),
        adapter.watch(case.job, 1.0),
    ):
        try:
            reply = await call
        except DispatchError:
            continue
        expect(isinstance(reply, Reply), "a call after the connection was closed neither raised nor replied")
        if isinstance(reply, Reply):
            expect_reply(reply, Answer.UNKNOWN, Answer.REFUSED)
    await rig.adapter.close()


@check(into=CLOSING)
async def who_waits_for_a_listing_is_told_of_a_close(rig: Rig) -> None:
    case = Case(rig)
    await case.find()
    waiting = [asyncio.create_task(case.find()) for _ in range(3)]
    await asyncio.sleep(0)
    await rig.adapter.close()
    done, left = await asyncio.wait(waiting, timeout=rig.patience_seconds)
    for one in left:
        one.cancel()
    expect(not left, "who waits for a listing waits for ever once the connection is closed")
    raised = [one.exception() for one in done]
    expect(all(error is None or isinstance(error, DispatchError) for error in raised), f"a close raised {raised}")
