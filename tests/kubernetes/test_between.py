"""What others do between two lines of a call, or under a name of ours: on the API server of the tests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dispatch_core.adapters.conformance.rig import Case
from dispatch_core.adapters.contract import Job, Log, Target
from dispatch_core.adapters.kubernetes import patches
from dispatch_core.adapters.kubernetes.doctor import examine
from dispatch_core.adapters.kubernetes.kinds import JOB_UID, SORTS, Json, Sort
from dispatch_core.adapters.kubernetes.patches import Decided
from dispatch_core.adapters.kubernetes.scheduler import KubernetesScheduler
from dispatch_core.adapters.kubernetes.watching import AGAIN_SECONDS
from dispatch_core.plan import Spec
from dispatch_core.record import Answer, State
from tests.kubernetes.client import Client
from tests.kubernetes.rig import World, served
from tests.kubernetes.server import ApiServer
from tests.kubernetes.server.controllers.kueue import evict
from tests.kubernetes.server.controllers.programs import Played
from tests.kubernetes.server.kinds import EVERY, JOB, POD, WORKLOAD, Resource
from tests.kubernetes.server.storage import copied
from tests.kubernetes.test_leaving import pods_alive, until


def resource_of(kind: str) -> Resource:
    return next(each for each in EVERY if each.kind == kind)


# --- between the reading and the patch


BEGUN = {
    "Job": {"active": 1, "ready": 1},
    "JobSet": {"replicatedJobsStatus": [{"name": "main", "ready": 1, "active": 1}]},
    "TrainJob": {"jobsStatus": [{"name": "node", "ready": 1, "active": 1}]},
    "PyTorchJob": {"conditions": [{"type": "Running", "status": "True"}]},
}


@pytest.mark.promise("G2")
@pytest.mark.promise("L1")
@pytest.mark.parametrize("kind", BEGUN)
@pytest.mark.parametrize("before", [None, {}, {"conditions": []}], ids=["no status", "an empty one", "a status"])
async def test_a_hold_never_ends_a_run_that_has_begun_meanwhile(tmp_path: Path, kind: str, before: object) -> None:
    """It was decided when nothing had begun, and arrives, slowly, when it has."""
    async with served(tmp_path, World("w", kind, controllers=False)) as (server, rig):
        case, resource = Case(rig), resource_of(kind)
        target = await case.started()
        await case.open(target)
        if before is not None:
            store(server, resource, target, before)
        asked = 0

        def decide(sort: Sort, object: Json, deadline: str) -> Decided:
            nonlocal asked
            asked += 1
            decided = patches.hold(sort, object, deadline)
            store(server, resource, target, BEGUN[kind])
            return decided

        reply = await rig.adapter.calls.on(target, await case.in_time(), decide)
        assert (reply.answer, asked) == (Answer.REFUSED, 2)
        spec = server.get(resource, target.name, "default")["spec"]
        assert not spec.get("runPolicy", spec)["suspend"]


def store(server: ApiServer, resource: Resource, target: Target, status: object) -> None:
    changed = copied(server.get(resource, target.name, "default"))
    server.store.update(resource, {**changed, "status": status})


@pytest.mark.promise("L1")
@pytest.mark.promise("L3")
@pytest.mark.parametrize("opened", [False, True])
async def test_under_kueue_a_hold_that_lands_late_meets_another_fence(tmp_path: Path, opened: bool) -> None:
    async with served(tmp_path, World("w", kueue=True)) as (server, rig):
        case = Case(rig)
        spec = replace(rig.payload(case.line, waits=True), memory_bytes=2**40)  # it waits for room
        target = await case.started(spec)
        if opened:
            await case.open(target)
        await until(lambda: server.store.all(WORKLOAD))
        await asyncio.sleep(0.3)
        server.faults.carry_out_late("patch", "workloads", seconds=0.5)
        assert (await case.adapter.hold(target, await case.in_time())).answer is Answer.UNKNOWN
        assert (await case.adapter.release(target, await case.in_time())).answer is Answer.DONE
        await asyncio.gather(*server.faults.late)
        await asyncio.sleep(rig.quiet_seconds)
        assert not (await case.seen(target.id)).hold


@pytest.mark.promise("G2")
@pytest.mark.parametrize("before", [True, False])
async def test_under_kueue_a_hold_never_ends_a_run_that_was_admitted_meanwhile(tmp_path: Path, before: bool) -> None:
    async with served(tmp_path, World("w", kueue=True, controllers=False)) as (server, rig):
        case = Case(rig)
        target = await case.started()
        await case.open(target)
        pending = {"type": "QuotaReserved", "status": "False", "reason": "Pending"}
        metadata = {"name": "w", "namespace": "default", "labels": {JOB_UID: target.id}}
        made = {"metadata": metadata, "spec": {"active": True}, "status": {"conditions": [pending]}}
        server.store.create(WORKLOAD, made)
        calls, tries = rig.adapter.calls, []
        wrapped = calls.workload if before else calls.carried_out

        async def meanwhile(*told: Any, **more: Any) -> object:
            tries.append(1)
            admitted = [{**pending, "status": "True"}, {"type": "Admitted", "status": "True", "reason": "Admitted"}]
            store(server, WORKLOAD, replace(target, name="w"), {"conditions": admitted})
            store(server, JOB, target, {"active": 1, "ready": 1})
            return await wrapped(*told, **more)

        setattr(calls, wrapped.__name__, meanwhile)
        assert (await case.adapter.hold(target, await case.in_time())).answer is Answer.REFUSED
        assert len(tries) == (1 if before else 2)
        assert server.get(WORKLOAD, "w", "default")["spec"]["active"] is True


async def test_what_kueue_notes_on_a_workload_meanwhile_stays(tmp_path: Path) -> None:
    async with served(tmp_path, World("w", kueue=True)) as (server, rig):
        case = Case(rig)
        target = await case.started(replace(rig.payload(case.line), memory_bytes=2**40))
        await case.open(target)
        await until(lambda: [True for row in server.store.all(WORKLOAD) if "annotations" not in row["metadata"]])
        look = rig.adapter.calls.workload

        async def meanwhile(*told: object, **more: object) -> object:
            found = await look(*told, **more)  # type: ignore[arg-type]
            changed = copied(server.store.all(WORKLOAD)[0])
            changed["metadata"].setdefault("annotations", {})["somebody/note"] = "1"
            server.store.update(WORKLOAD, changed)
            return found

        rig.adapter.calls.workload = meanwhile  # type: ignore[assignment, method-assign]
        assert (await case.adapter.hold(target, await case.in_time())).answer is Answer.DONE
        (workload,) = server.store.all(WORKLOAD)
        assert workload["metadata"]["annotations"]["somebody/note"] == "1"
        assert workload["spec"]["active"] is False


@pytest.mark.promise("L1")
async def test_a_stop_that_was_half_done_is_not_late(tmp_path: Path) -> None:
    """Late promises that nothing happened."""
    async with served(tmp_path, World("w", kueue=True)) as (server, rig):
        case = Case(rig)
        target = await case.running()
        deadline = await case.in_time()
        server.faults.answer(429, "patch", "jobs", times=100, retry_after=1)
        clock = rig.adapter.api.clock
        at = clock.at
        stopping = asyncio.create_task(case.adapter.stop(target, deadline))
        await until(lambda: not server.store.all(WORKLOAD)[0]["spec"]["active"])
        clock.at = lambda monotonic: at(monotonic + 60)  # type: ignore[method-assign]
        async with asyncio.timeout(60):
            assert (await stopping).answer is Answer.UNKNOWN


@pytest.mark.promise("X2")
@pytest.mark.promise("L1")
@pytest.mark.parametrize("breaks", [True, False])
async def test_a_stop_of_a_job_that_was_half_done_is_not_late(tmp_path: Path, breaks: bool) -> None:
    async with served(tmp_path) as (server, rig):
        case = Case(rig)
        targets = [await case.started(attempt=number) for number in (1, 2)]
        names = tuple(target.name for target in targets)
        if breaks:
            server.faults.lose_call("get", "jobs", names[1], times=2)  # aiohttp asks once more by itself
        reply = await case.adapter.stop_job(names, await case.in_time())
        assert reply.answer is (Answer.UNKNOWN if breaks else Answer.DONE)
        assert (await case.adapter.stop_job(names, await case.in_time())).answer is Answer.DONE
        for target in targets:
            await case.until(target, State.ENDED)


@pytest.mark.promise("G5")
@pytest.mark.parametrize("plural", ["configmaps", "jobs"])
async def test_what_is_only_read_costs_no_attempt(tmp_path: Path, plural: str) -> None:
    async with served(tmp_path) as (server, rig):
        case = Case(rig)
        if plural == "configmaps":
            launch, deadline = case.launch(rig.payload(case.line)), await case.in_time()
            lost = server.faults.lose_call("get", plural, times=2)
            reply = await case.adapter.start(launch, {}, deadline)
        else:
            target, deadline = await case.started(), await case.in_time()
            lost = server.faults.lose_call("get", plural, times=2)
            reply = await case.adapter.open(target, deadline)
        assert (reply.answer, lost.hit) == (Answer.LATE, 2)  # aiohttp asks once more by itself


# --- streams


@pytest.mark.promise("A3")
async def test_a_kind_whose_stream_has_ended_is_followed_again(tmp_path: Path) -> None:
    """While nobody waits, a stream ends with its next line; one that hears nothing goes on."""
    async with served(tmp_path, World("w", "JobSet")) as (server, rig):
        server.watches.bookmark_seconds = 600.0
        case = Case(rig)
        target = await case.started(rig.payload(case.line, waits=True))
        for _ in range(20):
            await case.find()
            await case.adapter.watch(case.job, 0.3)
        path = SORTS["JobSet"].path("default", target.name)
        async with Client(server) as person:
            for number in range(5):
                note = {"metadata": {"annotations": {"somebody/note": str(number)}}}
                await person.json("PATCH", path, note)  # nobody waits
                await asyncio.sleep(0.3)
            for _ in range(20):
                await case.find()
                watching = asyncio.create_task(case.adapter.watch(case.job, 120.0))
                await asyncio.sleep(0.5)
                if not watching.done():
                    break
            await person.json("PATCH", path, {"metadata": {"annotations": {"somebody/note": "heard"}}})
            async with asyncio.timeout(20):
                await watching


@pytest.mark.promise("A3")
async def test_a_stream_that_was_good_again_is_taken_up_at_once(tmp_path: Path) -> None:
    """What stands between may end every stream after a while; that is no reason to be deaf for longer each time."""
    async with served(tmp_path) as (server, rig):
        server.watches.bookmark_seconds = 0.1
        case = Case(rig)
        await case.started()

        async def waits() -> None:
            while True:
                await case.find()
                await case.adapter.watch(case.job, 120.0)

        watching = asyncio.create_task(waits())
        (stream,) = rig.adapter._streams
        for _ in range(3):
            await until(lambda: stream.is_following and server.streams)
            await asyncio.sleep(0.3)
            server.drop_watches()
            await until(lambda: not stream.is_following)
        await until(lambda: stream.is_following)
        await asyncio.sleep(0.3)
        assert stream._pause == AGAIN_SECONDS
        watching.cancel()
        await asyncio.wait([watching])


# --- a Kueue that nobody told of


@pytest.mark.promise("G1")
@pytest.mark.parametrize("how", ["every job", "a queue by default"])
@pytest.mark.parametrize("kind", ["Job", "JobSet", "PyTorchJob"])
async def test_a_kueue_that_takes_every_job_lets_none_run_ungated(tmp_path: Path, how: str, kind: str) -> None:
    async with served(tmp_path, World("w", kind, takes=how)) as (_, rig):
        case = Case(rig)
        reply = await case.adapter.start(case.launch(rig.payload(case.line)), {}, await case.in_time())
        await asyncio.sleep(rig.quiet_seconds)
        assert await rig.lines() == []
        assert reply.answer is Answer.REFUSED
        assert "kueue: true" in reply.text
        assert (await case.find()).objects == ()
        assert {found.name: found.ok async for found in examine(rig.cluster)}["kueue"] is False


@pytest.mark.promise("G5")
async def test_a_kueue_that_cannot_be_asked_yet_refuses_no_job(tmp_path: Path) -> None:
    """Refused would end the job; it is only too early."""
    async with served(tmp_path, World("w", kueue=True)) as (server, rig):
        case = Case(rig)
        server.faults.webhook_down = True
        launch = case.launch(rig.payload(case.line))
        assert (await case.adapter.start(launch, {}, await case.in_time())).answer is Answer.LATE
        server.faults.webhook_down = False
        assert (await case.adapter.start(launch, {}, await case.in_time())).answer is Answer.DONE


@pytest.mark.promise("R1")
async def test_a_webhook_that_hangs_hinders_no_listing(tmp_path: Path) -> None:
    async with served(tmp_path, World("w", kueue=True)) as (server, rig):
        case = Case(rig)
        server.faults.lose_call("create", "jobs", times=100)
        assert (await rig.adapter.find(case.job)).complete


@pytest.mark.promise("C3")
@pytest.mark.promise("L1")
@pytest.mark.parametrize("finished", [True, False])
async def test_a_workload_that_is_gone_takes_no_run_back(tmp_path: Path, finished: bool) -> None:
    """Kueue counts runs in it: it deletes a finished one after a while, and makes one anew that a person deleted."""
    async with served(tmp_path, World("w", kueue=True)) as (server, rig):
        case = Case(rig)
        target = await case.running()
        workload = copied(server.store.all(WORKLOAD)[0])
        evict(workload, workload["status"], "Preempted", "somebody needs the room")
        server.store.update(WORKLOAD, workload)
        second = replace(target, run=2)
        async for _ in rig.patiently():
            shown = await case.seen(target.id)
            if (shown.run, shown.state) == (2, State.RUNNING):
                break
        known = replace(case.job, known=(target.id,), runs=((target.id, 2),))
        if finished:
            await rig.go(case.line)
            await case.until(second, State.ENDED)
        await until(lambda: not finished or not server.store.all(WORKLOAD)[0]["metadata"].get("finalizers"))
        gone = server.store.all(WORKLOAD)[0]
        server.store.remove(WORKLOAD, gone)
        if finished:
            fresh = KubernetesScheduler(rig.cluster)  # one that saw nothing of it
            (shown,) = (await fresh.find(known)).objects
            await fresh.close()
            assert (shown.run, shown.state) == (2, State.ENDED)
            return
        await until(lambda: server.store.all(WORKLOAD))
        async for _ in rig.patiently():
            (shown,) = (await rig.adapter.find(known)).objects
            if shown.state is State.RUNNING:
                break
        assert (shown.run, shown.state) == (2, State.RUNNING)
        assert (await case.adapter.stop(second, await case.in_time())).answer is Answer.DONE
        (shown,) = (await rig.adapter.find(known)).objects
        assert shown.run == 2


# --- names that mean something else by now, pods that nobody ends


@pytest.mark.promise("C3")
async def test_pods_of_a_name_that_somebody_took_again_are_still_seen(tmp_path: Path) -> None:
    """Deleted and made again by a person: of the same name, with another uid, while the pod of the first still ends."""
    async with served(tmp_path) as (server, rig), Client(server) as person:
        case = Case(rig)
        script = "trap '' TERM; while [ ! -e $1/go ]; do sleep 0.05; done"
        spec = Spec(command=("sh", "-c", script, "sh", str(tmp_path)), options={"grace_seconds": 60})
        target = await case.started(spec)
        await case.open(target)
        await case.until(target, State.RUNNING)
        path = SORTS["Job"].path("default", target.name)
        shown = server.get(JOB, target.name, "default")
        await person.json("DELETE", path, {"propagationPolicy": "Background"})
        again = {"apiVersion": "batch/v1", "kind": "Job"} | {key: copied(shown)[key] for key in ("metadata", "spec")}
        again["metadata"] = {key: again["metadata"][key] for key in ("name", "labels", "annotations")}
        again["spec"] |= {"suspend": True}
        again["spec"].pop("selector", None)
        labels = again["spec"]["template"]["metadata"]["labels"]
        again["spec"]["template"]["metadata"]["labels"] = {k: v for k, v in labels.items() if "controller" not in k}
        await person.json("POST", SORTS["Job"].path("default"), again)
        assert len(pods_alive(server)) == 1
        listing = await rig.adapter.find(Job(key=case.job.key, uid=case.uid, known=(target.id,)))
        assert target.id not in {row.id for row in listing.objects}
        assert not listing.complete
        (tmp_path / "go").touch()


@pytest.mark.promise("S1")
@pytest.mark.parametrize("code", [0, 1])
async def test_a_rank_that_hangs_when_the_job_is_over_does_not_run_for_ever(tmp_path: Path, code: int) -> None:
    async with served(tmp_path, World("w", "PyTorchJob")) as (server, rig):
        server.node.programs["registry.example/test:1"] = Played
        case = Case(rig)
        spec = replace(rig.payload(case.line), options={**rig.options, "nodes": 2, "grace_seconds": 0})
        target = await case.started(spec)
        await case.open(target)
        await case.until(target, State.RUNNING)
        await until(lambda: sum(p["status"].get("phase") == "Running" for p in server.store.all(POD)) == 2)
        server.node.end(f"{target.name}-master-0", code, "", namespace="default")
        await case.until(target, State.ENDED)
        (left,) = server.store.all(POD)  # with its log
        assert left["metadata"]["name"] == f"{target.name}-master-0"


# --- a connection that has listed nothing yet


@pytest.mark.parametrize("kind", ["Job", "JobSet", "PyTorchJob"])
async def test_a_log_is_found_before_anything_was_listed(tmp_path: Path, kind: str) -> None:
    async with served(tmp_path, World("w", kind)) as (_, rig):
        case = Case(rig)
        target = await case.running()
        fresh = KubernetesScheduler(rig.cluster)
        try:
            async for _ in rig.patiently():
                piece = await fresh.read_log(target, 1, 0, 100)
                if piece.data:
                    break
            assert (piece.log, piece.data.decode().split()) == (Log.THERE, [case.line])
        finally:
            await fresh.close()
