"""Whether a task has ended for its job: what a kill hook asks before it cancels anything.

One rule: a kill is a hint, and what Airflow does not tell is no reason. It sends a kill to a triggerer that was only
slow, and to the trigger of an earlier try after a clear, as well as when a person marks the task. So it is asked for
the task's state, and only one that has ended is a reason to cancel. After a clear it tells the new try's state, which
has not: then the new try decides.

It asks through the triggerer's own process. Its first question costs a fresh triggerer its heartbeat for as long as
Airflow's API takes to load; nothing is asked of a job that has its outcome.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from airflow.sdk.exceptions import AirflowRuntimeError

from airflow_provider import tasks
from airflow_provider.detaching import leavers
from airflow_provider.tasks import Instance
from dispatch_core.client import Client
from dispatch_core.errors import NotFound
from dispatch_core.record import Record
from dispatch_core.stores.contract import Store

log = logging.getLogger(__name__)

ENDED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})

UNLISTED = "not in this Airflow any more"
"""What is said of a task instance that Airflow tells nothing of: its DAG run was deleted, say. Nobody has ended it, and
an answer that lacks it is no word of Airflow's; so its job goes on, for the janitor's task as well."""

ASK_SECONDS = 120.0
"""How long Airflow may take to answer."""


async def cancel_if_ended(store: Store, key: str, uid: str, who: str, instance: Mapping[str, Any]) -> bool:
    """Commit a cancel where the task instance has ended before its job did, unless it was to go on; returns whether it
    stands."""
    record = await store.read(key, uid)
    if record.outcome is not None:
        return False
    waiting = await _waiting(store, record, instance)
    if waiting is None:
        return False
    try:
        states = await asyncio.wait_for(asyncio.to_thread(_states, [instance, *waiting]), ASK_SECONDS)
    except (AirflowRuntimeError, AttributeError, KeyError, OSError, RuntimeError) as error:
        log.warning("job %s goes on: Airflow did not say whether its task has ended (%s)", key, error)
        return False
    state, *rest = states
    if state not in ENDED:
        level = logging.WARNING if state == UNLISTED else logging.INFO
        log.log(level, "job %s goes on: its task is %s", key, state or "without a state, as after a clear")
        return False
    if not ENDED.issuperset(rest):
        log.info("job %s goes on: its task is %s, and another one waits for it", key, state)
        return False
    receipt = await Client(store, who).cancel(key, uid=uid, reason=f"its task is {state} in Airflow")
    log.info("job %s has %s: its task is %s", key, receipt.result, state)
    return True


async def cancelled(store: Store, key: str, who: str, reason: str) -> Record | None:
    """The record of a job once it is cancelled, or has another outcome; None where there is no such job."""
    with suppress(NotFound):
        receipt = await Client(store, who).cancel(key, reason=reason)
        return await store.read(receipt.key, receipt.uid)
    return None


async def _waiting(store: Store, record: Record, instance: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    """The other task instances that wait for a job, which only one with a given key can have; None: this one has left
    it running, on purpose."""
    changes, me = await store.history(record.key, record.uid), Instance.of(instance)
    left = leavers(changes)
    if me in left:
        return None
    if tasks.of_key(record.key) is not None:
        return []
    return [other._asdict() for other in sorted(tasks.of_history(changes) - left) if other != me]


def _states(instances: Sequence[Mapping[str, Any]]) -> list[str | None]:
    return [task_state(instance) for instance in instances]


def task_state(instance: Mapping[str, Any]) -> str | None:
    """The state of a task instance's newest try; UNLISTED where Airflow tells of none. It blocks."""
    task_id, map_index = instance["task_id"], instance["map_index"]
    states = run_states(instance["dag_id"], instance["run_id"], [task_id], map_index if map_index >= 0 else None)
    return states.get((task_id, map_index), UNLISTED)


def run_states(
    dag_id: str, run_id: str, task_ids: Sequence[str], map_index: int | None = None
) -> dict[tuple[str, int], str | None]:
    """The states of these tasks in one DAG run, by name and map index (-1: not mapped). It blocks."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    found: dict[tuple[str, int], str | None] = {}
    for task_id in task_ids:  # one at a time: asked together, `a` mapped at 1 and a task `a_1` have the same name
        states = RuntimeTaskInstance.get_task_states(
            dag_id=dag_id, task_ids=[task_id], run_ids=[run_id], map_index=map_index
        )
        for name, state in states.get(run_id, {}).items():
            rest = name.removeprefix(task_id)
            found[task_id, int(rest[1:]) if rest else -1] = None if state is None else str(state)
    return found
