"""Another Prefect than the locked one, for the tests of this folder: one variable tells which.

    DISPATCH_TEST_PREFECT=3.7.7 uv run pytest tests/prefect/test_inside.py tests/prefect/test_server.py \
        tests/prefect/test_scenes.py -m "long or not long"

One rule: it is the locked environment with another Prefect put over it, so that only those packages differ that this
Prefect refuses. It lies beside the locked one in the cache, and is removed with it.
"""

import os
import subprocess

from dispatch_core.environments import ROOT, Environment, find_uv, make_environment, outside

VARIABLE = "DISPATCH_TEST_PREFECT"
MAKING_SECONDS = 900


def environment_to_test() -> Environment:
    """The engine's environment, with the Prefect that the variable names; without it, the locked one."""
    locked, version = make_environment("prefect", dev=True), os.environ.get(VARIABLE)
    return _with_another(locked, version) if version else locked


def _with_another(locked: Environment, version: str) -> Environment:
    folder = locked.folder.with_name(f"{locked.folder.name}-{version}")
    other = Environment(engine=locked.engine, folder=folder, root=locked.root)
    if not list(folder.glob(f"lib/python*/site-packages/prefect-{version}.dist-info")):
        folder.with_name(f"{folder.name}{ROOT}").write_text(f"{locked.root}\n")
        _uv(other, "sync", "--locked", "--extra", "prefect", "--group", "dev", "--python", str(locked.python))
        _uv(other, "pip", "install", "--python", str(other.python), f"prefect=={version}")
    return other


def _uv(made: Environment, *words: str) -> None:
    ran = subprocess.run(
        [find_uv(), *words, "--quiet"],
        cwd=made.root,
        env={**outside(), "UV_PROJECT_ENVIRONMENT": str(made.folder)},
        text=True,
        capture_output=True,
        timeout=MAKING_SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
