"""What a flow run that is run again means for a job that did not succeed: nothing, or a new job under the same key.

One rule: which run of a flow run made a job stands in the job's history, and a new one takes its place only once it is
settled. A crash that is run again, and a task that is tried again, come to a job that is under way; a job of this very
run that has failed stays failed. Prefect counts the runs of a flow run, and a resume is none of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from prefect.client.orchestration import get_client

from dispatch_core.client import Client
from dispatch_core.errors import BadInput, KeyTaken
from dispatch_core.plan import Plan, Spec
from dispatch_core.record import Record, Result
from dispatch_core.retries import submit_keeping_retries
from prefect_collection.connections import Connection
from prefect_collection.retries import is_of_retries

OnFlowRetry = Literal["reattach", "new_attempt"]

Attend = Callable[[Record], Awaitable[Record]]


@dataclass(frozen=True)
class Run:
    """One run of a flow run, as Prefect counts them from 1."""

    flow_run: UUID
    number: int
    name: str
    """Whoever supervises its jobs."""

    @property
    def who(self) -> str:
        """Who makes a job in it, as its history says."""
        return f"{self.name}, run {self.number} of {self.flow_run}"

    def is_later_than(self, maker: str) -> bool:
        """Whether whoever made a job was an earlier run of this flow run. One that does not say its number did not
        ask for new jobs, and counts as the first."""
        _, _, told = maker.rpartition(", run ")
        number, _, flow_run = told.partition(" of ")
        if number.isdecimal() and flow_run:
            return flow_run == str(self.flow_run) and int(number) < self.number
        return maker.endswith(str(self.flow_run)) and self.number > 1


async def which_run(flow_run: UUID | None, name: str) -> Run:
    """The run that is under way, of the flow run that everything was called from. Raises BadInput outside any."""
    if flow_run is None:
        raise BadInput('on_flow_retry="new_attempt" is about a flow run that is retried, and there is none here')
    async with get_client() as client:
        return Run(flow_run=flow_run, number=(await client.read_flow_run(flow_run)).run_count, name=name)


async def made_or_found(
    connection: Connection, attend: Attend, key: str, spec: Spec, plan: Plan, *, name: str, run: Run | None
) -> Record:
    """The job's record. `run`: a job that an earlier run made, and that did not succeed, is followed by a new one, once
    it was attended to until it was settled.

    A job keeps the retries that it was submitted with. Raises BadInput, KeyTaken.
    """
    client = Client(connection.store, who=name if run is None else run.who)

    async def made(*, new: bool = False) -> Record:
        given = {"scheduler": connection.scheduler, "adapter": connection.adapter}
        if new:
            return await client.submit(key, spec, plan, new=True, **given)  # type: ignore[arg-type]
        return await submit_keeping_retries(client, key, spec, plan, is_derived=is_of_retries, **given)  # type: ignore[arg-type]

    try:
        record = await made()
    except KeyTaken:  # the flow was changed, perhaps for this very retry
        record = await connection.store.read(key)
        if run is None or not await _is_to_be_followed(connection, record, run):
            raise
    if run is None or not await _is_to_be_followed(connection, record, run):
        return record
    if record.scheduler == connection.scheduler:
        await attend(record)
    else:
        await client.wait(record.key, uid=record.uid)
    try:
        return await made(new=True)
    except KeyTaken:  # another process was faster
        return await made()


async def _is_to_be_followed(connection: Connection, record: Record, run: Run) -> bool:
    if record.outcome is None or record.outcome.result is Result.SUCCEEDED:
        return False
    history = await connection.store.history(record.key, record.uid)
    return run.is_later_than(history[0].actor)
