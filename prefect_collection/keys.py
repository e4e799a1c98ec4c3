"""Under which key a step of a flow run has its job, so that whoever runs the step again finds the same job.

One rule: only what stays is in a key. A task run has a new id and a new dynamic key after a crash, a task's key changes
with its source, and a subflow run is made anew when its parent is run again: the key is made of the root flow run's id,
the names and call numbers of the subflows on the way, and the name that the user gave the step.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext, TaskRunContext

from dispatch_core.errors import BadInput, KeyTaken
from dispatch_core.record import KEY_LENGTH

PREFIX = "prefect"

_in_use: set[str] = set()
_claiming = threading.Lock()
"""Submitted tasks run in threads of their own."""


class Place(NamedTuple):
    """Where in which flow run a step stands."""

    root: UUID
    """The flow run that everything here was called from; for a task outside any flow, the task run."""
    path: tuple[str, ...] = ()
    """One `name-number` for each subflow between the root and the step."""
    flow_runs: tuple[UUID, ...] = ()
    """The step's own flow run first, the root last: each may be cancelled."""
    runs: tuple[int, ...] = ()
    """Which run of each this is, as Prefect counts them from 1, the root first."""

    @property
    def prefix(self) -> str:
        """How the keys of all jobs begin that were launched from here."""
        return "/".join((PREFIX, str(self.root), *self.path, ""))

    def key(self, step: str) -> str:
        """The key of a step's job. Raises BadInput for a step whose name is empty or too long."""
        if not step:
            raise BadInput("the key of a step is empty; name the step")
        key = self.prefix + step
        if len(key) > KEY_LENGTH:
            digest = hashlib.sha256("/".join(self.path).encode()).hexdigest()[:16]
            key = f"{PREFIX}/{self.root}/{digest}/{step}"
        if len(key) > KEY_LENGTH:
            raise BadInput(f"the key of step {step[:40]!r} has {len(key)} characters with its flow run; shorten it")
        return key


async def here() -> Place | None:
    """The place of the code that asks; None: neither a flow run nor a task run is under way."""
    flow, task = FlowRunContext.get(), TaskRunContext.get()
    if flow is not None and flow.flow_run is not None:
        return await place_of(flow.flow_run)
    if task is None:
        return None
    if task.task_run.flow_run_id is None:
        return Place(root=task.task_run.id)
    async with get_client() as client:
        return await place_of(await client.read_flow_run(task.task_run.flow_run_id))


async def place_of(flow_run: FlowRun) -> Place:
    """The place of what a flow run calls. Raises BadInput for a subflow that a rerun could not be matched with."""
    path: list[str] = []
    flow_runs = [flow_run]
    if flow_run.parent_task_run_id is None:
        return Place(root=flow_run.id, flow_runs=(flow_run.id,), runs=(flow_run.run_count,))
    async with get_client() as client:
        while flow_run.parent_task_run_id is not None:
            call = await client.read_task_run(flow_run.parent_task_run_id)
            if not call.dynamic_key.isdecimal():
                raise BadInput(
                    f"the subflow run {flow_run.name!r} was called from a task, so that a rerun would not find its "
                    "jobs again; call it from the flow, or give its jobs keys of their own and across_runs=True"
                )
            path.insert(0, call.name)
            if call.flow_run_id is None:
                break
            flow_run = await client.read_flow_run(call.flow_run_id)
            flow_runs.append(flow_run)
    return Place(
        root=flow_run.id,
        path=tuple(path),
        flow_runs=tuple(run.id for run in flow_runs),
        runs=tuple(run.run_count for run in reversed(flow_runs)),
    )


@contextmanager
def in_use(key: str) -> Iterator[None]:
    """Hold a key for one task of this program. Raises KeyTaken while another has it: two steps would be one job."""
    with _claiming:
        if key in _in_use:
            raise KeyTaken(f"job {key!r} is awaited by another task of this flow run; give each step a key of its own")
        _in_use.add(key)
    try:
        yield
    finally:
        _in_use.discard(key)
