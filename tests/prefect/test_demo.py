"""The demo in a throwaway Prefect: it shows what it is for, and leaves nothing."""

import json
from pathlib import Path

import pytest

from dispatch_core.environments import Environment
from tests.airflow.test_demo import left, start


@pytest.mark.long
@pytest.mark.promise("F1")
def test_the_demo_shows_what_it_is_for(environment: Environment, tmp_path: Path) -> None:
    with start(tmp_path, "--engine", "prefect", "-o", "json") as demo:
        out, err = demo.communicate(timeout=420.0)
    told = json.loads(out)
    assert (demo.returncode, told["ok"]) == (0, True), err
    assert len(told["checks"]) == 9
    assert told["flow_run"]["state_type"] == "COMPLETED"
    assert left(tmp_path) == []
