"""One Prefect server, with our tables in its database, and one runner, for all tests of a session."""

from collections.abc import Iterator

import pytest

from dispatch_core.environments import Environment, make_environment
from tests.prefect.server import Prefect


@pytest.fixture(scope="session")
def environment() -> Environment:
    return make_environment("prefect", dev=True)


@pytest.fixture(scope="session")
def prefect(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prefect]:
    """A server that was set up once, and a runner that serves `flows`."""
    served = Prefect(environment, tmp_path_factory.mktemp("prefect"))
    with served.server(), served.started(environment.python, "tests/prefect/flows.py"):
        made = served.run(environment.python, "-m", "prefect_collection.setup")
        assert made.returncode == 0, made.stderr
        yield served
