"""The controllers of the test server: Jobs live here as they were recorded to live on a real cluster."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.kubernetes.captured import capture
from tests.kubernetes.client import Client
from tests.kubernetes.lives import KUEUE_LIVES, LIVES, step, steps, workload_step
from tests.kubernetes.server import ApiServer
from tests.kubernetes.server.controllers.kueue import GATE, QUEUE
from tests.kubernetes.server.controllers.programs import Played
from tests.kubernetes.server.kinds import CLUSTER_QUEUE, JOB, POD, PRIORITY_CLASS, WORKLOAD

JOBS = "/apis/batch/v1/namespaces/team-a/jobs"
WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/namespaces/team-a/workloads"
IMAGE = "registry.example/team-a/trainer:2.1"


class SlowToEnd(Played):
    """Takes a moment to end when it is told to."""

    def stop(self, *, hard: bool) -> None:
        asyncio.get_running_loop().call_later(0.06, lambda: Played.stop(self, hard=hard))


class Stage:
    """A server, a client, and what a test does with Jobs."""

    def __init__(self, server: ApiServer, client: Client) -> None:
        self.server = server
        self.client = client
        server.node.programs[IMAGE] = SlowToEnd
        self.start = server.store.revision

    async def create(self, name: str, **spec: Any) -> None:
        body = copy.deepcopy(capture("basic-05-create-suspended").body)
        body["metadata"] = {"name": name} | {key: spec.pop(key, {}) for key in ("labels", "annotations")}
        body["spec"] |= spec
        await self.client.json("POST", JOBS, body)
        await self.pause()

    async def patch(self, name: str, change: Any, path: str = JOBS) -> None:
        await self.client.json("PATCH", f"{path}/{name}", change)
        await self.pause()

    async def open(self, name: str) -> None:
        await self.patch(name, {"spec": {"suspend": False}})

    async def ungate(self, name: str) -> None:
        await self.patch(name, {"metadata": {"annotations": {GATE: None}}})

    async def active(self, value: bool) -> None:
        (workload,) = self.server.store.all(WORKLOAD)
        await self.patch(workload["metadata"]["name"], {"spec": {"active": value}}, WORKLOADS)
        await self.pause()

    async def pause(self, seconds: float = 0.15) -> None:
        await asyncio.sleep(seconds)

    async def end(self, exit_code: int = 0) -> None:
        """End the first pod that runs."""
        found = self.server.store.all(POD)
        name = next(pod["metadata"]["name"] for pod in found if pod["status"]["phase"] == "Running")
        self.server.node.end(name, exit_code)
        await self.pause()

    async def shown(self, path: str = JOBS) -> list[Any]:
        return await self.client.lines(f"{path}?watch=1&resourceVersion={self.start}&timeoutSeconds=0.1")


async def complete(stage: Stage) -> None:
    await stage.create("j")
    await stage.open("j")
    await stage.end()
    await stage.patch("j", {"spec": {"suspend": True}})


async def failed(stage: Stage) -> None:
    await stage.create("j")
    await stage.open("j")
    await stage.end(3)


async def pair(stage: Stage) -> None:
    await stage.create("j", parallelism=2, completions=2)
    await stage.open("j")
    await stage.end(1)


async def success_policy(stage: Stage) -> None:
    policy = {"rules": [{"succeededIndexes": "0"}]}
    await stage.create("j", parallelism=2, completions=2, completionMode="Indexed", successPolicy=policy)
    await stage.open("j")
    await stage.end(0)


async def failure_policy(stage: Stage) -> None:
    rule = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}
    await stage.create("j", backoffLimit=3, podFailurePolicy={"rules": [rule]})
    await stage.open("j")
    await stage.end(42)


async def backoff(stage: Stage) -> None:
    await stage.create("j", backoffLimit=1)
    await stage.open("j")
    await stage.end(1)
    await stage.end(1)


async def deadline(stage: Stage) -> None:
    await stage.create("j", activeDeadlineSeconds=1)
    await stage.open("j")
    await stage.pause(1.2)


async def hold(stage: Stage) -> None:
    await stage.create("j")
    await stage.open("j")
    await stage.patch("j", {"spec": {"suspend": True}})
    await stage.open("j")
    await stage.end()


async def expiring(stage: Stage) -> None:
    await stage.create("j", ttlSecondsAfterFinished=1)
    await stage.open("j")
    stage.start = stage.server.store.revision
    await stage.end()
    await stage.pause(1.2)


PLAYED: dict[str, Callable[[Stage], Awaitable[None]]] = dict(
    zip(LIVES, (complete, failed, pair, success_policy, failure_policy, backoff, deadline, hold, expiring), strict=True)
)


@pytest.mark.parametrize("case", LIVES)
async def test_life_of_a_job(case: str) -> None:
    """Each recorded life of a Job, played again: the same steps in the same order."""
    async with ApiServer() as server, Client(server) as client:
        stage = Stage(server, client)
        await PLAYED[case](stage)
        shown = steps(await stage.shown(), step)
    recorded = steps(capture(case).events, step)
    if case == "life-24-successcriteria-watch-job":
        assert [one for one in shown if one in recorded] == recorded  # there the first count came a step sooner
    else:
        assert shown == recorded


GATED = {"labels": {QUEUE: "training"}, "annotations": {GATE: "dispatch.example/gate"}}


async def gated(stage: Stage) -> None:
    await stage.create("j", **copy.deepcopy(GATED))
    await stage.open("j")
    await stage.ungate("j")
    await stage.patch("j", {"spec": {"suspend": True}})
    await stage.end()


async def held(stage: Stage) -> None:
    await stage.create("j", **copy.deepcopy(GATED))
    await stage.active(False)
    await stage.ungate("j")
    await stage.active(True)
    await stage.active(False)
    await stage.active(True)
    await stage.end(3)


async def preempted(stage: Stage) -> None:
    for name, value in (("low", 0), ("high", 100)):
        stage.server.store.create(PRIORITY_CLASS, {"metadata": {"name": name}, "value": value})
    queue = copy.deepcopy(stage.server.get(CLUSTER_QUEUE, "team-a-quota"))
    queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = "0.5"
    stage.server.store.update(CLUSTER_QUEUE, queue)
    for name in ("low", "high"):
        await stage.create(name, labels={QUEUE: "training", "kueue.x-k8s.io/priority-class": name})
        await stage.pause()
    await stage.end()
    await stage.end()


async def parked(stage: Stage) -> None:
    await stage.create("j", labels={QUEUE: "parked"})
    await stage.patch("j", {"metadata": {"labels": {QUEUE: "training"}}})
    await stage.end()


KUEUE_PLAYED = dict(zip(KUEUE_LIVES, (gated, held, preempted, parked), strict=True))


def told(events: Any) -> list[list[Any]]:
    """The steps of each Workload, in the order in which they came."""
    names = dict.fromkeys(event["object"]["metadata"]["name"] for event in events)
    of = [[event for event in events if event["object"]["metadata"]["name"] == name] for name in names]
    return [[one for one in steps(each, workload_step) if one[1]] for each in of]


@pytest.mark.parametrize("case", KUEUE_LIVES)
async def test_life_under_kueue(case: str) -> None:
    """Each recorded life under Kueue, played again: the same steps in the same order."""
    async with ApiServer(kueue=True) as server, Client(server) as client:
        stage = Stage(server, client)
        await KUEUE_PLAYED[case](stage)
        shown = told(await stage.shown(WORKLOADS))
    recorded = told(capture(case).events)
    if case == "kueue-51-hold-watch-workload":  # two of its controllers disputed the reason there, some forty times
        shown, recorded = [list(dict.fromkeys(each)) for each in shown], [list(dict.fromkeys(recorded[0]))]
    assert shown == recorded


async def test_foreign_unsuspend() -> None:
    """kueue-29-gated-watch-job, kueue-24-suspend-overruled: Kueue puts suspend back, in both directions."""
    async with ApiServer(kueue=True) as server, Client(server) as client:
        stage = Stage(server, client)
        await stage.create("j", **copy.deepcopy(GATED))
        await stage.open("j")
        assert server.get(JOB, "j")["spec"]["suspend"]
        await stage.ungate("j")
        before = [pod["metadata"]["name"] for pod in server.store.all(POD)]
        await stage.patch("j", {"spec": {"suspend": True}})
        await stage.pause()
        assert not server.get(JOB, "j")["spec"]["suspend"]
        assert server.get(JOB, "j")["status"]["active"] == 1
        assert [pod["metadata"]["name"] for pod in server.store.all(POD)] != before
        (workload,) = server.store.all(WORKLOAD)
        assert "schedulingStats" not in workload["status"]


async def test_what_kueue_refuses() -> None:
    """kueue-48-queue-change-running, kueue-69-gate-after-creation: 403 in the webhook's words."""
    async with ApiServer(kueue=True) as server, Client(server) as client:
        stage = Stage(server, client)
        await stage.create("running", labels={QUEUE: "training"})
        changes = (
            ("kueue-48-queue-change-running", {"labels": {QUEUE: "parked"}}),
            ("kueue-69-gate-after-creation", {"annotations": {GATE: "dispatch.example/gate"}}),
        )
        for case, change in changes:
            status, answer = await client.call("PATCH", f"{JOBS}/running", {"metadata": change})
            assert (status, answer) == (capture(case).status, capture(case).answer)


async def test_gate_policy_under_kueue() -> None:
    """kueue-81-policy-foreign-unsuspend: with the policy in place nobody unsuspends what Kueue's gate holds."""
    async with ApiServer(kueue=True) as server, Client(server) as client:
        for case in ("kueue-79-policy-gate-create", "kueue-80-policy-gate-binding"):
            await client.json("POST", capture(case).path, capture(case).body)
        recorded = capture("kueue-81-policy-foreign-unsuspend")
        name = recorded.answer["details"]["name"]
        labels = GATED["labels"] | {"dispatch.example/job": "gated"}
        await Stage(server, client).create(name, labels=labels, annotations=dict(GATED["annotations"]))
        status, answer = await client.call("PATCH", f"{JOBS}/{name}", {"spec": {"suspend": False}})
    assert (status, answer) == (422, recorded.answer)
