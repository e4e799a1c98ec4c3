"""The policies that an administrator can apply: the server itself keeps gate and deadline, whoever asks.

The server of the tests evaluates their expressions; that a real one compiles and enforces such expressions was recorded
(tests/captures/kubernetes/policy-*.json).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dispatch_core.adapters.conformance.rig import Case
from dispatch_core.adapters.kubernetes import policies
from dispatch_core.adapters.kubernetes.doctor import examine
from dispatch_core.adapters.kubernetes.kinds import DEADLINE, FENCE, GATE, HOLD, MANAGER, SORTS, STOPPED, UID
from dispatch_core.adapters.kubernetes.patches import pointer
from dispatch_core.adapters.kubernetes.scheduler import KubernetesScheduler
from dispatch_core.record import Answer, State
from tests.kubernetes.client import Client
from tests.kubernetes.rig import KubernetesRig, World, served
from tests.kubernetes.server import ApiServer
from tests.kubernetes.server.kinds import BINDING, POLICY
from tests.kubernetes.server.patching import JSON_PATCH


@contextlib.asynccontextmanager
async def guarded(folder: Path, kind: str = "Job") -> AsyncIterator[tuple[ApiServer, KubernetesRig, Case, Client]]:
    """A cluster with both policies, a connection, a job, and a person who may change everything."""
    world = World("guarded", kind, policies=True)
    async with served(folder, world) as (server, rig), Client(server) as person:
        case = Case(rig)
        await case.find()
        yield server, rig, case, person


def tag(name: str, value: str | None) -> dict[str, Any]:
    return {"metadata": {"annotations": {name: value}}}


@pytest.mark.promise("G1")
@pytest.mark.promise("P1")
@pytest.mark.parametrize("kind", ["Job", "JobSet", "TrainJob", "PyTorchJob"])
async def test_nobody_unsuspends_a_gated_object_in_one_step_or_in_two(tmp_path: Path, kind: str) -> None:
    async with guarded(tmp_path, kind) as (_, rig, case, person):
        target = await case.started()
        path = SORTS[kind].path(rig.cluster.namespace, target.name)
        running: dict[str, Any] = {"suspend": False}
        for name in reversed(SORTS[kind].suspend[:-1]):
            running = {name: running}
        steps = [
            (running, policies.SHUT_MESSAGE),
            ({"metadata": {"labels": {UID: None}}}, policies.TAGS_MESSAGE),
            ({"metadata": {"labels": {UID: "another"}}}, policies.TAGS_MESSAGE),
            *((tag(name, value), policies.TAGS_MESSAGE) for name, value in ((GATE, "open"), (HOLD, "x"))),
            *((tag(name, None), policies.TAGS_MESSAGE) for name in (GATE, HOLD, STOPPED)),
        ]
        for change, told in steps:
            status, answer = await person.call("PATCH", path, change)
            assert (status, told in answer["message"]) == (422, True), (change, answer)
        await case.stays(target, State.GATED)
        await case.open(target)
        await case.until(target, State.ENDED)
        await case.ran(1)


@pytest.mark.promise("G2")
@pytest.mark.promise("G7")
async def test_nobody_unsuspends_what_is_held_or_stopped(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (_, rig, case, person):
        held, stopped = await case.started(attempt=1), await case.started(attempt=2)
        await case.adapter.hold(held, await case.in_time())
        for target in (held, stopped):
            await case.open(target) if target is held else await case.adapter.stop(target, await case.in_time())
            path = SORTS["Job"].path(rig.cluster.namespace, target.name)
            status, answer = await person.call("PATCH", path, {"spec": {"suspend": False}})
            assert (status, policies.SHUT_MESSAGE in answer["message"]) == (422, True)
        status, answer = await person.call("PATCH", path, {"metadata": {"annotations": {STOPPED: "no", FENCE: "99"}}})
        assert (status, policies.TAGS_MESSAGE in answer["message"]) == (422, True)
        await case.stays(held, State.HELD)
        assert await case.runs() == 0


@pytest.mark.promise("P1")
async def test_a_create_that_would_run_at_once_is_refused(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (_, rig, case, person):
        path = SORTS["Job"].path(rig.cluster.namespace)
        body = policies.probe_body("by-hand", {}, {UID: case.uid}, suspend=False)
        status, answer = await person.call("POST", path, body)
        assert (status, policies.SHUT_MESSAGE in answer["message"]) == (422, True)
        others = policies.probe_body("somebody-elses", {}, {}, suspend=False)
        assert (await person.call("POST", path, others))[0] == 201


@pytest.mark.promise("L1")
@pytest.mark.promise("L2")
async def test_the_server_refuses_what_a_proxy_kept_beyond_its_deadline(tmp_path: Path) -> None:
    """The same request as dispatch's own, sent by hand after its deadline."""
    async with guarded(tmp_path) as (_, rig, case, person):
        target = await case.started()
        job = await person.json("GET", SORTS["Job"].path(rig.cluster.namespace, target.name))
        past = (await case.in_time()) - timedelta(seconds=600)
        told = rig.adapter.calls.told(past)
        opens = [
            {"op": "test", "path": pointer("metadata", "uid"), "value": job["metadata"]["uid"]},
            {"op": "add", "path": pointer("metadata", "annotations", FENCE), "value": "2"},
            {"op": "add", "path": pointer("metadata", "annotations", DEADLINE), "value": told},
            {"op": "add", "path": pointer("metadata", "annotations", GATE), "value": "open"},
            {"op": "add", "path": pointer("spec", "suspend"), "value": False},
        ]
        query = {"timeout": "5s", "fieldManager": MANAGER}
        path = SORTS["Job"].path(rig.cluster.namespace, target.name)
        answered = await rig.adapter.api.request("PATCH", path, query, opens, seconds=5.0, content=JSON_PATCH)
        assert (answered.status, policies.LATE_MESSAGE in answered.message) == (422, True)
        late = policies.probe_body("late", {DEADLINE: told}, {UID: case.uid}, suspend=True)
        answered = await rig.adapter.api.request(
            "POST", SORTS["Job"].path(rig.cluster.namespace), query, late, seconds=5.0
        )
        assert (answered.status, policies.LATE_MESSAGE in answered.message) == (422, True)
        await case.stays(target, State.GATED)
        assert (await case.adapter.stop(target, await case.in_time())).answer is Answer.DONE


