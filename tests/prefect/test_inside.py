"""The tests that import Prefect, run in Prefect's own environment, one file at a time."""

import subprocess
from pathlib import Path

import pytest

from dispatch_core.environments import Environment, outside

QUIET = ("-q", "-n", "0", "-p", "no:cacheprovider")
FILES = sorted(Path(__file__).with_name("inside").glob("test_*.py"))


@pytest.mark.promise("F1")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_inside_the_engines_environment(environment: Environment, file: Path) -> None:
    ran = subprocess.run(
        [environment.python, "-m", "pytest", *QUIET, file.relative_to(environment.root)],
        cwd=environment.root,
        env=outside(),
        text=True,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "skipped" not in ran.stdout.splitlines()[-1]
