"""The example that the demo runs: it parses, and its templates are filled in before the job is written."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from airflow.sdk import DAG

from airflow_provider.operator import DispatchOperator
from dispatch_core.plan import Action, Cause
from tests.airflow.inside.conftest import Deployment, context, deferred

EXAMPLE = Path(__file__).parents[3] / "examples" / "airflow_dag.py"


@pytest.fixture
def example(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("LINES", str(deployment.lines))
    spec = spec_from_file_location("example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_is_submitted_with_its_templates_filled_in(example: ModuleType, deployment: Deployment) -> None:
    (dag,) = (value for value in vars(example).values() if isinstance(value, DAG))
    (made,) = dag.tasks
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
