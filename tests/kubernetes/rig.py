"""A connection to the test API server, or to a real cluster, and payloads whose doings can be read from here."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml
from certifi import where

from dispatch_core.adapters.conformance import Rig
from dispatch_core.adapters.kubernetes import policies
from dispatch_core.adapters.kubernetes.cluster import KubernetesCluster
from dispatch_core.adapters.kubernetes.scheduler import KubernetesScheduler
from dispatch_core.plan import Spec
from tests.adapters.local import PAYLOAD, RECITAL, read
from tests.kubernetes.client import Client
from tests.kubernetes.server import ADMIN_TOKEN, ApiServer
from tests.kubernetes.server.kinds import BINDING, JOBSET, POLICY, PYTORCHJOB, TRAINJOB

contents = cache(lambda path: Path(path).read_text())


def kubeconfig(url: str, folder: Path, token: str = ADMIN_TOKEN) -> Path:
    """A kubeconfig for a server without TLS. Its one authority is for no server: to read all that this machine trusts
    takes longer than most tests here."""
    authority = folder / "authority.pem"
    authority.write_text(re.search(r"-----BEGIN.*?-----END CERTIFICATE-----", contents(where()), re.S)[0] + "\n")  # type: ignore[index]
    told = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority": str(authority)}}],
        "users": [{"name": "test", "user": {"token": token}}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(told))
    return path


ROLE_TOKEN = "of-the-role"


class World(NamedTuple):
    """A cluster of the tests."""

    name: str
    kind: str = "Job"
    """What payloads run in."""
    kueue: bool = False
    admission_gates: bool = True
    policies: bool = False
    """Whether an administrator has applied what `dispatch doctor --policies` prints."""
    controllers: bool = True
    takes: str = ""
    """What a Kueue, of which the cluster's owner says nothing, does with jobs that name no queue."""

    def server(self) -> ApiServer:
        kinds = (JOBSET, TRAINJOB, PYTORCHJOB)
        return ApiServer(
            install=kinds,
            kueue=self.kueue or bool(self.takes),
            admission_gates=self.admission_gates,
            controllers=self.controllers,
            takes=self.takes,
        )

    def cluster(self, url: str, folder: Path) -> KubernetesCluster:
        return KubernetesCluster(
            name="test",
            kubeconfig=str(kubeconfig(url, folder, ROLE_TOKEN)),
            kinds=tuple(dict.fromkeys(("Job", self.kind))),
            kueue=self.kueue,
            queue="training" if self.kueue else None,
            held_queue=None if self.admission_gates else "parked",
            image="registry.example/test:1",
            poll_seconds=0.02,
            absence_seconds=5.0,
            proxy_seconds=0.0,
        )


PLAIN = World("jobs")
WORLDS = (
    PLAIN,
    World("jobs under Kueue", kueue=True),
    World("jobs in a held queue", kueue=True, admission_gates=False),
    World("JobSets", "JobSet"),
    World("TrainJobs with policies", "TrainJob", policies=True),
    World("PyTorchJobs", "PyTorchJob"),
)
MORE_WORLDS = (
    World("jobs with policies", policies=True),
    World("JobSets under Kueue with policies", "JobSet", kueue=True, policies=True),
    World("PyTorchJobs under Kueue with policies", "PyTorchJob", kueue=True, policies=True),
    World("TrainJobs under Kueue", "TrainJob", kueue=True),
)


class KubernetesRig(Rig):
    """One connection; what payloads write is on this machine, where the test server runs them."""

    quiet_seconds = 0.4

    def __init__(self, url: str, folder: Path, world: World = PLAIN) -> None:
        self.folder, self.world = folder, world
        self.cluster = world.cluster(url, folder)
        self.adapter: KubernetesScheduler = KubernetesScheduler(self.cluster)
        self.options: dict[str, str | int | float | bool | tuple[str, ...]] = {"grace_seconds": 1}
        if world.kind != "Job":
            self.options["kind"] = world.kind
        if world.kind == "TrainJob":
            self.options = {"kind": world.kind, "runtime": "torch"}

    def payload(self, line: str, *, waits: bool = False, exit_code: int = 0, signal: int = 0) -> Spec:
        go = str(self.folder / f"go-{line}") if waits else ""
        return Spec(
            command=("sh", "-c", PAYLOAD, "sh", line, str(self.folder / "lines"), go, str(exit_code), str(signal)),
            options=self.options,
        )

    async def go(self, line: str) -> None:
        (self.folder / f"go-{line}").touch()

    async def lines(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "lines").read_text().splitlines()
        return []

    def recital(self, place: str, arguments: tuple[str, ...], names: tuple[str, ...]) -> Spec:
        told = (str(self.folder / f"recital-{place}"), json.dumps(names))
        return Spec(command=("/usr/bin/python3", "-I", "-S", "-c", RECITAL, *told, *arguments), options=self.options)

    async def recited(self, place: str) -> tuple[list[str], dict[str, str | None]] | None:
        with contextlib.suppress(FileNotFoundError):
            arguments, variables = json.loads((self.folder / f"recital-{place}").read_text())
            return arguments, variables
        return None

    async def leaks(self, secret: str) -> list[str]:
        places = [f"/proc/{pid}/cmdline" for pid in filter(str.isdecimal, os.listdir("/proc"))]
        return [place for place in places if secret.encode() in read(place)]

    def listings(self) -> int:
        return self.adapter.listings


@contextlib.asynccontextmanager
async def kubernetes_rig(folder: Path, world: World = PLAIN) -> AsyncIterator[KubernetesRig]:
    async with served(folder, world) as (_, rig):
        yield rig


@contextlib.asynccontextmanager
async def served(folder: Path, world: World = PLAIN) -> AsyncIterator[tuple[ApiServer, KubernetesRig]]:
    """A server, as the world has it, and a connection to it that may do what the printed Role allows, and no more."""
    async with world.server() as server:
        rig = KubernetesRig(server.url, folder, world)
        (role,) = [each for each in policies.roles(rig.cluster) if each["kind"] == "Role"]
        server.access.add(ROLE_TOKEN, "dispatch", role["rules"], [rig.cluster.namespace])
        if world.policies:
            async with Client(server) as client:
                for told in policies.policies(rig.cluster):
                    resource = POLICY if told["kind"] == POLICY.kind else BINDING
                    await client.json("POST", f"/apis/{resource.api_version}/{resource.plural}", told)
        try:
            yield server, rig
        finally:
            await rig.adapter.close()
