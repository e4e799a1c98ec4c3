"""What befalls a flow run, and what becomes of its job: a real Prefect server and runner, and the service beside them.

Each scene tells a row of the table that is printed after the run; the scenes of `test_server` tell theirs. First those
without a service, then those that need one.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg2
import psycopg2.extras
import pytest

from dispatch_core.environments import Environment
from dispatch_core.record import Result
from tests.postgres import PostgresServer
from tests.prefect.runs import Run, check_cancelled, is_alive, settle
from tests.prefect.server import Prefect, until

pytestmark = [pytest.mark.long, pytest.mark.promise("F1")]


@pytest.fixture(scope="module")
def early(prefect: Prefect, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Run]]:
    """Flow runs that are begun together: a machine with two cores runs two jobs at once."""
    folder = tmp_path_factory.mktemp("scenes")
    started = {name: Run(prefect, name, folder / name) for name in ("retrying", "trying")}
    yield started
    for one in started.values():
        one.end()


@pytest.fixture
def run(request: pytest.FixtureRequest, prefect: Prefect, tmp_path: Path) -> Iterator[Run]:
    """A flow run of the flow that the test names."""
    begun = Run(prefect, request.param, tmp_path / request.param)
    yield begun
    begun.end()


def check_ran_once(run: Run, processes: int) -> None:
    """One launch, one run, no budget spent, nothing left, and as many processes of the flow."""
    settle(run.prefect)
    record = run.record
    assert record.outcome is not None
    assert (record.outcome.result, record.settled, len(record.submissions)) == (Result.SUCCEEDED, True, 1)
    assert record.budget == ()
    assert [word for word in run.words("lines") if not word.isdecimal()] == ["began", "ended"]
    until(lambda: not run.leftovers(), "nothing of it is alive", 30)
    assert len(run.processes) == processes


def cancel(run: Run) -> None:
    run.prefect.set_state(run.id, "CANCELLING", "Cancelling")


def until_settled(run: Run) -> None:
    until(lambda: run.record.settled, f"the job of flow run {run.id} is settled", 120)


@pytest.mark.promise("A4")
def test_a_task_that_is_retried_after_its_time_limit(early: dict[str, Run], request: pytest.FixtureRequest) -> None:
    run = early["trying"]
    run.until_it_runs()
    query = "SELECT run_count FROM task_run WHERE flow_run_id = ? AND run_count > 1"
    until(lambda: run.prefect.rows(query, run.id), "the task is tried again")
    (run.folder / "go").touch()
    run.until_state("COMPLETED")
    check_ran_once(run, processes=1)
    run.tell(request, "task retried after its time limit")


@pytest.mark.promise("A4")
def test_a_flow_that_is_retried(early: dict[str, Run], request: pytest.FixtureRequest) -> None:
    run = early["retrying"]
    run.until_it_runs()
    (run.folder / "go").touch()
    run.until_state("COMPLETED")
    assert (run.folder / "failed").exists()
    check_ran_once(run, processes=2)  # the same one, twice
    run.tell(request, "flow retried")


@pytest.mark.promise("A5")
@pytest.mark.parametrize("run", ["calling"], indirect=True)
def test_a_sync_flow_that_is_cancelled(run: Run, request: pytest.FixtureRequest) -> None:
    run.until_it_runs()
    cancel(run)
    run.until_state("CANCELLED")
    check_cancelled(run.prefect, run)
    run.tell(request, "cancelled, sync")


@pytest.mark.promise("A5")
@pytest.mark.parametrize("run", ["limited"], indirect=True)
def test_a_time_limit_that_cancels(run: Run, request: pytest.FixtureRequest) -> None:
    run.until_state("FAILED")
    settle(run.prefect)
    record = run.record
    assert record.outcome is not None
    assert (record.outcome.result, record.settled, len(run.payloads)) == (Result.CANCELLED, True, 1)
    assert "time limit" in record.outcome.message
    until(lambda: not run.leftovers(), "nothing of it is alive", 30)
    run.tell(request, "time limit, on_timeout=cancel")


@pytest.mark.promise("A5")
@pytest.mark.parametrize("run", ["unheard"], indirect=True)
def test_what_was_submitted_is_cancelled_by_the_service(run: Run, request: pytest.FixtureRequest) -> None:
    """No cancel reaches the task, and there is no hook."""
    with run.prefect.service():
        run.until_it_runs()
        cancel(run)
        until(lambda: run.record.outcome, "the service has heard of it", 60)
        run.until_state("CANCELLED")
        until_settled(run)
    check_cancelled(run.prefect, run)
    run.tell(request, "cancelled, .submit()ed, with the service")


@pytest.mark.promise("A5")
@pytest.mark.case("T18")
@pytest.mark.parametrize("run", ["training"], indirect=True)
def test_a_cancel_while_it_waits_to_be_run_again(run: Run, request: pytest.FixtureRequest) -> None:
    """There is no process, and no hook is called: a crashed flow run that is to be run again in an hour."""
    run.until_it_runs()
    os.kill(run.processes[0], signal.SIGKILL)
    run.until_state("CRASHED")
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    state = {"type": "SCHEDULED", "name": "AwaitingRetry", "state_details": {"scheduled_time": later}}
    answer = run.prefect.ask("POST", f"/flow_runs/{run.id}/set_state", {"state": state})
    assert answer["status"] == "ACCEPT", answer
    assert run.record.outcome is None
    run.prefect.ask("POST", f"/flow_runs/{run.id}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})
    with run.prefect.service():
        until_settled(run)
    check_cancelled(run.prefect, run)
    run.tell(request, "cancelled while scheduled, no process")


@pytest.mark.promise("O3")
@pytest.mark.parametrize("run", ["suspending"], indirect=True)
def test_a_suspended_flow_run_whose_service_was_ended(run: Run, request: pytest.FixtureRequest) -> None:
    """With -9, while the job runs, which ends meanwhile. The next service resumes the flow run."""
    with run.prefect.service() as service:
        run.until_it_runs()
        run.until_state("PAUSED")
        until(lambda: not any(map(is_alive, run.processes)), "its process has ended", 60)
        os.killpg(service.pid, signal.SIGKILL)
        service.wait()
        (run.folder / "go").touch()
        until(lambda: "ended" in run.words("lines"), "the job has ended", 60)
        assert run.record.outcome is None, "nobody has looked"
        assert run.prefect.state(run.id) == "PAUSED"
    with run.prefect.service():
        run.until_state("COMPLETED")
        until_settled(run)
    check_ran_once(run, processes=2)
    run.tell(request, "suspended, service ended with -9, resumed")


@pytest.mark.case("T54")
@pytest.mark.parametrize("run", ["delaying"], indirect=True)
def test_an_outcome_before_the_suspend(run: Run, request: pytest.FixtureRequest) -> None:
    """Whatever the service was told of the outcome came too early; it looks again."""
    with run.prefect.service():
        run.until_it_runs()
        (run.folder / "go").touch()
        until_settled(run)
        assert run.prefect.state(run.id) == "RUNNING"
        (run.folder / "outcome").touch()
        run.until_state("COMPLETED")
    check_ran_once(run, processes=2)
    run.tell(request, "outcome before the suspend, resumed")


class OnPostgresql(Prefect):
    """A Prefect server whose database is a PostgreSQL one."""

    url_of_database = ""

    def rows(self, query: str, *values: str) -> list[dict[str, object]]:
        connection = psycopg2.connect(self.url_of_database, options="-c search_path=dispatch,public")
        try:
            with connection.cursor(cursor_factory=psycopg2.extras.RealDictCursor) as cursor:
                cursor.execute(query.replace("?", "%s"), values)
                return [dict(row) for row in cursor.fetchall()]
        finally:
            connection.close()


def test_the_servers_database_is_reset(
    environment: Environment,
    postgres_server: PostgresServer,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """All that Prefect knew is gone, the flow run with it, and dispatch's schema is not: the job goes on to its end."""
    with closing(psycopg2.connect(postgres_server.url("postgres"))) as connection:
        connection.autocommit = True
        connection.cursor().execute("CREATE ROLE prefect SUPERUSER LOGIN")
        connection.cursor().execute("CREATE DATABASE prefect OWNER prefect")
    url = postgres_server.url("prefect").replace("//dispatch@", "//prefect@")
    settings = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": url.replace("postgresql:", "postgresql+asyncpg:")}
    prefect = OnPostgresql(environment, tmp_path, settings)
    prefect.url_of_database = url
    setting_up = (environment.python, "-m", "prefect_collection.setup")
    with prefect.server():
        made = prefect.run(*setting_up)
        assert made.returncode == 0, made.stderr
        with prefect.started(environment.python, "tests/prefect/flows.py"):
            run = Run(prefect, "training", tmp_path / "reset")
            run.until_it_runs()
            os.kill(run.processes[0], signal.SIGKILL)
        reset = prefect.run(environment.bin / "prefect", "server", "database", "reset", "-y")
        assert reset.returncode == 0, reset.stderr
        assert not prefect.knows(run.id)
        refused = prefect.run(environment.python, "-m", "dispatch_core", "supervise", "--once", "--prefect")
        assert (refused.returncode, "prefect_collection.setup" in refused.stderr) == (10, True), refused.stderr
        made = prefect.run(*setting_up)
        assert made.returncode == 0, made.stderr
        assert run.record.outcome is None
        with prefect.service():
            (run.folder / "go").touch()
            until_settled(run)
        record = run.record
        assert record.outcome is not None
        assert (record.outcome.result, len(record.submissions), len(run.payloads)) == (Result.SUCCEEDED, 1, 1)
        assert run.leftovers() == []
        run.tell(request, "server's PostgreSQL reset, flow process ended")
