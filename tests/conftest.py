"""What every test shares: the plugin that counts promises, a PostgreSQL and a MariaDB server for who asks for one,
pytester for the plugin's own tests, and hypothesis without a deadline, since a busy machine is no failure."""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import settings

pytest_plugins = [
    *("pytester", "tests.promises", "tests.tables", "tests.postgres", "tests.mariadb"),
    *("tests.slurm.sshd", "tests.slurm.beside"),
]

settings.register_profile("dispatch", parent=settings(), deadline=None)
settings.load_profile("dispatch")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the steps of tests/histories anew, for a diff")
    parser.addoption("--twin-seed", type=int, help="the seed of tests/twin, as a failed run has printed it")


@pytest.fixture(autouse=True, scope="module")
def _logs_as_before() -> Iterator[None]:
    """The simulator keeps its supervisors quiet; whoever comes after it wants to hear them."""
    log = logging.getLogger("dispatch_core")
    level = log.level
    yield
    log.setLevel(level)
