"""One Prefect server, with our tables in its database, and one runner, for all tests of a session."""

import os
from collections.abc import Iterator

import pytest

from dispatch_core.environments import Environment
from tests.prefect.server import Prefect
from tests.prefect.versions import VARIABLE, environment_to_test


@pytest.fixture(scope="session")
def environment() -> Environment:
    """The locked one, unless `versions` is told otherwise."""
    return environment_to_test()


@pytest.fixture(scope="session")
def prefect(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prefect]:
    """A server that was set up once, and a runner that serves `flows`."""
    served = Prefect(environment, tmp_path_factory.mktemp("prefect"))
    with served.server(), served.started(environment.python, "tests/prefect/flows.py"):
        made = served.run(environment.python, "-m", "prefect_collection.setup")
        assert made.returncode == 0, made.stderr
        assert served.version == (os.environ.get(VARIABLE) or served.version)
        yield served
