"""Real jobs in a real Airflow of four programs, through what befalls its workers and triggerers.

Runs are counted by the lines that the payloads wrote; the record is read from Airflow's own database with plain SQL.
"""

import json
import os
import signal
from pathlib import Path
from urllib.parse import quote, urlencode

import httpx
import pytest
from cryptography.fernet import Fernet

from dispatch_core.demo.witness import Line
from dispatch_core.plan import Cause
from dispatch_core.record import Result
from dispatch_core.stores.messages import PREFIX
from dispatch_core.web.listing import Which
from tests.airflow.conftest import Airflow, Run, assert_settled

LISTED_SECONDS = 10.0


@pytest.mark.promise("A1")
@pytest.mark.promise("A2")
def test_the_row_is_in_airflows_own_database_beside_its_dag_run(airflow: Airflow) -> None:
    run = airflow.begin("plain", "row")
    run.wait_until_it_runs()
    slots = airflow.rows("SELECT count(*) AS n FROM task_instance WHERE state IN ('running', 'queued')")
    assert slots == [{"n": 0}], "a worker waits with it"
    link = f"{airflow.page.url}/dispatch/job?{urlencode({'key': run.job().record.key, 'uid': run.job().record.uid})}"
    links = f"/dags/plain/dagRuns/{quote(run.id)}/taskInstances/job/links"
    assert airflow.page.ask("GET", links)["extra_links"] == {"dispatch job": link}, "while the task is deferred"
    run.go()
    run.wait_until_done()
    run.assert_one_run()
    assert airflow.page.ask("GET", links)["extra_links"] == {"dispatch job": link}, "and after its end"
    both = airflow.rows(
        "SELECT d.dag_id, d.run_id, j.key, j.revision FROM dag_run d JOIN dispatch_job j"
        " ON j.key = 'airflow/' || d.dag_id || '/' || d.run_id || '/job/-1/0' WHERE d.run_id = ?",
        run.id,
    )
    assert [(row["dag_id"], row["revision"]) for row in both] == [("plain", run.job().record.revision)]
    assert (
        len(airflow.rows("SELECT * FROM dispatch_history WHERE uid = ?", run.job().record.uid)) == both[0]["revision"]
    )


@pytest.mark.promise("A1")
def test_a_triggerer_that_is_killed_and_replaced_loses_nothing(airflow: Airflow) -> None:
    run = airflow.begin("plain", "killed")
    run.wait_until_it_runs()
    run.wait("it is supervised", lambda: run.job().row["lease_owner"])
    airflow.crash("triggerer")
    run.go()  # it ends while nobody supervises it
    airflow.restart("triggerer")
    run.wait_until_done()
    run.assert_one_run()
    supervisors = {told.actor for told in run.history()[1:]}
    assert len(supervisors) == 2


@pytest.mark.promise("A4")
def test_a_worker_lost_between_the_record_and_deferring_is_made_up_for(airflow: Airflow) -> None:
    run = airflow.begin("lost_worker")
    stopped = Path(run.folder, "stopped")
    run.wait("the worker has made the record and not deferred", stopped.exists)
    first = run.job()
    assert (run.lines(), first.record.submissions) == ([], ()), "a worker launches nothing"
    was = run.instance()
    for pid in map(int, stopped.read_text().split()):
        os.kill(pid, signal.SIGKILL)
    run.wait("another try has begun", lambda: run.instance()["try_number"] == 2)
    run.wait_until_it_runs()
    assert run.instance()["id"] != was["id"]
    run.go()
    run.wait_until_done()
    run.assert_one_run()
    assert run.job().record.uid == first.record.uid


