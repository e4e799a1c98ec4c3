"""What stays behind: pods that end slowly, pods whose object is gone, and objects that nobody needs any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from dispatch_core.adapters.conformance.rig import Case
from dispatch_core.adapters.contract import Job
from dispatch_core.adapters.kubernetes import cleaning
from dispatch_core.adapters.kubernetes.kinds import SORTS
from dispatch_core.client import Client as Person
from dispatch_core.plan import Action, Cause, Plan, Rule, Secret, Spec, When
from dispatch_core.record import Record, Result, State
from dispatch_core.stores.memory import MemoryStore
from dispatch_core.supervisor import Supervisor
from tests.kubernetes.client import Client
from tests.kubernetes.quick import Quick
from tests.kubernetes.rig import KubernetesRig, World, served
from tests.kubernetes.server import ApiServer
from tests.kubernetes.server.controllers.programs import Played
from tests.kubernetes.server.kinds import CONFIG_MAP, JOB, POD, SECRET

RANKS = """
place=$1
if [ "$DISPATCH_SUBMISSION" = 2 ]; then echo "begin $JOB_COMPLETION_INDEX" >>$place/second; exit 0; fi
if [ "$JOB_COMPLETION_INDEX" = 1 ]; then while [ ! -e $place/fail ]; do sleep 0.05; done; exit 3; fi
trap 'echo told >>$place/told' TERM
touch $place/fail
while [ ! -e $place/go ]; do sleep 0.05; done
echo end >>$place/first
"""
"""Two ranks: the second fails, and the first takes as long to end as it is made to."""
STUBBORN = "trap '' TERM; echo begin >>$1/first; while [ ! -e $1/go ]; do sleep 0.05; done"


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.05)


def pods_alive(server: ApiServer) -> list[str]:
    rows = server.store.all(POD)
    return [pod["metadata"]["name"] for pod in rows if pod["status"].get("phase") not in ("Succeeded", "Failed")]


def spec(rig: KubernetesRig, script: str, **options: int) -> Spec:
    command = ("sh", "-c", script, "sh", str(rig.folder))
    return Spec(command=command, options={**rig.options, "grace_seconds": 60, **options})


@pytest.mark.case("T30")
@pytest.mark.promise("G8")
@pytest.mark.promise("G9")
async def test_the_next_gate_stays_shut_while_a_pod_of_the_run_before_is_terminating(tmp_path: Path) -> None:
    rule = Rule(name="again", when=When(cause=(Cause.EXIT,)), do=Action.RESUBMIT, budget=1)
    async with served(tmp_path) as (server, rig):
        store = MemoryStore()
        submitted = await Person(store, "ann").submit(
            "job", spec(rig, RANKS, nodes=2), Plan(rules=(rule,)), scheduler="test"
        )
        work = asyncio.ensure_future(Supervisor(store, rig.adapter).run("job", until_outcome=True))
        await until(lambda: (tmp_path / "told").exists() and len(server.store.all(JOB)) == 2)
        second = server.get(JOB, f"dispatch-{submitted.uid}-2-1", "default")
        for _ in range(10):
            await asyncio.sleep(0.2)
            second = server.get(JOB, second["metadata"]["name"], "default")
            assert (second["spec"]["suspend"], len(pods_alive(server))) == (True, 1)
        assert not (tmp_path / "second").exists()
        (tmp_path / "go").touch()
        record = await work
        assert (tmp_path / "first").exists()
        assert sorted((tmp_path / "second").read_text().split()) == ["0", "1", "begin", "begin"]
        assert record.outcome is not None
        assert record.outcome.result is Result.SUCCEEDED


@pytest.mark.case("T30")
@pytest.mark.promise("S1")
@pytest.mark.promise("C3")
@pytest.mark.parametrize("kind", ["Job", "JobSet", "TrainJob", "PyTorchJob"])
async def test_an_object_is_not_gone_while_its_pods_may_run(tmp_path: Path, kind: str) -> None:
    """A person deletes it in the background: it is gone at once, and its pod takes a minute to end."""
    async with served(tmp_path, World("w", kind)) as (server, rig), Client(server) as person:
        case, other = Case(rig), Case(rig)
        target, kept = await case.started(spec(rig, STUBBORN)), await other.started()
        await case.open(target)
        await until(lambda: (tmp_path / "first").exists())
        path = SORTS[kind].path(rig.cluster.namespace, target.name)
        await person.json("DELETE", path, {"propagationPolicy": "Background"})
        await until(
            lambda: (
                not server.store.objects[next(r for r in server.known if r.kind == kind)].get(("default", target.name))
            )
        )
        known = Job(key=case.job.key, uid=case.uid, known=(target.id,))
        for _ in range(5):
            listing = await rig.adapter.find(known)
            assert (listing.objects, listing.complete, len(pods_alive(server))) == ((), False, 1)
            assert (await rig.adapter.find(Job(key=other.job.key, uid=other.uid, known=(kept.id,)))).complete
        (tmp_path / "go").touch()
        await until(lambda: not pods_alive(server))
        assert (await rig.adapter.find(known)).complete


async def test_jobs_that_have_lost_their_objects_share_one_list_of_pods(tmp_path: Path) -> None:
    """One of its own for each took longer than a step may, so that none of them ever went on."""
    async with served(tmp_path) as (server, rig), Client(server) as person:
        case = Case(rig)
        target = await case.started(spec(rig, STUBBORN))
        await case.open(target)
        await until(lambda: (tmp_path / "first").exists())
        await person.json(
            "DELETE", SORTS["Job"].path(rig.cluster.namespace, target.name), {"propagationPolicy": "Background"}
        )
        await until(lambda: not server.store.all(JOB))
        lost = [Job(key=f"job-{number}", uid=f"{number:016x}", known=(f"gone-{number}",)) for number in range(50)]
        server.requests.clear()
        mine, *others = await asyncio.gather(
            rig.adapter.find(Job(key=case.job.key, uid=case.uid, known=(target.id,))),
            *(rig.adapter.find(job) for job in lost),
        )
        assert (mine.complete, {listing.complete for listing in others}) == (False, {True})
        assert [asked.plural for asked in server.requests if asked.verb == "list"] == ["jobs", "pods"]
        (tmp_path / "go").touch()


# --- causes, by what is really shown


async def ended(case: Case, server: ApiServer, target_spec: Spec, ends: dict[str, tuple[int, str]]) -> Cause:
    """The cause of a run whose ranks end as told: exit code and reason, by the rank."""
    target = await case.started(target_spec)
    await case.open(target)
    await case.until(target, State.RUNNING)
    await until(
        lambda: len([pod for pod in server.store.all(POD) if pod["status"].get("phase") == "Running"]) == len(ends)
    )
    for pod in server.store.all(POD):
        rank = (pod["metadata"].get("annotations") or {}).get("batch.kubernetes.io/job-completion-index", "0")
        server.node.end(pod["metadata"]["name"], *ends[rank], namespace="default")
    end = (await case.until(target, State.ENDED)).end
    assert end is not None
    return end.cause


@pytest.mark.case("T39")
@pytest.mark.parametrize(
    ("ends", "cause"),
    [
        ({"0": (137, "")}, Cause.SIGNAL),
        ({"0": (137, "OOMKilled")}, Cause.OUT_OF_MEMORY),
        ({"0": (0, "OOMKilled")}, Cause.OUT_OF_MEMORY),
        ({"0": (1, ""), "1": (1, ""), "2": (137, "OOMKilled")}, Cause.OUT_OF_MEMORY),
        ({"0": (0, ""), "1": (0, "")}, Cause.COMPLETED),
    ],
    ids=["137 alone", "137 with the reason", "the reason with 0", "one rank of three", "all well"],
)
async def test_memory_is_told_by_all_that_is_shown(
    tmp_path: Path, ends: dict[str, tuple[int, str]], cause: Cause
) -> None:
    async with served(tmp_path) as (server, rig):
        server.node.programs["registry.example/test:1"] = Played
        assert await ended(Case(rig), server, spec(rig, "", nodes=len(ends)), ends) is cause


# --- what nobody needs any more


async def settle(rig: KubernetesRig, store: MemoryStore, key: str, payload: Spec) -> Record:
    await Person(store, "ann").submit(key, payload, Plan(), scheduler="test")

    async def token(_: Secret) -> str:
        return "bait"

    adapter = Quick(rig.cluster)
    try:
        return await Supervisor(store, adapter, secrets=token).run(key)
    finally:
        await adapter.close()


@pytest.mark.promise("S2")
async def test_a_settled_job_leaves_its_ended_object_and_neither_owner_nor_secret(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, rig):
        payload = msgspec.structs.replace(
            rig.payload("line"), secret_environment={"TOKEN": Secret(source="variable", name="token")}
        )
        seen: list[int] = []
        server.store.listeners.append(lambda change: seen.append(1) if change.resource is SECRET else None)
        record = await settle(rig, MemoryStore(), "job", payload)
        assert record.settled
        assert seen
        await until(lambda: not server.store.all(CONFIG_MAP))
        assert server.store.all(SECRET) == []
        (job,) = server.store.all(JOB)
        await until(lambda: "ownerReferences" not in server.store.all(JOB)[0]["metadata"])
        assert job["metadata"]["name"] == record.names()[0]


async def test_what_ended_long_ago_is_deleted_once_its_job_is_settled(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, rig):
        store, case = MemoryStore(), Case(rig)
        await settle(rig, store, "settled", rig.payload("line"))
        running, over, stopped = await case.running(), await case.started(attempt=2), await case.started(attempt=3)
        await case.open(over)
        await rig.adapter.stop(stopped, await case.in_time())
        for target in (over, stopped):
            await case.until(target, State.ENDED)
        await until(lambda: not server.store.all(CONFIG_MAP)[1:])
        assert len(server.store.all(JOB)) == 4

        async def clean(age: float) -> set[str]:
            now = (await case.find()).began + timedelta(days=10)
            await cleaning.clean(rig.adapter.api, "default", rig.adapter.lister.ended, now, 864_000 + age)
            return {job["metadata"]["name"] for job in server.store.all(JOB)}

        assert len(await clean(60.0)) == 4
        assert await clean(-60.0) == {running.name, over.name, stopped.name}
        await rig.adapter.settled(case.uid, ())  # as once its record is settled
        await until(lambda: all("ownerReferences" not in job["metadata"] for job in server.store.all(JOB)))
        assert await clean(-60.0) == {running.name}
        await until(lambda: len(server.store.all(POD)) == 1)
        rig.adapter.cluster = msgspec.structs.replace(rig.cluster, keep_seconds=-60.0)
        await rig.adapter.everything()
        assert len(server.store.all(JOB)) == 1
        await rig.go(case.line)
        await case.until(running, State.ENDED)
        assert len(server.store.all(JOB)) == 1  # a listing cleans now and then, and the first has done so
        rig.adapter._cleaned = None
        await rig.adapter.everything()
        assert server.store.all(JOB) == []
