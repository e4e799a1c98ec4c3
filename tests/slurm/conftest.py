"""Slurm clusters for the tests: one a file that asks for it, tidied after each test, its logs shown with a failure."""

from collections.abc import Generator, Iterator

import pytest

from tests.slurm.cluster import Cluster, running, why_not
from tests.slurm.configuration import Options

SHARED = ("cluster", "accounting_cluster")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, Cluster) and value.folder.exists() and name in SHARED:
                report.sections.append((f"logs of the {name}", value.tails()))
    return report


def of_module(request: pytest.FixtureRequest, *, accounting: bool) -> Iterator[Cluster]:
    """A module's OPTIONS are its own."""
    options: Options = getattr(request.module, "OPTIONS", Options())._replace(accounting=accounting)
    if reason := why_not(options):
        pytest.skip(reason)
    with running(options) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def whole_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    yield from of_module(request, accounting=False)


@pytest.fixture(scope="module")
def whole_accounting_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    yield from of_module(request, accounting=True)


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Iterator[Cluster]:
    """The file's cluster without accounting."""
    yield whole_cluster
    whole_cluster.tidy()


@pytest.fixture
def accounting_cluster(whole_accounting_cluster: Cluster) -> Iterator[Cluster]:
    """The file's cluster with accounting."""
    yield whole_accounting_cluster
    whole_accounting_cluster.tidy()