@pytest.mark.promise("P4")
@pytest.mark.promise("A1")
def test_two_triggerers_that_run_one_trigger_run_one_job(airflow: Airflow, second_triggerer: str) -> None:
    """The first one's own program stops, and its triggers go on in the child that it forked: Airflow gives them away,
    and when it goes on, it believes that they were taken from it by a person, and kills them."""
    run = airflow.begin("plain", "twice")
    run.wait_until_it_runs()
    owner = run.wait("a triggerer has the trigger", lambda: airflow.owner(run))
    os.kill(airflow.pids[owner], signal.SIGSTOP)
    try:
        run.wait("the other one has it", lambda: airflow.owner(run) not in ("", owner))
        run.wait("the other one runs it", lambda: run.logged("attends to job") == 2)
    finally:
        os.kill(airflow.pids[owner], signal.SIGCONT)
    run.wait("the first one was told to kill it, and did not", lambda: run.logged("goes on: its task is deferred"))
    run.go()
    run.wait_until_done()
    run.assert_one_run()
    assert not any("cancel" in told.line for told in run.history())


@pytest.mark.promise("A3")
def test_twenty_deferred_operators_list_the_spool_once_a_second_in_all(airflow: Airflow) -> None:
    run = airflow.begin("twenty")
    run.wait("all are deferred", lambda: list(run.states().values()) == ["deferred"] * 20, 240.0)
    run.wait("all triggers share the listings", lambda: airflow.listings().triggers == 20)
    began = airflow.listings()
    run.wait("ten seconds later", lambda: airflow.listings().seconds > began.seconds + LISTED_SECONDS)
    ended = airflow.listings()
    assert (began.triggers, ended.triggers) == (20, 20)
    assert 0 < ended.count - began.count <= (ended.seconds - began.seconds) + 1
    run.go()
    run.wait("all have ended", lambda: set(run.states().values()) == {"success"}, 240.0)
    jobs = run.jobs()
    assert len(jobs) == 20
    for job in jobs:
        assert job.opened == [(1, 1)]
        assert_settled(job)
    for number in range(20):
        assert run.lines(f"twenty-{number}") == [
            Line(submission=1, run=1, what="start"),
            Line(submission=1, run=1, what="end"),
        ]
    assert max(airflow.blocked(), default=0.0) < 5.0, "the loop of the triggerer stood still"


@pytest.mark.long
@pytest.mark.promise("A4")
def test_a_retry_policy_is_asked_about_a_job_that_failed(airflow: Airflow) -> None:
    """It lets the first failure be tried again, by exit code, and the second not, though there are tries left."""
    run = airflow.begin("policy")
    run.wait_until_done()
    instance = run.instance()
    assert (instance["state"], instance["try_number"], instance["max_tries"]) == ("failed", 2, 3)
    jobs = sorted(run.jobs(), key=lambda job: job.record.key)
    ends = [(job.record.key[-2:], job.record.outcome) for job in jobs]
    assert [(key, end.result, end.cause, end.exit_code) for key, end in ends if end is not None] == [
        ("/0", Result.FAILED, Cause.EXIT, 75),
        ("/1", Result.FAILED, Cause.EXIT, 3),
    ]
    assert run.lines() == [Line(submission=1, run=1, what="start")] * 2
    told = run.logged("the job asked for another one"), run.logged("cause exit")
    assert min(told) == 1, "the policy's own words"
    (xcom,) = airflow.rows("SELECT value FROM xcom WHERE run_id = ? AND key = 'dispatch_result'", run.id)
    assert json.loads(xcom["value"])["exit_code"] == 3


@pytest.mark.promise("A1")
def test_a_task_that_waits_in_its_worker(airflow: Airflow) -> None:
    run = airflow.begin("in_worker", "stays")
    run.wait("its job runs", run.lines)
    assert set(run.states().values()) == {"running"}
    run.go()
    run.wait_until_done()
    run.assert_one_run()
    assert run.logged("submission 1 is authorized") == 1


@pytest.mark.long
@pytest.mark.promise("A5")
def test_a_task_that_waits_in_its_worker_is_marked_failed(airflow: Airflow) -> None:
    run = airflow.begin("in_worker", "ended")
    run.wait("its job runs", run.lines)
    airflow.page.ask("PATCH", f"/dags/in_worker/dagRuns/{run.id}/taskInstances/job", {"new_state": "failed"})
    run.wait("its job is cancelled", lambda: run.job().record.outcome)
    outcome = run.job().record.outcome
    assert outcome is not None
    assert (outcome.result, outcome.message) == (Result.CANCELLED, "its task is failed in Airflow")
    run.wait("its run is stopped", lambda: any("ended: " in told.line for told in run.history()))
    assert run.lines() == [Line(submission=1, run=1, what="start")]


