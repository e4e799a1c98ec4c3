"""Waits for jobs without a process: the flow run is suspended, and `dispatch supervise --prefect` resumes it.

One rule: nothing rests on the order of the outcome and the suspend. The flow run says in its suspended state which jobs
it waits for; the service looks at all suspended flow runs, again and again, and resumes each whose jobs have outcomes;
and a flow run that is resumed, by whomever, looks at the records first and suspends itself once more where it must.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from uuid import uuid4

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateName
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext, TaskRunContext
from prefect.exceptions import PrefectException
from prefect.flow_runs import asuspend_flow_run

from dispatch_core.errors import BadInput, NotFound, UnreadableRecord
from dispatch_core.record import Record
from dispatch_core.stores.contract import Store
from prefect_collection import errands
from prefect_collection.blocks import DispatchStore
from prefect_collection.connections import SERVER
from prefect_collection.errands import Asker
from prefect_collection.results import JobResult, Submitted, result_of

log = logging.getLogger(__name__)

MARK = "dispatch waits for "
"""How the pause key begins of a flow run that was suspended here; the rest is JSON: each job's key and uid, and a word
of its own."""

PAGE = 100


async def wait_suspended(
    *jobs: Submitted | str, store: DispatchStore | str = SERVER, across_runs: bool = False
) -> list[JobResult]:
    """Wait until each of these jobs has an outcome, with no process left meanwhile; their results, in this order.

    To be awaited in a flow, not in a task, after `submit_job` was called for each: with what that returned, or with its
    key. The flow run is suspended, its process ends, and a `dispatch supervise --prefect` resumes it: the flow then
    runs from its top, in a new process, comes to this call again and goes on behind it. So it needs a deployment; tasks
    before it are run again unless their results are persisted (`persist_result=True`). The same service supervises the
    jobs; without one, nothing goes on.

    `store` and `across_runs` are what the jobs were submitted with. Raises JobFailed and JobCancelled of the first that
    did not succeed, once all have an outcome; BadInput; NotFound for a key that was not submitted.
    """
    if TaskRunContext.get() is not None or FlowRunContext.get() is None:
        raise BadInput("wait_suspended is to be awaited in a flow, not in a task: only a flow run can be suspended")
    while True:
        records = [await errands.find(await Asker.of(job, store, across_runs=across_runs)) for job in jobs]
        if all(record.outcome is not None for record in records):
            return [result_of(record) for record in records]
        # A key of its own each time: Prefect passes by a suspend that was there before.
        await asuspend_flow_run(key=pause_key(records))


def pause_key(records: Iterable[Record]) -> str:
    """What says which jobs are waited for; by uid: under the same key another job may have come since."""
    return MARK + json.dumps([sorted((record.key, record.uid) for record in records), uuid4().hex])


def waits_for(run: FlowRun) -> list[tuple[str, str]]:
    """The keys and uids of the jobs that a suspended flow run waits for; none for one that somebody else suspended."""
    key = run.state.state_details.pause_key if run.state is not None and run.state.is_paused() else None
    if not key or not key.startswith(MARK):
        return []
    try:
        jobs, _ = json.loads(key.removeprefix(MARK))
        return [(str(key), str(uid)) for key, uid in jobs]
    except (TypeError, ValueError):
        return []  # a person's own words


async def resume_ready(client: PrefectClient, store: Store) -> int:
    """Resume every flow run that is suspended until jobs of this store have outcomes, and they have; how many.

    One that cannot be resumed keeps no other waiting: raises what Prefect said of the last such at the end.
    """
    done, refused = 0, None
    asked = FlowRunFilter(state=FlowRunFilterState(name=FlowRunFilterStateName(any_=["Suspended"])))
    offset = 0
    suspended: list[FlowRun] = []
    while page := await client.read_flow_runs(flow_run_filter=asked, limit=PAGE, offset=offset):
        suspended += page
        offset += len(page)
    for run in suspended:
        jobs = waits_for(run)
        if jobs and await _all_over(store, jobs):
            try:
                answer = await client.resume_flow_run(run.id)
            except (httpx.HTTPStatusError, PrefectException) as error:
                refused = error
                continue
            log.info("flow run %s is resumed, as its jobs are over: %s", run.name, answer.status.value)
            done += 1
    if refused is not None:
        raise refused
    return done


async def _all_over(store: Store, jobs: list[tuple[str, str]]) -> bool:
    """Whether each job has an outcome. One that this store does not have may be in another one, whose service it is;
    one that cannot be read here needs a newer service, and keeps no other flow run waiting."""
    try:
        return all([(await store.read(key, uid)).outcome is not None for key, uid in jobs])
    except (NotFound, UnreadableRecord):
        return False
