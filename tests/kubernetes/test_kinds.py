"""JobSet, TrainJob and PyTorchJob on the test server: built after their published schemas, since none was recorded."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from tests.kubernetes.client import Client
from tests.kubernetes.server import ApiServer
from tests.kubernetes.server.controllers.loop import condition, is_true
from tests.kubernetes.server.kinds import JOB, JOBSET, POD, PYTORCHJOB, TRAINJOB, Resource


def template(script: str) -> dict[str, Any]:
    container = {"name": "main", "image": "any:1", "command": ["sh", "-c", script]}
    return {"spec": {"restartPolicy": "Never", "containers": [container]}}


def jobset(script: str) -> dict[str, Any]:
    row = {"name": "w", "replicas": 2, "template": {"spec": {"backoffLimit": 0, "template": template(script)}}}
    return {"suspend": True, "replicatedJobs": [row]}


def trainjob(script: str) -> dict[str, Any]:
    trainer = {"image": "any:1", "command": ["sh", "-c", script], "numNodes": 2}
    return {"suspend": True, "runtimeRef": {"name": "torch"}, "trainer": trainer}


def pytorchjob(script: str) -> dict[str, Any]:
    rows = {kind: {"replicas": 1, "template": template(script)} for kind in ("Master", "Worker")}
    return {"runPolicy": {"suspend": True}, "pytorchReplicaSpecs": rows}


KINDS = [
    (JOBSET, jobset, ["spec", "suspend"], "Completed"),
    (TRAINJOB, trainjob, ["spec", "suspend"], "Complete"),
    (PYTORCHJOB, pytorchjob, ["spec", "runPolicy", "suspend"], "Succeeded"),
]


@pytest.mark.parametrize("script", ["exit 0", "exit 3"])
@pytest.mark.parametrize(("resource", "spec", "switch", "good"), KINDS, ids=lambda value: getattr(value, "kind", ""))
async def test_suspended_until_opened(resource: Resource, spec: Any, switch: list[str], good: str, script: str) -> None:
    async with ApiServer(install=(JOBSET, TRAINJOB, PYTORCHJOB)) as server, Client(server) as client:
        path = f"/apis/{resource.api_version}/namespaces/team-a/{resource.plural}"
        await client.json("POST", path, {"metadata": {"name": "j"}, "spec": spec(script)})
        await asyncio.sleep(0.2)
        assert server.store.all(POD) == []
        assert is_true(server.get(resource, "j"), "Suspended")
        change = {"op": "replace", "path": "/" + "/".join(switch), "value": False}
        await client.json("PATCH", f"{path}/j", [change])
        end = good if script == "exit 0" else "Failed"
        for _ in range(100):
            if is_true(server.get(resource, "j"), end):
                break
            await asyncio.sleep(0.05)
        found = server.get(resource, "j")
        assert is_true(found, end)
        assert condition(found["status"]["conditions"], "Suspended")["status"] == "False"  # type: ignore[index]
        await client.json("DELETE", f"{path}/j", {"propagationPolicy": "Foreground"})
        for _ in range(100):
            if not server.store.objects[resource]:
                break
            await asyncio.sleep(0.05)
        assert (server.store.all(resource), server.store.all(JOB), server.store.all(POD)) == ([], [], [])


async def test_faults() -> None:
    """A lost reply has its effect, a lost call has none, a late one has it later, and each hits as often as it says."""
    async with ApiServer() as server, Client(server) as client:
        path = "/apis/batch/v1/namespaces/team-a/jobs"
        spec = {"suspend": True, "template": template("exit 0")}
        names = {"reply": server.faults.lose_reply, "call": server.faults.lose_call}
        for name, fault in names.items():
            fault("create", "jobs", name)
            with pytest.raises(aiohttp.ServerDisconnectedError):
                await client.call("POST", path, {"metadata": {"name": name}, "spec": spec})
        server.faults.carry_out_late("create", "jobs", "late", seconds=0.2)
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await client.call("POST", path, {"metadata": {"name": "late"}, "spec": spec})
        there = [job["metadata"]["name"] for job in server.store.all(JOB)]
        await asyncio.sleep(0.4)
        assert there == ["reply"]
        assert [job["metadata"]["name"] for job in server.store.all(JOB)] == ["late", "reply"]
        assert [fault.hit for fault in server.faults.waiting] == [1, 1, 1]
        server.faults.answer(429, "list", retry_after=1)
        assert [(await client.call("GET", path))[0] for _ in range(2)] == [429, 200]
