"""The tables in Airflow's metadata database, made by Airflow's own commands."""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, text

from dispatch_core.stores import migrations
from tests.postgres import PostgresServer

OURS = {"dispatch_job", "dispatch_history", "dispatch_alembic_version"}


class Airflow:
    """An Airflow that has nothing but a database."""

    def __init__(self, home: Path, url: str) -> None:
        self.url = url
        self.environment = {
            **os.environ,
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url,
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        }

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "airflow", *words],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )

    def tables(self) -> set[str]:
        engine = create_engine(self.url)
        try:
            return set(inspect(engine).get_table_names())
        finally:
            engine.dispose()

    def revision(self) -> str | None:
        engine = create_engine(self.url)
        try:
            with engine.connect() as connection:
                return connection.execute(text("SELECT version_num FROM dispatch_alembic_version")).scalar()
        finally:
            engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def airflow(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Airflow]:
    if request.param == "sqlite":
        yield Airflow(tmp_path, f"sqlite:///{tmp_path}/airflow.db")
        return
    if find_spec("psycopg2") is None:
        pytest.skip("Airflow reaches PostgreSQL through psycopg2, which is not installed here")
    server: PostgresServer = request.getfixturevalue("postgres_server")
    address = server.url("airflow").replace("postgresql://", "postgresql+psycopg2://")
    maker = create_engine(address.replace("/airflow", "/postgres"), isolation_level="AUTOCOMMIT")
    with maker.connect() as connection:
        connection.execute(text("CREATE DATABASE airflow"))
    yield Airflow(tmp_path, address)
    with maker.connect() as connection:
        connection.execute(text("DROP DATABASE airflow WITH (FORCE)"))
    maker.dispose()


@pytest.mark.promise("A2")
def test_airflow_makes_checks_drops_and_makes_again(airflow: Airflow) -> None:
    migrated = airflow.run("db", "migrate")
    assert migrated.returncode == 0, migrated.stderr
    assert OURS | {"dag_run", "task_instance"} <= airflow.tables()
    assert airflow.revision() == migrations.newest()
    assert airflow.run("db", "check-migrations").returncode == 0

    # A database that has Airflow's tables and none of ours, as on the day that dispatch is installed.
    manager = "airflow_provider.db.DispatchDBManager"
    named = {"AIRFLOW__DATABASE__EXTERNAL_DB_MANAGERS": manager}
    downgraded = airflow.run("db-manager", "downgrade", manager, "--to-revision", "base", "-y", **named)
    assert downgraded.returncode == 0, downgraded.stderr
    assert "dispatch_job" not in airflow.tables()
    assert airflow.run("db", "check-migrations", "-t", "1").returncode == 1
    assert airflow.run("db", "migrate").returncode == 0
    assert airflow.run("db", "check-migrations").returncode == 0
    assert {"dispatch_job", "dispatch_history"} <= airflow.tables()

    reset = airflow.run("db", "reset", "-y")
    assert reset.returncode == 0, reset.stderr
    assert airflow.tables() >= OURS
    assert airflow.revision() == migrations.newest()


@pytest.mark.promise("A2")
async def test_tables_made_by_dispatch_are_taken_over(tmp_path: Path) -> None:
    airflow = Airflow(tmp_path, f"sqlite:///{tmp_path}/airflow.db")
    await migrations.upgrade(airflow.url)
    assert airflow.run("db", "migrate").returncode == 0
    assert airflow.run("db", "check-migrations").returncode == 0
    assert await migrations.current(airflow.url) == migrations.newest()
