"""What every test shares: the plugin that counts promises, a PostgreSQL server for those that ask for one, pytester for
the plugin's own tests, and hypothesis without a deadline, since a busy machine is no failure."""

import pytest
from hypothesis import settings

pytest_plugins = ["pytester", "tests.promises", "tests.postgres"]

settings.register_profile("dispatch", parent=settings(), deadline=None)
settings.load_profile("dispatch")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the steps of tests/histories anew, for a diff")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of one engine share its server, so one worker of pytest-xdist runs them all; it reads these marks next."""
    for item in items:
        room = item.path.relative_to(config.rootpath / "tests").parts[0]
        if room in ("airflow", "prefect", "demo"):
            item.add_marker(pytest.mark.xdist_group("airflow" if room == "demo" else room))
