"""`@task.dispatch`: a Python function, run as a job.

One rule: the function goes as its source, as Airflow's own `@task.virtualenv` sends it, and its arguments as JSON; so
it imports what it needs in its body and uses nothing of the DAG's file. Everything else is the operator's: one job for
a task instance, its plan, its retries, its clear.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.decorator import DecoratedOperator, task_decorator_factory
from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider.operator import DispatchOperator
from dispatch_core.errors import BadInput

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.bases.decorator import TaskDecorator

LARGEST = 120_000
"""Bytes of the source, and of the arguments: Linux takes no argument of a command that has 128 KiB."""

CALL = """
if __name__ == "__main__":
    import json
    import sys

    _given = json.loads(sys.argv[1])
    {name}(*_given["args"], **_given["kwargs"])
"""


class DispatchDecoratedOperator(DecoratedOperator, DispatchOperator):
    """What `@task.dispatch` makes; `python` is the interpreter where the job runs."""

    template_fields: Sequence[str] = (
        *DecoratedOperator.template_fields,
        *(name for name in DispatchOperator.template_fields if name != "command"),
        "python",
    )
    custom_operator_name = "@task.dispatch"

    def __init__(self, *, python_callable: Callable[..., Any], python: str = "python3", **options: Any) -> None:
        name = getattr(python_callable, "__name__", "the function")
        if "command" in options:
            raise BadInput(f"@task.dispatch {name}: the function is the command; leave command out")
        if inspect.iscoroutinefunction(python_callable):
            raise BadInput(f"@task.dispatch {name}: it is async; call asyncio.run in a plain function")
        known = sorted(KNOWN_CONTEXT_KEYS.intersection(inspect.signature(python_callable).parameters))
        if known:
            raise BadInput(
                f"@task.dispatch {name}: the job has no Airflow context, so {known[0]} would be empty; name the"
                f' parameter otherwise, and give it as an argument, like "{{{{ {known[0]} }}}}"'
            )
        self.python = python
        super().__init__(python_callable=python_callable, command=[python, "-c", ""], **options)
        source = self.get_python_source()  # type: ignore[no-untyped-call]
        self._source = f"from __future__ import annotations\n\n{source}{CALL.format(name=name)}"

    def execute(self, context: Context) -> Any:
        """As the operator, with the function and its arguments, filled in by now, as the command."""
        self.command = [self.python, "-c", self._source, self._arguments()]
        for word in self.command:
            if len(word.encode()) > LARGEST:
                raise AirflowFailException(
                    f"task {self.task_id}: its source or its arguments have more than {LARGEST:,} bytes; give the job"
                    " the path of a file"
                )
        return super().execute(context)

    def _arguments(self) -> str:
        given = {"args": list(self.op_args), "kwargs": dict(self.op_kwargs)}
        try:
            return json.dumps(given, default=_plain)
        except (TypeError, ValueError) as wrong:
            raise AirflowFailException(
                f"task {self.task_id}: an argument cannot be written as JSON: {wrong}; give text, numbers, lists or"
                " dicts"
            ) from wrong


def _plain(value: object) -> Any:
    """What other tasks return may come as a lazy sequence."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"it is a {type(value).__name__}")


def dispatch_task(
    python_callable: Callable[..., Any] | None = None, *, python: str = "python3", **options: Any
) -> TaskDecorator:
    """Run the function as a job, `@task.dispatch(time_limit="2h", retries=3)`; the options are DispatchOperator's.

    The job is `python -c SOURCE ARGUMENTS`: the function's own source, without what else is in the DAG's file, and the
    arguments as JSON. Both are public, as any command is: stored, shown and logged; a secret goes into
    `spec={"secret_environment": ...}`, and the function reads it from its environment. What the function prints is the
    job's log, and an exception that leaves it is exit code 1. What it returns is dropped, as not every scheduler can
    bring it back: write it where the next task finds it. The task returns what DispatchOperator returns.

    :param python: the interpreter where the job runs, on its PATH or as a path. (templated)
    """
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=False,
        decorated_operator_class=DispatchDecoratedOperator,
        python=python,
        **options,
    )
