"""`dag.test()`: a DAG's author tries it out in one program, without a scheduler or a triggerer."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from dispatch_core.environments import Environment, outside

HERE = Path(__file__).parent
SECONDS = 240


@pytest.mark.long
@pytest.mark.promise("A1")
def test_a_dag_is_run_in_one_program(engine: Environment, tmp_path: Path) -> None:
    dags, database = tmp_path / "dags", tmp_path / "airflow.db"
    dags.mkdir()
    shutil.copy(HERE / "dags" / "tested.py", dags)
    connection = {"conn_type": "dispatch", "extra": {"url": f"sqlite:///{database}", "spool": str(tmp_path / "spool")}}
    surroundings = {
        **{name: value for name, value in outside().items() if not name.startswith("AIRFLOW")},
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{database}?timeout=60",
        "AIRFLOW_CONN_DISPATCH_DEFAULT": json.dumps(connection),
    }

    def run(*command: str) -> str:
        ran = subprocess.run(
            [str(engine.python), *command],
            cwd=tmp_path,
            env=surroundings,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout[-4000:]
        return ran.stdout

    run("-m", "airflow", "db", "migrate")
    said = run(str(dags / "tested.py"))
    assert "the run has success" in said, said[-4000:]
    for line in ("from the deferred", "from the other", "after succeeded: tested"):
        assert line in said, "the end of each job's log"
