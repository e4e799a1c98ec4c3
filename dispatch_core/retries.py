"""What an engine's own retries mean for a job: rules of its plan, the same ones in every engine.

One rule: a job keeps the retries that it was submitted with. Changing them in the flow or the DAG changes no job that
is there, and is no reason to refuse it. This room knows no engine.
"""

from __future__ import annotations

from collections.abc import Callable

from dispatch_core.adapters.contract import Adapter
from dispatch_core.client import Client
from dispatch_core.errors import KeyTaken
from dispatch_core.plan import Action, Cause, Delay, Plan, Rule, Spec, When
from dispatch_core.record import Record

RETRIED = (
    Cause.EXIT,
    Cause.SIGNAL,
    Cause.OUT_OF_MEMORY,
    Cause.TIME_LIMIT,
    Cause.NODE_FAILURE,
    Cause.PREEMPTED,
    Cause.CANNOT_START,
    Cause.NEVER_CREATED,
)
"""What a retry is spent on. Not `stopped_outside`: whoever stopped the job meant it. Not `refused`: the same submission
would be refused again. What nobody can tell, `vanished` and `unrecognized`, waits for a person as everywhere."""


def rule_of_retries(name: str, budget: int, delay: Delay) -> Rule:
    """A rule that resubmits the job `budget` times at most, each after its delay."""
    return Rule(name=name, when=When(cause=RETRIED), do=Action.RESUBMIT, budget=budget, delay=delay)


async def submit_keeping_retries(
    client: Client,
    key: str,
    spec: Spec,
    plan: Plan,
    *,
    scheduler: str,
    adapter: Adapter | None = None,
    is_derived: Callable[[Plan], bool],
) -> Record:
    """As `Client.submit`; but a record that differs by its retries alone is the one. `is_derived`: whether a plan was
    made of an engine's retries, or is empty. Raises BadInput, KeyTaken."""
    try:
        return await client.submit(key, spec, plan, scheduler=scheduler, adapter=adapter)
    except KeyTaken:
        found = await client.store.read(key)
        same = (found.spec, found.scheduler) == (spec, scheduler)
        if same and is_derived(plan) and is_derived(found.plan):
            return found
        raise
