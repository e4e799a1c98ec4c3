"""Lost replies, late effects, names that are taken, and streams that break: on the API server of the tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dispatch_core.adapters.conformance.rig import Case
from dispatch_core.adapters.contract import Target
from dispatch_core.adapters.kubernetes import kinds, manifest
from dispatch_core.errors import SchedulerUnavailable
from dispatch_core.record import Answer, State
from tests.kubernetes.rig import KubernetesRig, served
from tests.kubernetes.server import ApiServer

JOBS = "jobs"


@contextlib.asynccontextmanager
async def connected(folder: Path) -> AsyncIterator[tuple[ApiServer, KubernetesRig, Case]]:
    async with served(folder) as (server, rig):
        case = Case(rig)
        await case.find()
        yield server, rig, case


@pytest.mark.promise("G5")
@pytest.mark.parametrize("carried_out", [True, False])
async def test_a_start_without_a_reply_is_unknown_and_made_once(tmp_path: Path, carried_out: bool) -> None:
    async with connected(tmp_path) as (server, rig, case):
        launch = case.launch(rig.payload(case.line))
        (server.faults.lose_reply if carried_out else server.faults.lose_call)("create", JOBS)
        reply = await case.adapter.start(launch, {}, await case.in_time())
        assert reply.answer is Answer.UNKNOWN
        assert len((await case.find()).objects) == carried_out
        again = await case.adapter.start(launch, {}, await case.in_time())
        (shown,) = (await case.find()).objects
        assert (again.answer, again.text, shown.state) == (Answer.DONE, shown.id, State.GATED)


@pytest.mark.promise("L1")
@pytest.mark.parametrize("carried_out", [True, False])
async def test_an_open_without_a_reply_is_unknown_and_can_be_repeated(tmp_path: Path, carried_out: bool) -> None:
    async with connected(tmp_path) as (server, _, case):
        target = await case.started()
        (server.faults.lose_reply if carried_out else server.faults.lose_call)("patch", JOBS)
        assert (await case.adapter.open(target, await case.in_time())).answer is Answer.UNKNOWN
        await case.open(target)
        await case.until(target, State.ENDED)
        assert await case.runs() == 1


@pytest.mark.promise("L1")
@pytest.mark.promise("L3")
async def test_a_hold_that_lands_late_meets_another_fence(tmp_path: Path) -> None:
    async with connected(tmp_path) as (server, rig, case):
        target = await case.started()
        late = server.faults.carry_out_late("patch", JOBS, seconds=0.5)
        assert (await case.adapter.hold(target, await case.in_time())).answer is Answer.UNKNOWN
        assert (await case.adapter.release(target, await case.in_time())).answer is Answer.DONE
        await asyncio.gather(*server.faults.late)
        await asyncio.sleep(rig.quiet_seconds)
        assert late.hit == 1
        assert not (await case.seen(target.id)).hold


@pytest.mark.promise("G5")
async def test_a_full_server_is_asked_again_and_costs_no_attempt(tmp_path: Path) -> None:
    async with connected(tmp_path) as (server, rig, case):
        busy = server.faults.answer(429, "create", JOBS, times=2, retry_after=0)
        reply = await case.adapter.start(case.launch(rig.payload(case.line)), {}, await case.in_time())
        assert (reply.answer, busy.hit) == (Answer.DONE, 2)


@pytest.mark.promise("G5")
async def test_an_error_of_the_server_is_unknown(tmp_path: Path) -> None:
    async with connected(tmp_path) as (server, rig, case):
        server.faults.answer(500, "create", JOBS, carried=True)
        reply = await case.adapter.start(case.launch(rig.payload(case.line)), {}, await case.in_time())
        assert reply.answer is Answer.UNKNOWN
        assert len((await case.find()).objects) == 1


async def test_a_listing_that_fails_says_so(tmp_path: Path) -> None:
    async with connected(tmp_path) as (server, _, case):
        server.faults.answer(500, "list", JOBS)
        with pytest.raises(SchedulerUnavailable):
            await case.adapter.find(case.job)


# --- names


@pytest.mark.case("T4")
@pytest.mark.promise("G5")
async def test_a_name_that_somebody_else_took_is_left_alone(tmp_path: Path) -> None:
    """A create of that name says "already exists"; what is there has other tags, so it is neither ours nor touched."""
    async with connected(tmp_path) as (_, rig, case):
        launch = case.launch(rig.payload(case.line))
        _, body = manifest.body_of(launch, rig.cluster, {"metadata": {"name": "none", "uid": "none"}})
        body["metadata"] = {"name": launch.name, "labels": {"team": "somebody"}}
        path = kinds.JOB.path(rig.cluster.namespace)
        made = await rig.adapter.api.request("POST", path, {}, body, seconds=5.0)
        assert made.well, made.message
        reply = await case.adapter.start(launch, {}, await case.in_time())
        assert reply.answer is Answer.UNKNOWN
        assert (await case.find()).objects == ()
        foreign = Target(id=kinds.uid_of(made.body), name=launch.name, run=1)
        for call in (case.adapter.open, case.adapter.stop):
            assert (await call(foreign, await case.in_time())).answer is Answer.REFUSED


@pytest.mark.case("T4")
async def test_an_object_of_the_same_attempt_is_adopted(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, rig, case):
        launch = case.launch(rig.payload(case.line))
        first = await case.adapter.start(launch, {}, await case.in_time())
        second = await case.adapter.start(launch, {}, await case.in_time())
        assert (first.answer, second) == (Answer.DONE, first)


@pytest.mark.promise("S2")
async def test_the_cluster_collects_what_is_created_after_settlement(tmp_path: Path) -> None:
    async with connected(tmp_path) as (server, rig, case):
        early = await case.started()
        launch = case.launch(rig.payload(case.line), attempt=2)
        server.faults.carry_out_late("create", JOBS, seconds=1.0)
        assert (await case.adapter.start(launch, {}, await case.in_time())).answer is Answer.UNKNOWN
        assert await rig.adapter.kept() == {case.uid}
        await rig.adapter.settled(case.uid, (early.name, launch.name))
        async for _ in rig.patiently():
            if not await rig.adapter.kept():  # the collector lets go of what it owns first
                break
        assert await rig.adapter.kept() == frozenset()
        await asyncio.gather(*server.faults.late)
        async for _ in rig.patiently():
            if [row.id for row in (await case.find()).objects] == [early.id]:
                break
        assert [row.id for row in (await case.find()).objects] == [early.id]


# --- streams


async def woken(case: Case, watching: asyncio.Task[None]) -> None:
    done, _ = await asyncio.wait([watching], timeout=case.rig.patience_seconds)
    assert done, "nobody was woken"
    await watching


async def watched(case: Case) -> asyncio.Task[None]:
    """A watch whose stream has begun, of a job at rest."""
    async for _ in case.rig.patiently():
        await case.find()
        watching = asyncio.create_task(case.adapter.watch(case.job, 120.0))
        await asyncio.sleep(0.5)
        if not watching.done():
            return watching
    raise AssertionError("the job never came to rest")


@pytest.mark.case("T54")
@pytest.mark.promise("A3")
@pytest.mark.parametrize("trouble", ["dropped", "restarted"])
async def test_what_happens_while_a_stream_is_broken_still_wakes(tmp_path: Path, trouble: str) -> None:
    """After a restart every resourceVersion is 410, also the last one seen."""
    async with connected(tmp_path) as (server, _, case):
        target = await case.started()
        watching = await watched(case)
        if trouble == "dropped":
            server.drop_watches()
        else:
            await server.restart()
        assert (await case.adapter.open(target, await case.in_time())).answer is Answer.DONE
        await woken(case, watching)


@pytest.mark.promise("A3")
async def test_a_change_between_a_listing_and_its_watch_is_not_lost(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, _, case):
        target = await case.started()
        other = Case(case.rig)
        await other.find()
        following = await watched(other)  # the stream runs
        await case.find()
        await case.open(target)
        await asyncio.sleep(0.5)
        async with asyncio.timeout(case.rig.patience_seconds):
            await case.adapter.watch(case.job, 120.0)
        following.cancel()
        await asyncio.wait([following])


@pytest.mark.promise("A3")
async def test_many_jobs_cost_one_stream(tmp_path: Path) -> None:
    async with connected(tmp_path) as (server, rig, _):
        cases = [Case(rig) for _ in range(50)]
        await asyncio.gather(*(case.find() for case in cases))
        watching = [
            await watched(cases[0]),
            *(asyncio.create_task(case.adapter.watch(case.job, 1.0)) for case in cases),
        ]
        await asyncio.gather(*watching[1:])
        assert sum(asked.verb == "watch" for asked in server.requests) == 1
        watching[0].cancel()
        await asyncio.wait(watching)
