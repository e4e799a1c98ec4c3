"""Slurm clusters for the tests: one a file that asks for it, tidied after each test, its logs shown with a failure."""

from collections.abc import Iterator

import pytest

from tests.slurm import scenes
from tests.slurm.cluster import Cluster, Options, running, why_not
from tests.slurm.stage import HEAD


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.failed:
        for name in ("cluster", "accounting_cluster"):
            if isinstance(shown := getattr(item, "funcargs", {}).get(name), Cluster):
                report.sections.append((f"logs of the {name}", shown.tails()))
    return report


@pytest.fixture(scope="module")
def whole_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Without accounting; a module's OPTIONS are its own."""
    if reason := why_not():
        pytest.skip(reason)
    with running(getattr(request.module, "OPTIONS", Options())) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def whole_accounting_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    if reason := why_not(accounting=True):
        pytest.skip(reason)
    with running(getattr(request.module, "OPTIONS", Options())._replace(accounting=True)) as cluster:
        yield cluster


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Iterator[Cluster]:
    yield whole_cluster
    whole_cluster.tidy()


@pytest.fixture
def accounting_cluster(whole_accounting_cluster: Cluster) -> Iterator[Cluster]:
    yield whole_accounting_cluster
    whole_accounting_cluster.tidy()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table of the scenes, where this very program has played them: with `-n 0`."""
    if scenes.TABLE:
        terminalreporter.section("scenes on a real cluster")
        for line in [HEAD, *scenes.TABLE]:
            terminalreporter.write_line(line)
