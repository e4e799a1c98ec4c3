"""A connection to the test API server, or to a real cluster, and payloads whose doings can be read from here."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import yaml

from dispatch_core.adapters.conformance import Rig
from dispatch_core.adapters.kubernetes.cluster import KubernetesCluster
from dispatch_core.adapters.kubernetes.scheduler import KubernetesScheduler
from dispatch_core.plan import Spec
from tests.adapters.local import PAYLOAD, RECITAL, read
from tests.kubernetes.server import ADMIN_TOKEN, ApiServer


def kubeconfig(url: str, folder: Path, token: str = ADMIN_TOKEN) -> Path:
    """A kubeconfig for a server without TLS."""
    told = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": url}}],
        "users": [{"name": "test", "user": {"token": token}}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(told))
    return path


class KubernetesRig(Rig):
    """One connection; what payloads write is on this machine, where the test server runs them."""

    quiet_seconds = 1.0

    def __init__(self, url: str, folder: Path) -> None:
        self.folder = folder
        self.cluster = KubernetesCluster(
            name="test",
            kubeconfig=str(kubeconfig(url, folder)),
            image="registry.example/test:1",
            poll_seconds=0.1,
            absence_seconds=5.0,
            proxy_seconds=0.0,
        )
        self.adapter: KubernetesScheduler = KubernetesScheduler(self.cluster)

    def payload(self, line: str, *, waits: bool = False, exit_code: int = 0, signal: int = 0) -> Spec:
        go = str(self.folder / f"go-{line}") if waits else ""
        return Spec(
            command=("sh", "-c", PAYLOAD, "sh", line, str(self.folder / "lines"), go, str(exit_code), str(signal)),
            options={"grace_seconds": 1},
        )

    async def go(self, line: str) -> None:
        (self.folder / f"go-{line}").touch()

    async def lines(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "lines").read_text().splitlines()
        return []

    def recital(self, place: str, arguments: tuple[str, ...], names: tuple[str, ...]) -> Spec:
        told = (str(self.folder / f"recital-{place}"), json.dumps(names))
        return Spec(command=("/usr/bin/python3", "-I", "-S", "-c", RECITAL, *told, *arguments))

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
async def kubernetes_rig(folder: Path) -> AsyncIterator[KubernetesRig]:
    async with ApiServer() as server:
        rig = KubernetesRig(server.url, folder)
        try:
            yield rig
        finally:
            await rig.adapter.close()