@pytest.mark.promise("L2")
async def test_the_bound_that_is_declared_is_the_one_that_was_shown(tmp_path: Path) -> None:
    """A proxy that keeps what it took counts only where the server itself does not refuse what is late."""
    async with guarded(tmp_path) as (_, rig, _, person):
        cluster = replace(rig.cluster, proxy_seconds=30.0)
        adapter = KubernetesScheduler(cluster)
        try:
            await adapter.probe()
            found = {finding.name: finding.ok async for finding in examine(cluster)}
            assert (found["deadlines"], found["gate"], adapter.bounds.landing_seconds) == (True, True, 12.0)
            for name in (policies.DEADLINE_POLICY, policies.GATE_POLICY):
                await person.json("DELETE", f"/apis/{policies.ADMISSION}/{BINDING.plural}/{name}")
            await adapter.probe()
            found = {finding.name: finding.ok async for finding in examine(cluster)}
            assert (found["deadlines"], found["gate"], adapter.bounds.landing_seconds) == (None, None, 40.0)
        finally:
            await adapter.close()


@pytest.mark.promise("L2")
@pytest.mark.parametrize("kind", ["JobSet", "TrainJob", "PyTorchJob"])
async def test_a_policy_that_does_not_know_every_kind_bounds_no_call(tmp_path: Path, kind: str) -> None:
    """It was applied when the cluster had fewer kinds."""
    async with served(tmp_path, World("w", kind)) as (server, rig), Client(server) as person:
        for kinds, refuses in (("Job",), False), (rig.cluster.kinds, True):
            for told in policies.policies(replace(rig.cluster, kinds=kinds)):
                resource = POLICY if told["kind"] == POLICY.kind else BINDING
                path = f"/apis/{resource.api_version}/{resource.plural}"
                await person.call("DELETE", f"{path}/{told['metadata']['name']}")
                await person.json("POST", path, told)
            await rig.adapter.probe()
            assert rig.adapter.refuses_late is refuses
