"""What a task's `retries` and `retry_delay_seconds` mean for its job: recovery rules of the record.

One rule: the record decides whether a job runs again. Prefect repeats the task only where the job itself has not been
judged (the store was out of reach, the task ran into its timeout), and the repetition attaches to the same job.
"""

from __future__ import annotations

from typing import Any

from prefect.client.schemas.objects import State, TaskRun
from prefect.tasks import Task

from dispatch_core.errors import BadInput, KeyTaken, NotFound
from dispatch_core.plan import Delay, Plan
from dispatch_core.retries import rule_of_retries
from prefect_collection.results import JobCancelled, JobFailed

FINAL = (JobFailed, JobCancelled, BadInput, KeyTaken, NotFound)
"""Asked again, the answer would be the same."""

NAME = "prefect retries"
"""How the rules are named."""


def may_be_repeated(task: Task[Any, Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Prefect's `retry_condition_fn`: the error is the failed state's data, as it was raised."""
    return not isinstance(state.data, FINAL)


def plan_of(task: Task[Any, Any] | None) -> Plan:
    """The plan of a job that was given none: a resubmit for each retry of the task, after its delay.

    A list of delays counts as Prefect has it: the last one serves for all retries that are left.
    """
    if task is None or task.retries < 1:
        return Plan()
    given = task.retry_delay_seconds
    delays = [float(delay) for delay in given] if isinstance(given, list) else [float(given or 0.0)]
    delays = delays[: task.retries] or [0.0]
    budgets = [1] * (len(delays) - 1) + [task.retries - len(delays) + 1]
    jitter = min(float(task.retry_jitter_factor or 0.0), 1.0)
    return Plan(
        rules=tuple(
            rule_of_retries(
                f"{NAME} {number}" if len(delays) > 1 else NAME, budget, Delay(seconds=delay, jitter=jitter)
            )
            for number, (delay, budget) in enumerate(zip(delays, budgets, strict=True), start=1)
        )
    )


def is_of_retries(plan: Plan) -> bool:
    """Whether a plan was made by `plan_of`."""
    return all(rule.name.startswith(NAME) for rule in plan.rules)
