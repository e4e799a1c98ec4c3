"""The tables in Airflow's metadata database, made by Airflow's own commands."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from dispatch_core.stores import migrations
from tests.postgres import PostgresServer

OURS = {"dispatch_job", "dispatch_history", "dispatch_alembic_version"}
MANAGER = "airflow_provider.db.DispatchDBManager"

# Several commands of Airflow in one interpreter, which takes longer to start than any of them; after each, what the
# database then has.
COMMANDS = """
import json, os, sys
from airflow import settings
from airflow.cli.cli_parser import get_parser
from sqlalchemy import create_engine, inspect, text

told = open(sys.argv[1], "w")
url, commands = json.loads(sys.argv[2])
for words in commands:
    if words[0] == "db-manager":
        os.environ["AIRFLOW__DATABASE__EXTERNAL_DB_MANAGERS"] = words[2]
    arguments = get_parser().parse_args(words)
    try:
        failed = bool(arguments.func(arguments))
    except (SystemExit, Exception) as error:
        failed = repr(error)
    os.environ.pop("AIRFLOW__DATABASE__EXTERNAL_DB_MANAGERS", None)
    settings.Session.remove()  # else its transaction is in the way of the next command's
    engine = create_engine(url)
    with engine.connect() as connection:
        tables = inspect(connection).get_table_names()
        version = "dispatch_alembic_version"
        row = connection.execute(text(f"SELECT * FROM {version}")).scalar() if version in tables else None
    engine.dispose()
    print(json.dumps({"failed": failed, "tables": tables, "revision": row}), file=told, flush=True)
"""


class After:
    """What one command came to."""

    def __init__(self, line: str) -> None:
        found = json.loads(line)
        self.failed: bool | str = found["failed"]
        self.tables = set(found["tables"])
        self.revision: str | None = found["revision"]


def run(home: Path, url: str, *commands: str) -> list[After]:
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    words, told = [command.split() for command in commands], home / "told"
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, str(told), json.dumps([url, words])],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return [After(line) for line in told.read_text().splitlines()]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database for Airflow."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/airflow.db"
        return
    if find_spec("psycopg2") is None:
        pytest.skip("Airflow reaches PostgreSQL through psycopg2, which is not installed here")
    server: PostgresServer = request.getfixturevalue("postgres_server")
    address = server.url("airflow").replace("postgresql://", "postgresql+psycopg2://")
    maker = create_engine(address.replace("/airflow", "/postgres"), isolation_level="AUTOCOMMIT")
    with maker.connect() as connection:
        connection.execute(text("CREATE DATABASE airflow"))
    yield address
    with maker.connect() as connection:
        connection.execute(text("DROP DATABASE airflow WITH (FORCE)"))
    maker.dispose()


@pytest.mark.promise("A2")
def test_airflow_makes_checks_drops_and_makes_again(url: str, tmp_path: Path) -> None:
    made, checked, dropped, missing, made_again, checked_again, reset = run(
        tmp_path,
        url,
        "db migrate",
        "db check-migrations",
        f"db-manager downgrade {MANAGER} --to-revision base -y",
        # As on the day that dispatch is installed beside an Airflow that runs.
        "db check-migrations -t 1",
        "db migrate",
        "db check-migrations",
        "db reset -y",
    )
    for one in (made, checked, dropped, made_again, checked_again, reset):
        assert not one.failed
    assert missing.failed
    assert OURS | {"dag_run", "task_instance"} <= made.tables
    assert "dispatch_job" not in dropped.tables
    assert made_again.tables == made.tables
    assert reset.tables == made.tables
    assert made.revision == made_again.revision == reset.revision == migrations.newest()


@pytest.mark.promise("A2")
async def test_tables_made_by_dispatch_are_taken_over(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/airflow.db"
    await migrations.upgrade(url)
    made, checked = run(tmp_path, url, "db migrate", "db check-migrations")
    assert not made.failed
    assert not checked.failed
    assert made.revision == migrations.newest()
