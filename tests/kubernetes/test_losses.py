"""What is lost on the way, at each point of a launch, under a supervisor: one object opened, one run, nothing left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from dispatch_core.client import Client as Person
from dispatch_core.plan import Plan, Secret
from dispatch_core.record import Record, Result
from dispatch_core.stores.memory import MemoryStore
from dispatch_core.supervisor import Supervisor
from tests.kubernetes.quick import Quick
from tests.kubernetes.rig import KubernetesRig, served
from tests.kubernetes.server import ApiServer, Fault, Faults
from tests.kubernetes.server.kinds import CONFIG_MAP, JOB, POD, SECRET

Lose = Callable[[Faults, str, str], Fault]
LOSSES: dict[str, Lose] = {
    "the reply": lambda faults, verb, plural: faults.lose_reply(verb, plural),
    "the call": lambda faults, verb, plural: faults.lose_call(verb, plural),
    "the reply, and it lands late": lambda faults, verb, plural: faults.carry_out_late(verb, plural, seconds=1.5),
    "both, by an error of the server": lambda faults, verb, plural: faults.answer(500, verb, plural),
    "the reply, by an error of the server": lambda faults, verb, plural: faults.answer(500, verb, plural, carried=True),
}
POINTS = (("create", "configmaps"), ("create", "secrets"), ("create", "jobs"), ("patch", "jobs"))


async def token(_: Secret) -> str:
    return "bait"


async def run(rig: KubernetesRig) -> Record:
    store, payload = MemoryStore(), rig.payload("line")
    payload = msgspec.structs.replace(payload, secret_environment={"TOKEN": Secret(source="variable", name="token")})
    await Person(store, "ann").submit("job", payload, Plan(), scheduler="test")
    adapter = Quick(rig.cluster)
    try:
        async with asyncio.timeout(90):
            return await Supervisor(store, adapter, secrets=token).run("job")
    finally:
        await adapter.close()


async def launched(folder: Path, verb: str, plural: str, lose: Lose) -> tuple[str, ...]:
    """What is wrong with a launch that loses something there; nothing, it is hoped."""
    async with served(folder) as (server, rig):
        opened: set[str] = set()
        server.store.listeners.append(
            lambda change: (
                opened.add(change.at["metadata"]["name"])
                if change.resource is JOB and change.after is not None and not change.after["spec"]["suspend"]
                else None
            )
        )
        fault = lose(server.faults, verb, plural)
        record = await run(rig)
        lines = await rig.lines()
        for _ in range(100):
            if not (server.store.all(CONFIG_MAP) or server.store.all(SECRET)):
                break
            await asyncio.sleep(0.05)
        return tuple(
            text
            for text, holds in {
                "the fault never hit": fault.hit == 1,
                f"the job is {record.outcome}": record.outcome is not None
                and record.outcome.result is Result.SUCCEEDED,
                f"it ran {len(lines)} times": len(lines) == 1,
                f"{len(opened)} objects were opened": len(opened) == 1,
                "an owner is left": not server.store.all(CONFIG_MAP),
                "a secret is left": not server.store.all(SECRET),
                "something is left that may run": not alive(server),
            }.items()
            if not holds
        )


def alive(server: ApiServer) -> list[str]:
    rows = server.store.all(JOB)
    jobs = [job["metadata"]["name"] for job in rows if not job["spec"]["suspend"] and not over(job)]
    pods = server.store.all(POD)
    return jobs + [pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") in ("Pending", "Running")]


def over(job: dict[str, object]) -> bool:
    status = job.get("status") or {}
    rows = status.get("conditions") if isinstance(status, dict) else ()
    return any(row["type"] in ("Complete", "Failed") and row["status"] == "True" for row in rows or ())


@pytest.mark.case("T1")
@pytest.mark.case("T6")
@pytest.mark.promise("P1")
@pytest.mark.promise("P3")
@pytest.mark.promise("G5")
@pytest.mark.promise("S1")
async def test_whatever_is_lost_of_a_launch_one_object_is_opened_and_nothing_is_left(tmp_path: Path) -> None:
    worlds = [(verb, plural, how) for verb, plural in POINTS for how in LOSSES]
    folders = [tmp_path / str(number) for number, _ in enumerate(worlds)]
    for folder in folders:
        folder.mkdir()
    works = (launched(at, *world[:2], LOSSES[world[2]]) for at, world in zip(folders, worlds, strict=True))
    found = await asyncio.gather(*works)
    assert {world: wrong for world, wrong in zip(worlds, found, strict=True) if wrong} == {}
