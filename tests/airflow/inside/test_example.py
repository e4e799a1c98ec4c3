"""The examples: they parse, and their templates are filled in before a job is written."""

from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG

from airflow_provider.failures import JobFailed
from airflow_provider.operator import DispatchOperator
from airflow_provider.submission import RETRIES
from dispatch_core.plan import Action, Cause
from dispatch_core.record import Record
from tests.airflow.inside.conftest import Deployment, Try, carried_out, context, deferred

EXAMPLES = Path(__file__).parents[3] / "examples"


def dag_of(name: str) -> DAG:
    spec = spec_from_file_location("example", EXAMPLES / name)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    (dag,) = (value for value in vars(module).values() if isinstance(value, DAG))
    dag.resolve_template_files()
    return dag


def test_the_example_is_submitted_with_its_templates_filled_in(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINES", str(deployment.lines))
    (made,) = dag_of("airflow_dag.py").tasks
    assert isinstance(made, DispatchOperator)
    ctx = {**context(), "params": {"seconds": 7}}
    made.render_template_fields(ctx)
    deferred(made, ctx)
    (record,) = deployment.records()
    assert record.spec.environment == {"LINES": str(deployment.lines), "SECONDS_TO_RUN": "7"}
    assert record.spec.time_limit_seconds == 600
    assert [(rule.when.cause, rule.do, rule.budget) for rule in record.plan.rules] == [
        ((Cause.NODE_FAILURE,), Action.RESUBMIT, 2)
    ]


@pytest.fixture
def submitted(deployment: Deployment) -> Callable[[str], Record]:
    """The record of one task of the second example, carried out."""
    dag = dag_of("airflow_features_dag.py")

    def submit(name: str) -> Record:
        made: Any = dag.get_task(name)
        index = None
        if not isinstance(made, DispatchOperator):
            index = 1
            made = made.unmap({"environment": made.expand_input.value["environment"][index]})
        ctx = {**context(Try(task_id=name, map_index=index)), "params": {"budget": 5, "folder": str(deployment.folder)}}
        made.render_template_fields(ctx)
        told = made.execute(ctx) if not made.deferrable else carried_out(made, ctx)
        assert told["outcome"] == "succeeded"
        (record,) = deployment.records()
        return record

    return submit


def test_a_function(submitted: Callable[[str], Record], deployment: Deployment) -> None:
    assert submitted("prepare").spec.time_limit_seconds == 600
    assert (deployment.folder / "seeds.json").read_text() == "[0, 1]"


def test_a_mapped_task_with_a_plan_as_text(submitted: Callable[[str], Record]) -> None:
    record = submitted("train")
    assert record.spec.environment == {"SEED": "2"}
    assert [(rule.name, rule.budget) for rule in record.plan.rules] == [("node", 5), ("memory", 1)]


def test_a_spec_in_a_file_and_retries(submitted: Callable[[str], Record], deployment: Deployment) -> None:
    record = submitted("evaluate")
    assert record.spec.environment == {"PLACE": str(deployment.folder)}
    (rule,) = record.plan.rules
    assert (rule.name, rule.budget, rule.delay.seconds, rule.delay.factor, rule.delay.cap_seconds) == (
        RETRIES,
        3,
        30,
        2,
        600,
    )


@pytest.mark.parametrize("name", ["publish", "report"])
def test_the_other_tasks(submitted: Callable[[str], Record], name: str) -> None:
    assert submitted(name).plan.rules == ()


def test_its_policy_asks_for_another_job_after_one_exit_code() -> None:
    policy = dag_of("airflow_features_dag.py").get_task("report").retry_policy
    for code, action in ((75, "retry"), (1, "fail")):
        failed = JobFailed("it failed")
        failed.exit_code = code
        assert policy.evaluate(failed, 1, 2).action.value == action


def test_airflow_reads_every_example() -> None:
    for path in sorted(EXAMPLES.glob("*_dag.py")):
        bag = DagBag(dag_folder=str(path))
        assert (bag.import_errors, len(bag.dags)) == ({}, 1), path.name
