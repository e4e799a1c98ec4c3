"""The pin of a task instance, read from and written to the task's state store in Airflow, by its worker.

One rule: what Airflow does not answer does not fail a task: then the generation is counted, which is wrong only where
`retries` was edited meanwhile.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowRuntimeError

from airflow_provider import identity

if TYPE_CHECKING:
    from airflow.sdk import Context

log = logging.getLogger(__name__)


def stem(context: Context) -> str:
    """What the keys of all jobs of this task instance begin with."""
    ti = context["ti"]
    return identity.stem(ti.dag_id, ti.run_id, ti.task_id, map_index(ti))


def pin(context: Context, retries: int) -> identity.Pin:
    """The generation of this try, pinned at first sight."""
    cleared = getattr(context.get("dag_run"), "clear_number", None) or 0
    seen = identity.Seen(max_tries=context["ti"].max_tries, retries=retries, cleared=cleared)
    states: Any = context.get("task_state_store")
    if states is None:
        return identity.pinned(None, seen)
    try:
        known = identity.read_pin(states.get(identity.PIN))
        found = identity.pinned(known, seen)
        if found != known:
            states.set(identity.PIN, found.stored())
    except AirflowRuntimeError as error:
        log.warning("the task's state store does not answer: %s", error)
        return identity.pinned(None, seen)
    return found


def pin_next(context: Context, retries: int, key: str) -> None:
    """Let the next try, if there is one, have a job of its own: the one with this key has failed for good."""
    states: Any = context.get("task_state_store")
    generation = identity.generation_of(stem(context), key)
    if states is None or generation is None:
        return
    try:
        states.set(identity.PIN, identity.after(pin(context, retries), generation).stored())
    except AirflowRuntimeError as error:
        # Then the next try finds the failed job, and the policy is asked once more.
        log.warning("the task's state store does not answer: %s", error)


def instance(context: Context) -> dict[str, Any]:
    """What a trigger has to know of the try that deferred to it."""
    return {**place(context), "ti_id": str(context["ti"].id)}


def place(context: Context) -> dict[str, Any]:
    """Which task instance it is, whatever its tries."""
    ti = context["ti"]
    return {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": ti.task_id, "map_index": map_index(ti)}


def map_index(ti: Any) -> int:
    return -1 if ti.map_index is None else int(ti.map_index)
