"""The tests that import Prefect, run in Prefect's own environment."""

import subprocess

import pytest

from dispatch_core.environments import Environment, outside

TOGETHER = ("-q", "-n", "4", "--dist", "worksteal", "-p", "no:cacheprovider")
"""They wait more than they work."""


@pytest.mark.promise("F1")
def test_inside_the_engines_environment(environment: Environment) -> None:
    ran = subprocess.run(
        [environment.python, "-m", "pytest", *TOGETHER, "tests/prefect/inside"],
        cwd=environment.root,
        env=outside(),
        text=True,
        capture_output=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "skipped" not in ran.stdout.splitlines()[-1]
