"""What a DAG author writes of a job: fields in Python, or YAML, in a text or in a file beside the DAG.

One rule: what can be judged while the DAG is parsed is judged then; what has a template in it, or comes from another
task, is judged once it is filled in, before anything is written. Names and values are those of a job file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jinja2

from dispatch_core.errors import BadInput
from dispatch_core.jobfile import read_fields, read_plan
from dispatch_core.plan import Plan

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

EXTENSIONS = (".yaml", ".yml")
"""How a text ends that names a file; any other text is YAML itself."""

TEMPLATES = ("{{", "{%", "{#")


def is_file(value: object) -> bool:
    """Whether this names a YAML file, relative to the DAG's own folder or the DAG's template_searchpath."""
    return isinstance(value, str) and "\n" not in value and value.endswith(EXTENSIONS)


def is_open(value: object) -> bool:
    """Whether some of it is known only when the task runs: a template, or what another task returns."""
    match value:
        case str():
            return any(sign in value for sign in TEMPLATES)
        case Mapping():
            return any(is_open(inner) for pair in value.items() for inner in pair)
        case list() | tuple():
            return any(is_open(inner) for inner in value)
    return hasattr(value, "resolve")


def fields(value: Mapping[str, Any] | str, name: str) -> dict[str, Any]:
    """The fields of a spec or a plan. Raises BadInput."""
    if isinstance(value, str):
        return read_fields(value, name)
    if not isinstance(value, Mapping):
        raise BadInput(f"{name}: it is a {type(value).__name__}; give a mapping, or YAML as text or in a file")
    return dict(value)


def plan_of(value: Plan | Mapping[str, Any] | str) -> Plan:
    """The recovery rules. Raises BadInput."""
    return value if isinstance(value, Plan) else read_plan(fields(value, "plan"))


def filled(operator: BaseOperator, name: str, context: Context) -> Any:
    """spec or plan of an operator, read from the file that it names where a template said which. Raises BadInput."""
    value = getattr(operator, name)
    return operator.render_template(text(operator, value), context) if is_file(value) else value


def text(operator: BaseOperator, path: str) -> str:
    """What stands in a file that an operator names. Raises BadInput."""
    env = operator.get_template_env()
    try:
        if env.loader is None:
            raise jinja2.TemplateNotFound(path)
        return env.loader.get_source(env, path)[0]
    except jinja2.TemplateNotFound:
        raise BadInput(
            f"task {operator.task_id}: there is no file {path!r} beside the DAG, nor in its template_searchpath"
        ) from None
