"""A small, honest API server for tests, over real HTTP on loopback.

One rule: what it offers behaves as recorded exchanges with a real server show, and what it does not offer is refused or
absent, never pretended. Those exchanges are replayed against it in `test_captures.py`.

It keeps resourceVersions, serves quorum and paged lists, watches with bookmarks and 410, JSON Patch, merge patch and a
plain strategic merge, uid and resourceVersion preconditions, dry runs, generateName, the three ways of deletion with a
garbage collector, status subresources, bearer tokens with RBAC rules, and ValidatingAdmissionPolicies once they are
created. Faults are `server.faults`.

It does not do: TLS, server-side apply beyond a plain merge (nor the fields of managedFields: only who and when),
merge keys of strategic merge, discovery beyond a group's resources, ServiceAccounts, several versions of one kind.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from aiohttp import web

from tests.kubernetes.server.access import ADMIN_TOKEN, Access
from tests.kubernetes.server.controllers.admission import Admission, add_queues
from tests.kubernetes.server.controllers.jobs import Jobs
from tests.kubernetes.server.controllers.jobsets import JobSets, TrainJobs
from tests.kubernetes.server.controllers.kubelet import Kubelet
from tests.kubernetes.server.controllers.kueue import MANAGED, QueuedJobs, Webhooks
from tests.kubernetes.server.controllers.loop import Loop
from tests.kubernetes.server.controllers.pytorch import PyTorchJobs
from tests.kubernetes.server.faults import Asked, Fault, Faults
from tests.kubernetes.server.kinds import BUILT_IN, EVERY, KUEUE_KINDS, NAMESPACE, WORKLOAD, Resource
from tests.kubernetes.server.policies import Policies
from tests.kubernetes.server.removing import Collector
from tests.kubernetes.server.storage import Object, Store
from tests.kubernetes.server.surface import Surface
from tests.kubernetes.server.watching import Lists, Watches
from tests.kubernetes.server.writing import Writer

__all__ = ["ADMIN_TOKEN", "ApiServer", "Asked", "Fault", "Faults"]


class ApiServer:
    """One server: `async with ApiServer() as server`, then `server.url`."""

    def __init__(
        self,
        *,
        namespaces: Iterable[str] = ("default", "team-a"),
        install: Iterable[Resource] = (),
        controllers: bool = True,
        kubelet: bool = True,
        kueue: bool = False,
        admission_gates: bool = True,
        takes: str = "",
        bookmark_seconds: float = 1.0,
        port: int = 0,
    ) -> None:
        """`install` adds kinds beside the built-in ones; without `controllers` only the API answers,
        and without `kubelet` a test writes the status of pods itself. `kueue` installs Kueue
        with a LocalQueue `training` and a held one, `parked`, in each namespace; without `admission_gates` it is one
        that ignores the annotation, as before 0.19. `takes`: what it does with jobs that name no queue, nothing,
        "a queue by default" or "every job" (it suspends them).
        """
        self.store = Store()
        self.known = EVERY
        self.installed = (*BUILT_IN, *(KUEUE_KINDS if kueue else ()), *install)
        self.access = Access()
        self.faults = Faults()
        self.requests: list[Asked] = []
        self.lists = Lists(self.store)
        self.watches = Watches(self.store, bookmark_seconds)
        self.writer = Writer(self.store)
        self.streams: set[asyncio.BaseTransport | None] = set()
        self.port = port
        self.kubelet = Kubelet(self.store) if controllers and kubelet else None
        self._controllers = controllers
        self._tasks: list[asyncio.Task[None]] = []
        self._runner: web.AppRunner | None = None
        self._gates = admission_gates
        if kueue:
            hooks = Webhooks(self.faults, gates=admission_gates, takes=takes)
            self.writer.mutating.append(hooks.mutate)
            self.writer.validating.append(hooks.validate)
        self.writer.validating.append(Policies(self.store).validate)
        for name in namespaces:
            if kueue:
                add_queues(self.store, name)
            self.store.create(NAMESPACE, {"metadata": {"name": name}, "status": {"phase": "Active"}})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> ApiServer:
        await self._listen()
        if self._controllers:
            for controller in self._every_controller():
                self._start(controller.run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in (*self._tasks, *self.faults.late):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self.kubelet is not None:
            await self.kubelet.close()
        await self._close()

    def _every_controller(self) -> Iterable[Collector | Loop]:
        yield Collector(self.store)
        for kind in (Jobs, JobSets, TrainJobs, PyTorchJobs):
            if kind.resource in self.installed:
                yield kind(self.store)
        if WORKLOAD in self.installed:
            yield Admission(self.store)
            for resource in MANAGED:
                if resource in self.installed:
                    yield QueuedJobs(self.store, resource, gates=self._gates)

    def _start(self, work: Any) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def _listen(self) -> None:
        app = web.Application(client_max_size=16 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", Surface(self).handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]

    async def _close(self) -> None:
        self.drop_watches()
        if self._runner is not None:
            await self._runner.cleanup()

    def drop_watches(self) -> int:
        """Break every open watch, as a crash does; how many there were."""
        open_now = list(self.streams)
        for transport in open_now:
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()
        return len(open_now)

    def end_watches(self) -> None:
        """End every open watch cleanly, as a server does at the end of its time."""
        self.watches.end()

    def expire(self) -> None:
        """Forget the history and the pages: every resourceVersion and continue token seen so far is 410."""
        self.store.compact()
        self.lists.forget()

    async def restart(self, down_seconds: float = 0.0) -> None:
        """Close every connection, refuse new ones for a while, and come back with the objects and no history."""
        await self._close()
        await asyncio.sleep(down_seconds)
        self.expire()
        await self._listen()

    def get(self, resource: Resource, name: str, namespace: str = "team-a") -> Object:
        """An object as it is stored, for a test to look at; KeyError where there is none."""
        found = self.store.get(resource, namespace if resource.namespaced else "", name)
        if found is None:
            raise KeyError(f"{resource.plural} {namespace}/{name}")
        return found

    @property
    def node(self) -> Kubelet:
        """The node that runs pods, for a test to play with."""
        assert self.kubelet is not None, "this server has no kubelet"
        return self.kubelet
