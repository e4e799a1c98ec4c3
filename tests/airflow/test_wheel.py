"""The wheel in an environment that has Airflow and no checkout: all that the provider offers is discovered there."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.environments import checkout, find_uv, outside

SECONDS = 600

DISCOVER = """
import json
import sys
import warnings

warnings.simplefilter("ignore")
import airflow_provider
from airflow.providers_manager import ProvidersManager
from airflow.sdk import DAG, task
from airflow.sdk.module_loading import import_string
from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

core, sdk = ProvidersManager(), ProvidersManagerTaskRuntime()
info = core.providers["dispatch-supervisor"].data


def modules(kind):
    return sorted(name for entry in info[kind] for name in entry["python-modules"])


with DAG("discovered", schedule=None):

    @task.dispatch
    def function():
        pass

    made = function().operator

found = {
    "from": airflow_provider.__file__,
    "connections": sorted(kind for kind, hook in sdk.hooks.items() if "airflow_provider" in str(hook)),
    "forms": sorted(name for name in ("dispatch", "slurm_ssh") if name in core.hooks),
    "hooks": modules("hooks"),
    "operators": modules("operators"),
    "triggers": modules("triggers"),
    "decorator": type(made).__name__,
    "tables": core.db_managers,
    "imported": [
        import_string(name).__name__
        for name in ("airflow_provider.operator.DispatchOperator", "airflow_provider.trigger.DispatchTrigger")
    ],
}
json.dump(found, open(sys.argv[1], "w"))
"""

EXPECTED = {
    "connections": ["dispatch", "slurm_ssh"],
    "forms": ["dispatch", "slurm_ssh"],
    "hooks": {"airflow_provider.hook", "airflow_provider.clusters"},
    "operators": {"airflow_provider.operator"},
    "triggers": {"airflow_provider.trigger"},
    "decorator": "DispatchDecoratedOperator",
    "tables": {"airflow_provider.db.DispatchDBManager"},
    "imported": ["DispatchOperator", "DispatchTrigger"],
}
"""What is discovered; a set: at least these."""


def ran(*command: str | Path, cwd: Path, **variables: str) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**outside(), **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def discovered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What Airflow finds of the wheel, installed beside the packages of the lock."""
    folder, root, uv = tmp_path_factory.mktemp("wheel"), checkout(), find_uv()
    ran(uv, "build", "--wheel", "--out-dir", folder, root, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    needed = folder / "requirements.txt"
    ran(
        *(uv, "export", "--locked", "--extra", "airflow", "--no-default-groups", "--no-emit-project", "--no-hashes"),
        *("--project", root, "-o", needed),
        cwd=folder,
    )
    ran(uv, "venv", "--python", sys.executable, folder / "clean", cwd=folder)
    python = folder / "clean" / "bin" / "python"
    ran(uv, "pip", "install", "--python", python, "-r", needed, wheel, cwd=folder)
    (folder / "discover.py").write_text(DISCOVER)
    home = {"AIRFLOW_HOME": str(folder / "home"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    ran(python, folder / "discover.py", folder / "found.json", cwd=folder, **home)
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    assert Path(found["from"]).is_relative_to(folder / "clean"), "it was imported from elsewhere"
    return found


@pytest.mark.parametrize("what", EXPECTED)
def test_it_is_discovered(discovered: dict[str, Any], what: str) -> None:
    expected = EXPECTED[what]
    if isinstance(expected, set):
        assert set(discovered[what]) >= expected
    else:
        assert discovered[what] == expected