def test_no_secret_is_in_any_row_log_or_message(airflow: Airflow) -> None:
    """The job prints its own; so its log on the scheduler has it, and what Airflow shows of that log does not."""
    away = airflow.begin("marked_away")
    run = airflow.begin("marked")
    run.wait_until_it_runs()
    kept = shown(airflow, run)
    key = Fernet(airflow.settings["AIRFLOW__CORE__FERNET_KEY"])
    rows = [row["kwargs"] for row in airflow.rows("SELECT kwargs FROM trigger")]
    kept += [text if text.startswith("{") else key.decrypt(text).decode() for text in rows]
    assert any(run.job().record.uid in kwargs for kwargs in kept), "the trigger's row"
    tables = [row["name"] for row in airflow.rows("SELECT name FROM sqlite_master WHERE type = 'table'")]
    kept += [f"{table}: {row}" for table in tables for row in airflow.rows(f'SELECT * FROM "{table}"')]
    away.wait("both have found no database", lambda: away.logged("the store postgresql://ann:***@") >= 2)
    for name in ("uri", "url"):
        airflow.page.ask("PATCH", f"/dags/marked_away/dagRuns/{away.id}/taskInstances/{name}", {"new_state": "failed"})
    run.go()
    run.wait_until_done()
    assert run.states() == {("job", -1): "failed"}
    kept += shown(airflow, run)
    kept += [f"{table}: {row}" for table in tables for row in airflow.rows(f'SELECT * FROM "{table}"')]
    logs = [*(airflow.folder / "logs").rglob("*"), *(airflow.shelter.log(name) for name in airflow.pids)]
    kept += [f"{path}: {path.read_text(errors='replace')}" for path in logs if path.is_file()]
    for path in ("", "/xcomEntries", "/xcomEntries/dispatch_result", "/xcomEntries/dispatch_job", "/logs/1"):
        asked = f"/dags/marked/dagRuns/{run.id}/taskInstances/job{path}"
        kept.append(json.dumps(airflow.page.ask("GET", asked)))
    for bait in airflow.bait:
        assert [text[:300] for text in kept if bait in text] == []
    written = [path.read_text(errors="replace") for path in airflow.spool.rglob("*") if path.is_file()]
    assert any(airflow.bait[0] in text for text in written), "the job had it"
    assert run.logged("the token is ***.") >= 1


def shown(airflow: Airflow, run: Run) -> list[str]:
    """What the plugin's pages, and the store behind them, show of a run's job, and of its DAG run's list."""
    job = run.job().record
    names = {"dag_id": run.dag, "run_id": run.id, "task_id": "job", "map_index": "-1"}
    told = {"username": airflow.page.user, "password": airflow.page.password}
    with httpx.Client(base_url=airflow.page.url, timeout=60.0, follow_redirects=True) as client:
        token = client.post("/auth/token", json=told).raise_for_status().json()["access_token"]
        client.headers["authorization"] = f"Bearer {token}"
        one = {"key": job.key, "uid": job.uid}
        answers = [client.get("/dispatch/", params={"show": show}) for show in Which]
        answers += [
            client.get("/dispatch/job", params={**one, "history": "all"}),
            client.get("/dispatch/job/cancel", params=one),
            client.get("/dispatch/of", params=names),
            client.get(f"/dispatch{PREFIX}/record", params=one),
            client.get(f"/dispatch{PREFIX}/history", params=one),
            client.post(f"/dispatch{PREFIX}/jobs", json={}),
            client.get("/api/v2/connections"),
            client.get("/api/v2/connections/dispatch_default"),
        ]
    told_of = [answer.text for answer in answers if job.key in answer.text]
    assert len(told_of) >= 7, "the list, the job, the question, the way to it, and the store's three answers"
    return [f"{answer.url}: {answer.text}" for answer in answers]
