"""What a DAG says of a job: filled in and judged, as text, as a file, for each mapped task, and as a function."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, XComArg, task
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider.decorator import LARGEST, dispatch_task
from airflow_provider.failures import JobFailed
from airflow_provider.operator import DispatchOperator
from dispatch_core.errors import BadInput
from dispatch_core.plan import Action, Cause, Plan, Rule, When
from tests.airflow.inside.conftest import Deployment, Try, carried_out, context, deferred

RULE = Rule(name="node", when=When(cause=(Cause.NODE_FAILURE,)), do=Action.RESUBMIT, budget=2)
FIELDS = {"rules": [{"name": "node", "when": {"cause": "node_failure"}, "do": "resubmit", "budget": 2}]}
YAML = """
rules:
  - {name: node, when: {cause: "{{ params.cause }}"}, do: resubmit, budget: {{ params.budget }}}
"""
PARAMS = {"cause": "node_failure", "budget": 2, "file": "plan"}


def planned(made: Any, deployment: Deployment) -> Plan:
    """The plan of the job that a task submits, its templates filled in first."""
    ctx = {**context(), "params": PARAMS}
    made.render_template_fields(ctx)
    deferred(made, ctx)
    plan: Plan = deployment.records()[0].plan
    return plan


@pytest.mark.parametrize(
    "plan",
    [
        Plan(rules=(RULE,)),
        FIELDS,
        YAML,
        {"rules": [{"name": "node", "when": {"cause": "{{ params.cause }}"}, "do": "resubmit", "budget": 2}]},
    ],
)
def test_a_plan_from_python_and_from_yaml(deployment: Deployment, plan: Any) -> None:
    assert planned(deployment.operator(plan=plan), deployment) == Plan(rules=(RULE,))


@pytest.mark.parametrize("name", ["plan.yaml", "{{ params.file }}.yml"])
def test_a_plan_in_a_file_beside_the_dag(deployment: Deployment, tmp_path: Path, name: str) -> None:
    for ending in ("yaml", "yml"):
        (tmp_path / f"plan.{ending}").write_text(YAML)
    with DAG("etl", schedule=None, template_searchpath=str(tmp_path)):
        made = deployment.operator(plan=name)
    made.resolve_template_files()
    assert planned(made, deployment) == Plan(rules=(RULE,))


def test_a_spec_in_a_file_beside_the_dag(deployment: Deployment, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text('command: [echo, "{{ params.cause }}"]\ntime_limit: 2h\n')
    with DAG("etl", schedule=None, template_searchpath=str(tmp_path)):
        made = DispatchOperator(task_id="train", spec="job.yaml", environment={"SEED": "{{ params.budget }}"})
    made.resolve_template_files()
    planned(made, deployment)
    spec = deployment.records()[0].spec
    assert (spec.command, spec.time_limit_seconds) == (("echo", "node_failure"), 7200.0)
    assert spec.environment == {"SEED": "2"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('plan="plan.yaml"', "plan.rules[0]: do is missing; add it"),
        ('plan="other.yaml"', "there is no file 'other.yaml' beside the DAG"),
        ('plan={"rules": [{"nmae": "x"}]}', "did you mean name?"),
        ('time_limit="soon"', "soon"),
    ],
)
def test_what_can_be_seen_while_the_dag_is_parsed_is_its_import_error(tmp_path: Path, given: str, said: str) -> None:
    (tmp_path / "plan.yaml").write_text("rules: [{name: x, when: {cause: exit}}]")
    (tmp_path / "wrong.py").write_text(
        "from airflow.sdk import DAG\nfrom airflow_provider.operator import DispatchOperator\n"
        f"with DAG('wrong', schedule=None):\n    DispatchOperator(task_id='job', command=['true'], {given})\n"
    )
    bag = DagBag(dag_folder=str(tmp_path / "wrong.py"))
    (error,) = bag.import_errors.values()
    assert said in error


# --- mapped tasks


def test_a_mapped_operator_is_a_job_for_each(deployment: Deployment) -> None:
    with DAG("etl", schedule=None):
        mapped = DispatchOperator.partial(
            task_id="train", command=["true"], plan=FIELDS, retries=1, wait_for="outcome", timeout="1h"
        ).expand(environment=[{"SEED": "1"}, {"SEED": "2"}])
    for index in range(2):
        made = unmapped(mapped, index)
        deferred(made, context(Try(map_index=index, max_tries=1)))
    records = {record.key.rpartition("/train/")[2]: record for record in deployment.records()}
    assert {key: record.spec.environment for key, record in records.items()} == {
        "0/0": {"SEED": "1"},
        "1/0": {"SEED": "2"},
    }
    assert {record.plan for record in records.values()} == {Plan(rules=(RULE,))}


def test_a_plan_may_be_mapped_and_come_from_another_task(deployment: Deployment) -> None:
    with DAG("etl", schedule=None):

        @task
        def plans() -> list[dict[str, Any]]:
            return [FIELDS]

        mapped = DispatchOperator.partial(task_id="train", command=["true"]).expand(plan=plans())
        single = DispatchOperator(task_id="other", command=["true"], plan=plans(), spec=None)
    assert isinstance(single.plan, XComArg)
    assert single.upstream_task_ids == {"plans__1"}
    assert mapped.operator.upstream_task_ids == {"plans"} if isinstance(mapped, XComArg) else mapped.upstream_task_ids


def unmapped(mapped: Any, index: int) -> Any:
    """The operator of one mapped instance, as a worker makes it."""
    values = {name: given[index] for name, given in mapped.expand_input.value.items()}
    return mapped.unmap(values)


# --- functions


def made_of(decorated: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with DAG("etl", schedule=None):
        return decorated(*args, **kwargs).operator


def test_a_function_runs_as_a_job(deployment: Deployment) -> None:
    @task.dispatch(python=sys.executable, time_limit="1h", retries=0)
    def train(path: str, *, seeds: list[int], note: str = "none") -> str:
        # What it needs it imports, and what it is given is JSON.
        from pathlib import Path

        Path(path).write_text(f"{sum(seeds)} {note}")
        return "dropped"

    made = made_of(train, str(deployment.lines), seeds=[1, 2, 3], note="{{ params.note }}")
    ti = Try(task_id="train")
    ctx = {**context(ti), "params": {"note": 'it\'s "quoted" & {fine}'}}
    made.render_template_fields(ctx)
    told = carried_out(made, ctx)
    assert (told["outcome"], told["runs"]) == ("succeeded", 1)
    assert deployment.lines.read_text() == '6 it\'s "quoted" & {fine}'
    (record,) = deployment.records()
    assert (record.key, record.spec.time_limit_seconds) == (told["key"], 3600.0)
    assert record.key.endswith("/train/-1/0")


def test_a_function_that_raises_is_a_job_that_failed(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    @task.dispatch(python=sys.executable)
    def train() -> None:
        raise ValueError("no such checkpoint")

    with pytest.raises(JobFailed) as raised:
        carried_out(made_of(train), context())
    assert raised.value.exit_code == 1
    assert "ValueError: no such checkpoint" in capsys.readouterr().out


def test_a_function_may_have_a_spec_and_a_plan_and_be_mapped(deployment: Deployment) -> None:
    @task.dispatch(spec={"memory": "1GiB"}, plan=FIELDS)
    def train(seed: int) -> None:
        print(seed)

    with DAG("etl", schedule=None):
        mapped = train.expand(seed=[7, 8]).operator
    made = mapped.unmap({"op_kwargs": {"seed": 8}})
    deferred(made, context(Try(map_index=1)))
    (record,) = deployment.records()
    assert json.loads(record.spec.command[-1]) == {"args": [], "kwargs": {"seed": 8}}
    assert (record.spec.memory_bytes, record.plan) == (2**30, Plan(rules=(RULE,)))
    assert "@task.dispatch" not in record.spec.command[2]


def _takes_context(run_id: str) -> None: ...


async def _is_async() -> None: ...


def _is_plain() -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        (_takes_context, {}, "so run_id would be empty"),
        (_is_async, {}, "it is async"),
        (_is_plain, {"command": ["true"]}, "leave command out"),
        (_is_plain, {"time_limit": "soon"}, "soon"),
    ],
)
def test_a_function_that_cannot_be_a_job_does_not_parse(
    function: Callable[..., Any], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadInput, match=said):
        made_of(dispatch_task(function, **options))


@pytest.mark.parametrize(("given", "said"), [(object(), "cannot be written as JSON"), ("x" * LARGEST, "bytes; give")])
def test_an_argument_that_cannot_be_sent_is_not_tried_again(deployment: Deployment, given: Any, said: str) -> None:
    @task.dispatch
    def train(what: object) -> None:
        print(what)

    with pytest.raises(AirflowFailException, match=said):
        made_of(train, given).execute(context())
    assert deployment.records() == []
