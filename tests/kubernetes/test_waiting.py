"""What is told of a run that does not begin, and of one that goes on: on the API server of the tests."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from dispatch_core.adapters.conformance.rig import Case
from dispatch_core.adapters.contract import Log, Target
from dispatch_core.adapters.kubernetes.kinds import PROGRESS
from dispatch_core.adapters.logs import written
from dispatch_core.cli.explaining import lines_of
from dispatch_core.client import Client, explain
from dispatch_core.errors import SchedulerUnavailable
from dispatch_core.plan import Plan, Spec
from dispatch_core.record import Answer, State
from dispatch_core.stores.memory import MemoryStore
from dispatch_core.supervisor import Supervisor
from tests.kubernetes.rig import KubernetesRig, World, served
from tests.kubernetes.server.kinds import JOB, QUOTA
from tests.kubernetes.server.storage import copied

BIG = 2**40


async def opened(case: Case, spec: Spec) -> Target:
    target = await case.started(spec)
    await case.open(target)
    return target


async def why(case: Case, target: Target, wanted: str) -> str:
    """Why it does not begin, once that is told."""
    async for _ in case.rig.patiently():
        piece = await case.adapter.read_log(target, 1, 0, 100)
        assert piece.log is Log.NOT_BEGUN
        if wanted in piece.why:
            return piece.why
    raise AssertionError(f"nothing tells of {wanted}: {piece}")


@pytest.mark.parametrize("kind", ["Job", "JobSet", "PyTorchJob"])
async def test_an_image_that_cannot_be_pulled_is_told(tmp_path: Path, kind: str) -> None:
    async with served(tmp_path, World("w", kind)) as (server, rig):
        case = Case(rig)
        server.node.missing.add("registry.example/test:1")
        target = await opened(case, rig.payload(case.line))
        assert "registry.example/test:1" in await why(case, target, "ImagePullBackOff")
        assert (await case.seen(target.id)).state is State.PENDING
        told: list[str] = []
        assert [piece async for piece in written(rig.adapter, case.job, target, told.append)] == []
        (line,) = told
        assert "has not begun (ImagePullBackOff: " in line


async def test_what_no_node_has_is_told(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, rig):
        case = Case(rig)
        target = await opened(case, replace(rig.payload(case.line), memory_bytes=BIG))
        assert (await why(case, target, "Unschedulable")).startswith("Unschedulable: 0/1 nodes are available: 1 Insuf")


async def test_what_kueue_has_no_room_for_is_told(tmp_path: Path) -> None:
    async with served(tmp_path, World("w", kueue=True)) as (_, rig):
        case = Case(rig)
        target = await case.started(replace(rig.payload(case.line), memory_bytes=BIG))
        assert (await case.adapter.read_log(target, 1, 0, 9)).why == ""  # its gate is shut, so that is no question
        await case.open(target)
        assert (await why(case, target, "ExceedsMaxQuota")).startswith("Kueue: ExceedsMaxQuota: insufficient quota")


async def test_a_pod_that_is_not_made_is_told_by_an_event(tmp_path: Path) -> None:
    """The object itself tells nothing of it."""
    async with served(tmp_path) as (server, rig):
        case = Case(rig)
        quota = {"metadata": {"name": "none-left", "namespace": "default"}, "spec": {"hard": {"count/pods": "0"}}}
        server.store.create(QUOTA, quota)
        target = await case.started()
        assert (await case.adapter.read_log(target, 1, 0, 9)).why == ""
        await case.open(target)
        assert (await why(case, target, "FailedCreate")).endswith("is forbidden: exceeded quota: none-left")
        assert (await case.adapter.stop(target, await case.in_time())).answer is Answer.DONE
        assert (await case.adapter.read_log(target, 1, 0, 9)).why == ""


async def silent(*_: object) -> None:
    raise SchedulerUnavailable("it does not answer")


async def test_explain_says_why_a_job_does_not_begin(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, rig):
        server.node.missing.add("registry.example/test:1")
        store = MemoryStore()
        await Client(store, "ann").submit("job", rig.payload("line"), Plan(), scheduler="test")
        work = asyncio.ensure_future(Supervisor(store, rig.adapter).run("job"))
        async for _ in rig.patiently():
            told = await explain(store, rig.adapter, "job")
            if "ErrImagePull: " in told.why or "ImagePullBackOff: " in told.why:  # before that, an event may tell it
                break
        rig.adapter.lister.pods_of = silent  # type: ignore[assignment, method-assign]
        without = await explain(store, rig.adapter, "job")
        assert (without.why, without.record.key) == ("", "job")
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert "ErrImagePull: " in told.why or "ImagePullBackOff: " in told.why
        assert f"  it has not begun: {told.why}" in list(lines_of(told))


# --- progress


async def progress_of(case: Case, target: Target, after: datetime | None = None) -> datetime:
    """The time of its last progress, once there is one after that."""
    async for _ in case.rig.patiently():
        told = (await case.seen(target.id)).progress
        if told is not None and (after is None or told > after):
            return told
    raise AssertionError("no progress is told")


async def talker(rig: KubernetesRig, case: Case, pattern: str = "", watches: bool = False, script: str = "") -> Target:
    """A run that says a line when it is told to; or one that does what its script says."""
    says = (
        f"while :; do if [ -e {rig.folder}/say ]; then cat {rig.folder}/say; rm {rig.folder}/say; fi; sleep 0.05; done"
    )
    spec = Spec(command=("sh", "-c", script or f"echo begin; {says}"), options={"grace_seconds": 0})
    if pattern:
        spec = replace(spec, options={**spec.options, "progress_pattern": pattern})
    reply = await rig.adapter.start(replace(case.launch(spec), watches_progress=watches), {}, await case.in_time())
    target = Target(id=reply.text, name=case.launch(spec).name, run=1)
    await case.open(target)
    await case.until(target, State.RUNNING)
    return target


async def say(rig: KubernetesRig, line: str) -> None:
    (rig.folder / "new").write_text(f"{line}\n")
    (rig.folder / "new").rename(rig.folder / "say")
    while (rig.folder / "say").exists():
        await asyncio.sleep(0.02)


async def test_a_line_of_output_is_progress(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, rig):
        case = Case(rig)
        target = await talker(rig, case, watches=True)
        first = await progress_of(case, target)
        await say(rig, "another line")
        assert await progress_of(case, target, first) > first


async def test_only_lines_that_match_are_progress(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, rig):
        case = Case(rig)
        target = await talker(rig, case, pattern="^epoch [0-9]+")
        began = await progress_of(case, target)
        await asyncio.sleep(1.1)  # a pod's beginning is told in whole seconds
        await say(rig, "not an epoch 1")
        assert await progress_of(case, target) == began
        await say(rig, "epoch 1")
        matched = await progress_of(case, target, began)
        for number in range(300):
            with (rig.folder / "lines").open("a") as file:
                file.write(f"line {number}\n")
        (rig.folder / "lines").rename(rig.folder / "say")
        await asyncio.sleep(0.3)
        assert await progress_of(case, target) == matched


async def test_a_pattern_that_a_person_broke_hinders_no_listing(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, rig):
        case = Case(rig)
        target = await talker(rig, case, pattern="^epoch")
        await progress_of(case, target)
        broken = copied(server.get(JOB, target.name, "default"))
        broken["metadata"]["annotations"][PROGRESS] = "output ("
        server.store.update(JOB, broken)
        shown = await case.seen(target.id)
        assert (shown.state, shown.progress) == (State.RUNNING, None)


async def test_a_pattern_that_takes_for_ever_hinders_nobody(tmp_path: Path) -> None:
    """A match cannot be ended, and all jobs of a connection share one loop."""
    async with served(tmp_path) as (_, rig):
        slow, good = Case(rig), Case(rig)
        bad = await talker(rig, slow, pattern="(a+)+$", script=f"echo {'a' * 35}!; sleep 600")
        target = await talker(rig, good, pattern="^epoch")
        began = await progress_of(good, target)
        await asyncio.sleep(1.1)  # a pod's beginning is told in whole seconds
        await say(rig, "epoch 1")
        await progress_of(good, target, began)
        assert (await slow.seen(bad.id)).progress is None
        assert (await good.seen(target.id)).progress is not None


async def test_nobody_asks_for_the_logs_of_others(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, rig):
        case = Case(rig)
        target = await talker(rig, case)
        assert (await case.seen(target.id)).progress is None
        assert not [asked for asked in server.requests if asked.verb == "get" and asked.plural == "pods"]


async def test_the_pods_of_a_run_at_rest_are_not_listed_again(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, rig):
        case = Case(rig)
        target = await opened(case, rig.payload(case.line, waits=True))
        async for _ in rig.patiently():
            shown, listed = await case.seen(target.id), server.store.get(JOB, "default", target.name)
            if listed is not None and listed["status"].get("ready") == 1 and shown.nodes:
                break
        server.requests.clear()
        assert [await case.seen(target.id) for _ in range(3)] == 3 * [await case.seen(target.id)]
        assert {(asked.verb, asked.plural) for asked in server.requests} == {("list", "jobs")}
        await rig.go(case.line)
        assert (await case.until(target, State.ENDED)).end is not None
        assert ("list", "pods") in {(asked.verb, asked.plural) for asked in server.requests}


@pytest.mark.parametrize(("pattern", "told"), [("", "write a text"), ("a\tb", "write a text"), ("(", "no regular")])
def test_a_bad_pattern_is_refused(pattern: str, told: str) -> None:
    from dispatch_core.adapters.kubernetes import checking
    from dispatch_core.adapters.kubernetes.cluster import KubernetesCluster

    spec = Spec(command=("true",), options={"image": "i", "progress_pattern": pattern})
    ((path, text),) = checking.problems(spec, KubernetesCluster(name="c"))
    assert path == ("spec", "options", "progress_pattern")
    assert told in text
