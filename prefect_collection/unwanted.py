"""Finds the jobs of cancelled flow runs: whoever should have told dispatch may be gone, or was never told.

One rule: a job is cancelled only on Prefect's own word, that the flow run under whose key it runs is cancelled or being
cancelled now. What Prefect does not say is no reason: a flow run that it does not know may be another server's on the
same store, and an answer that fails is no answer. A job under a key of its own (`across_runs`) is nobody's.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterParentFlowRunId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType

from dispatch_core.client import Client
from dispatch_core.errors import BadInput, DispatchError
from dispatch_core.record import Record
from dispatch_core.stores.contract import Store
from prefect_collection.keys import PREFIX, place_of

log = logging.getLogger(__name__)

ASKED_AT_ONCE = 100
"""Flow runs in one question; a server answers with 200 at most unless it is set up otherwise."""

CANCELLED = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.CANCELLING, StateType.CANCELLED]))

Reasons = dict[str, str]
"""Why jobs are not wanted any more, by what their keys begin with."""


async def open_jobs(store: Store) -> list[Record]:
    """Every job of a flow run that has no outcome."""
    jobs = await store.jobs(settled=False, key_prefix=f"{PREFIX}/")
    records = [job.record for job in jobs if job.record is not None and job.record.outcome is None]
    return [record for record in records if root_of(record.key) is not None]


def root_of(key: str) -> UUID | None:
    """The flow run that a key was made for; None for one that was given."""
    parts = key.split("/", 2)
    with suppress(ValueError):
        return UUID(parts[1]) if len(parts) == 3 and parts[0] == PREFIX else None
    return None


async def reasons(client: PrefectClient, jobs: Iterable[Record]) -> Reasons:
    """What Prefect says of the flow runs of these jobs: why some are not wanted any more."""
    roots: dict[UUID, bool] = {}
    for record in jobs:
        root = root_of(record.key)
        if root is not None:
            roots[root] = roots.get(root, False) or record.key.count("/") > 2  # of a subflow, or has it in its name
    found = {f"{PREFIX}/{run.id}/": _reason(run) for run in await _runs(client, list(roots), state=CANCELLED)}
    await _of_subflows(client, [root for root, deep in roots.items() if deep], found)
    return found


async def cancel(store: Store, jobs: Iterable[Record], why: Reasons, who: str) -> int:
    """Commit the cancels; how many. One that was committed already stays as it is. One that fails keeps no other from
    being committed: raises DispatchError at the end, which tells every failure."""
    done, failures = 0, dict[str, None]()  # what the store says of all of them is said once
    for record in jobs:
        reason = next((reason for prefix, reason in why.items() if record.key.startswith(prefix)), "")
        if reason:
            try:
                await Client(store, who=who).cancel(record.key, uid=record.uid, reason=reason)
            except DispatchError as error:
                failures[str(error)] = None
                continue
            log.warning("job %s is cancelled: %s", record.key, reason)
            done += 1
    if failures:
        raise DispatchError("; ".join(failures))
    return done


async def _of_subflows(client: PrefectClient, parents: Sequence[UUID], found: Reasons) -> None:
    """Add the reasons of subflow runs that were cancelled by themselves, level by level."""
    while parents:
        runs = await _runs(client, parents, below=True)
        cancelled = {run.id for run in runs if run.state_type in (StateType.CANCELLING, StateType.CANCELLED)}
        if cancelled:
            for prefix, run in (await _newest(runs)).items():
                if run.id in cancelled:
                    found[prefix] = _reason(run)
        parents = [run.id for run in runs]


async def _newest(runs: Iterable[FlowRun]) -> dict[str, FlowRun]:
    """The last run at each place: a parent that is run again makes its subflow runs anew, and takes on their jobs."""
    places: dict[str, list[FlowRun]] = defaultdict(list)
    for run in runs:
        with suppress(BadInput):  # its jobs have keys of their own
            places[(await place_of(run)).prefix].append(run)
    return {prefix: max(there, key=lambda run: (str(run.created), str(run.id))) for prefix, there in places.items()}


async def _runs(
    client: PrefectClient, ids: Sequence[UUID], *, state: FlowRunFilterState | None = None, below: bool = False
) -> list[FlowRun]:
    """These flow runs, or with `below` those that they have called, page by page."""
    found: list[FlowRun] = []
    for part in _parts(ids):
        asked = (
            FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=part))
            if below
            else FlowRunFilter(id=FlowRunFilterId(any_=part))
        )
        if state is not None:
            asked.state = state
        offset = 0
        while page := await client.read_flow_runs(flow_run_filter=asked, limit=ASKED_AT_ONCE, offset=offset):
            found += page
            offset += len(page)
            if len(page) < ASKED_AT_ONCE:
                break
    return found


def _parts(ids: Sequence[UUID]) -> Iterator[list[UUID]]:
    for at in range(0, len(ids), ASKED_AT_ONCE):
        yield list(ids[at : at + ASKED_AT_ONCE])


def _reason(run: FlowRun) -> str:
    return f"the flow run {run.name!r} was cancelled"
