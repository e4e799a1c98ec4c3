"""How a worker's try of a task comes to its job: the record it writes, or the one that it finds.

One rule: two workers may run the same task at once, one of them given up by Airflow, and they make one job; after a
clear, the earlier generation's job is cancelled and gone before the next one is written. Each writes, then looks for
the other. Nothing is launched here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_provider import detaching, identity, tasks
from airflow_provider.failures import JobChanged
from dispatch_core.client import Client
from dispatch_core.errors import Conflict, KeyTaken
from dispatch_core.plan import Delay, Plan, Spec
from dispatch_core.record import Record
from dispatch_core.retries import rule_of_retries, submit_keeping_retries
from dispatch_core.status import runs_of
from dispatch_core.stores.contract import Store

RETRIES = "airflow-retries"
"""The rule that `retries` becomes where no plan is given."""

COME_TO = "another task waits for it as well"


@dataclass(frozen=True)
class Wanted:
    """The job that a try asks for."""

    key: str
    spec: Spec
    plan: Plan
    scheduler: str
    who: str
    """Written into the history: which try it was, and what Airflow said of it."""
    derived: bool = False
    """The plan was made of `retries`."""
    stem: str | None = None
    """What the keys of all generations begin with; None: the key was given, and has no generations."""
    generation: int = 0


def plan_of_retries(retries: int, delay_seconds: float, factor: float, cap_seconds: float | None) -> Plan:
    """One rule that resubmits the job as often as Airflow would have tried again, after the same delays."""
    if retries < 1:
        return Plan()
    cap = {} if cap_seconds is None else {"cap_seconds": cap_seconds}
    delay = Delay(seconds=delay_seconds, factor=max(factor, 1.0), **cap)
    return Plan(rules=(rule_of_retries(RETRIES, retries, delay),))


async def submit(store: Store, wanted: Wanted) -> Record:
    """The record of the job that is asked for, or one of an earlier generation that has to be gone first.

    Raises JobChanged where the key has another job, or where the task has a later generation already.
    """
    client = Client(store, wanted.who)
    older = await _clear_away(client, wanted)
    if older is not None:
        return older
    record = await _create(client, wanted)
    if wanted.stem is None:
        record = await _come_to(client, record)
    try:
        older = await _clear_away(client, wanted)
    except JobChanged:
        await client.cancel(record.key, uid=record.uid, reason="its task was cleared in Airflow")
        raise
    if older is None:
        await detaching.come_back(store, record, wanted.who)
    return older or record


async def _create(client: Client, wanted: Wanted) -> Record:
    def is_derived(plan: Plan) -> bool:
        return wanted.derived and all(rule.name == RETRIES for rule in plan.rules)

    try:
        return await submit_keeping_retries(
            client, wanted.key, wanted.spec, wanted.plan, scheduler=wanted.scheduler, is_derived=is_derived
        )
    except KeyTaken as taken:
        raise JobChanged(
            f"{taken}. This task submitted it before the DAG was changed, or one of its templates has another value at"
            " every try. The job that was submitted goes on as it is, under `dispatch supervise`: clear the task to"
            f" have that one cancelled and the new one run, or end it with `dispatch cancel {wanted.key}`"
        ) from taken


async def _come_to(client: Client, record: Record) -> Record:
    """Write down that this task too waits for a job with a given key, by a commit that changes nothing."""
    me = tasks.of_actor(client.who)
    while me is not None and record.outcome is None:
        if me in tasks.of_history(await client.store.history(record.key, record.uid)):
            break
        try:
            return await client.store.commit(
                record, against=record.revision, commit=client.fresh_id(), actor=client.who, lines=(COME_TO,)
            )
        except Conflict:
            record = await client.store.read(record.key, record.uid)
    return record


async def _clear_away(client: Client, wanted: Wanted) -> Record | None:
    """Cancel what is left of earlier generations; returns one of them that is not settled."""
    if wanted.stem is None:
        return None
    unsettled = None
    for job in await client.store.jobs(key_prefix=f"{wanted.stem}/"):
        generation = identity.generation_of(wanted.stem, job.key)
        if generation is None or generation == wanted.generation:
            continue
        if generation > wanted.generation:
            raise JobChanged(
                f"this task was cleared, or tried again, and has job {job.key!r} now: this try does nothing"
            )
        if job.record is not None and not job.record.settled:
            await client.cancel(job.key, uid=job.uid, reason="its task was cleared in Airflow")
            unsettled = job.record
    return unsettled


def result(record: Record) -> dict[str, Any]:
    """What a task returns of its job."""
    outcome = record.outcome
    return {
        "key": record.key,
        "uid": record.uid,
        "outcome": None if outcome is None else outcome.result.value,
        "cause": None if outcome is None or outcome.cause is None else outcome.cause.value,
        "exit_code": None if outcome is None else outcome.exit_code,
        "submissions": len(record.submissions),
        "runs": runs_of(record),
        "objects": [object.id for object in record.objects if not object.foreign],
    }
