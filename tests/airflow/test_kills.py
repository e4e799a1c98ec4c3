"""What befalls a task, and what becomes of its job: a real Airflow of separate programs, two triggerers, PostgreSQL.

Each scene tells a row of the table that is printed after the run. Runs are counted by what the payloads wrote of
themselves, leftovers by what is alive of them, and who cancelled by the record's history, read with plain SQL.
"""

import json
import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import pytest

from dispatch_core.demo import witness
from dispatch_core.demo.witness import Job
from dispatch_core.record import Result, State
from tests import tables
from tests.airflow.conftest import ENDED, OnPostgresql, Run

TABLE = "kills in Airflow"
SETTLED_SECONDS = 150.0

WHO = {
    "a trigger": r"airflow [0-9a-f-]{36} [0-9a-f]{8}",
    "the next try": r"airflow task \S+, try 2\b.*",
    "the task's worker": r"airflow task \S+, try 1\b.*",
    "the janitor": r"airflow janitor [0-9a-f-]{36}",
}
"""How those who may cancel sign their commits."""


class Told(NamedTuple):
    """One line that a run wrote."""

    key: str
    submission: int
    run: int
    what: str
    pid: int


@dataclass
class Scene(Run):
    """A run of a DAG whose job tells more of itself."""

    def told(self) -> list[Told]:
        path = self.folder / f"{self.mark}.runs"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [Told(key, int(submission), int(run), what, int(pid)) for key, submission, run, what, pid in lines]

    def jobs(self) -> list[Job]:
        return [*super().jobs(), *witness.jobs(self.airflow.rows, f"named/{self.mark}")]

    def wait_until_it_runs(self, starts: int = 1) -> None:
        """The task is deferred, and so many runs of its jobs have begun."""
        self.wait("its job runs", lambda: sum(told.what == "start" for told in self.told()) == starts)
        self.wait("it is deferred", lambda: set(self.states().values()) == {"deferred"})

    def leftovers(self) -> list[int]:
        """What is alive of its runs: payloads, and the runners that the spool knows."""
        payloads = [told.pid for told in self.told() if told.what == "start" and Path(f"/proc/{told.pid}").exists()]
        spool = self.airflow.folder / "room"
        objects = [object for job in self.jobs() for object in job.record.objects]
        runners = [witness.runner(spool, one.id, run) for one in objects for run in range(1, one.run + 1)]
        return payloads + [pid for pid in runners if pid is not None]

    # --- what people do

    def mark_task(self, state: str) -> None:
        self.airflow.page.ask("PATCH", f"{self._path}/taskInstances/job", {"new_state": state})

    def mark_run(self, state: str) -> None:
        self.airflow.page.ask("PATCH", self._path, {"state": state})

    def clear(self) -> None:
        asked = {"dag_run_id": self.id, "task_ids": ["job"], "dry_run": False, "only_failed": False}
        self.airflow.page.ask("POST", f"/dags/{self.dag}/clearTaskInstances", {**asked, "reset_dag_runs": True})

    @property
    def _path(self) -> str:
        return f"/dags/{self.dag}/dagRuns/{quote(self.id)}"

    # --- what must hold

    def state(self) -> str:
        (state,) = self.states().values()
        return state

    def wait_until_settled(self) -> None:
        self.wait("its records are settled", lambda: all(job.record.settled for job in self.jobs()), SETTLED_SECONDS)

    def who_cancelled(self, job: Job) -> str:
        """Whose commit it was that cancelled a job, in words."""
        assert job.record.outcome is not None
        change = self.airflow.rows(
            "SELECT actor FROM dispatch_history WHERE uid = ? AND revision = ?",
            job.record.uid,
            job.record.outcome.revision,
        )
        assert change == [{"actor": job.record.outcome.by}]
        return next(who for who, signs in WHO.items() if re.fullmatch(signs, job.record.outcome.by))

    def assert_cancelled(self, job: Job, by: str, why: str) -> None:
        assert job.record.outcome is not None
        assert (job.record.outcome.result, job.record.outcome.message) == (Result.CANCELLED, why)
        assert self.who_cancelled(job) == by

    def assert_over(self, *whats: str) -> None:
        """Every record is settled, nothing is alive, and the runs told just this, so that no two were at once."""
        assert [told.what for told in self.told()] == list(whats)
        assert self.leftovers() == []
        for job in self.jobs():
            assert (bool(job.row["settled"]), job.record.settled) == (True, True)
            assert {object.state for object in job.record.objects} <= {State.ENDED}
            assert len(job.opened) == sum(told.what == "start" for told in self.told() if told.key == job.record.key)

    def assert_goes_on_to_its_end(self) -> None:
        """Nobody has cancelled it, and once it may end, its one run does."""
        assert not any("cancel" in told.line for told in self.history())
        self.go()
        self.wait_until_done()
        self.wait_until_settled()
        assert self.state() == "success"
        self.assert_over("start", "end")

    def tell(self, request: pytest.FixtureRequest, event: str) -> None:
        """The row of the table."""
        outcomes = [job.record.outcome for job in self.jobs()]
        cancelled = [job for job in self.jobs() if job.record.outcome and job.record.outcome.result is Result.CANCELLED]
        tables.tell(
            request,
            TABLE,
            event=event,
            task=self.state(),
            job=", then ".join(str(outcome.result) for outcome in outcomes if outcome),
            who_cancelled=", ".join(self.who_cancelled(job) for job in cancelled) or "nobody",
            runs=sum(told.what == "start" for told in self.told()),
            at_once=1 + sum(told.what == "beside" for told in self.told()),
            leftovers=len(self.leftovers()),
            settled="yes" if all(job.record.settled for job in self.jobs()) else "NO",
        )


QUICK: dict[str, Callable[[Scene], None]] = {
    "marked failed": lambda scene: scene.mark_task("failed"),
    "marked success": lambda scene: scene.mark_task("success"),
    "cleared": lambda scene: scene.clear(),
    "DAG run set failed": lambda scene: scene.mark_run("failed"),
}
"""What is done to tasks side by side, which saves their time."""


@pytest.fixture(scope="module")
def two_triggerers(on_postgresql: OnPostgresql) -> OnPostgresql:
    """The Airflow with another triggerer, and a cluster on which there is room for all jobs at once."""
    room = {"type": "local", "spool": str(on_postgresql.folder / "room"), "slots": 20}
    on_postgresql.clusters.write_text(json.dumps({"clusters": {"room": room}}))
    on_postgresql.launch("triggerer", "second")
    on_postgresql.wait("two triggerers are heard", lambda: on_postgresql.triggerers() == 2, 120.0)
    return on_postgresql


@pytest.fixture(scope="module")
def quick(two_triggerers: OnPostgresql) -> dict[str, Scene]:
    """The runs of the quick scenes, once each has been dealt with."""
    scenes = {event: begin(two_triggerers, "kills", event.replace(" ", "-")) for event in QUICK}
    for event, act in QUICK.items():
        scenes[event].wait_until_it_runs()
        act(scenes[event])
    return scenes


def begin(airflow: OnPostgresql, dag: str, mark: str) -> Scene:
    run = airflow.begin(dag, mark)
    return Scene(run.airflow, run.dag, run.id, run.mark)


@pytest.mark.promise("A5")
@pytest.mark.case("T18")
@pytest.mark.parametrize(
    ("event", "states"),
    [
        ("marked failed", {"failed"}),
        ("marked success", {"success"}),
        ("DAG run set failed", ENDED),
    ],
)
def test_a_task_that_is_ended_by_somebody(
    quick: dict[str, Scene], request: pytest.FixtureRequest, event: str, states: set[str]
) -> None:
    scene = quick[event]
    scene.wait("its record is settled", lambda: scene.jobs() and scene.job().record.settled)
    assert scene.state() in states
    scene.assert_cancelled(scene.job(), "a trigger", f"its task is {scene.state()} in Airflow")
    scene.assert_over("start", "stopped")
    scene.tell(request, event)


@pytest.mark.promise("A5")
@pytest.mark.case("T18")
def test_a_task_that_is_cleared(quick: dict[str, Scene], request: pytest.FixtureRequest) -> None:
    scene = quick["cleared"]
    scene.wait_until_it_runs(starts=2)
    first, second = scene.jobs()
    assert (first.record.settled, second.record.outcome) == (True, None), "the one is gone before the other begins"
    scene.go()
    scene.wait_until_done()
    scene.wait_until_settled()
    assert scene.state() == "success"
    scene.assert_cancelled(first, "the next try", "its task was cleared in Airflow")
    scene.assert_over("start", "stopped", "start", "end")
    scene.tell(request, "cleared")


@pytest.mark.long
@pytest.mark.promise("A5")
def test_a_dag_run_that_takes_too_long(two_triggerers: OnPostgresql, request: pytest.FixtureRequest) -> None:
    scene = begin(two_triggerers, "kills_in_time", "in-time")
    scene.wait_until_it_runs()
    scene.wait_until_settled()
    assert scene.state() == "skipped"
    scene.assert_cancelled(scene.job(), "a trigger", "its task is skipped in Airflow")
    scene.assert_over("start", "stopped")
    scene.tell(request, "dagrun_timeout")


@pytest.mark.long
@pytest.mark.promise("A5")
def test_a_deferral_that_has_timed_out(two_triggerers: OnPostgresql, request: pytest.FixtureRequest) -> None:
    scene = begin(two_triggerers, "kills_deferral", "deferral")
    scene.wait("its job has an outcome", lambda: scene.jobs() and scene.job().record.outcome)
    scene.wait_until_done()
    scene.wait_until_settled()
    assert scene.state() == "failed"
    scene.assert_cancelled(scene.job(), "the task's worker", "its deferral has timed out in Airflow")
    scene.assert_over("start", "stopped")
    scene.tell(request, "deferral timed out")


@pytest.mark.long
@pytest.mark.promise("A5")
@pytest.mark.promise("P4")
def test_a_triggerer_that_was_only_slow(two_triggerers: OnPostgresql, request: pytest.FixtureRequest) -> None:
    """Its own program stops, and the triggers go on in the child that it forked: Airflow gives them away, and when it
    goes on it believes that a person has taken them, and kills them."""
    airflow = two_triggerers
    scene = begin(airflow, "kills", "replaced")
    scene.wait_until_it_runs()
    owner = scene.wait("a triggerer has the trigger", lambda: airflow.owner(scene))
    os.kill(airflow.pids[owner], signal.SIGSTOP)
    try:
        scene.wait("the other one has it", lambda: airflow.owner(scene) not in ("", owner))
        scene.wait("the other one runs it", lambda: scene.logged("attends to job") == 2)
    finally:
        os.kill(airflow.pids[owner], signal.SIGCONT)
    scene.wait("the first was told to kill it, and did not", lambda: scene.logged("goes on: its task is deferred"))
    scene.assert_goes_on_to_its_end()
    scene.tell(request, "triggerer stopped, continued")


@pytest.mark.long
@pytest.mark.promise("A5")
@pytest.mark.promise("A1")
def test_a_triggerer_that_dies(two_triggerers: OnPostgresql, request: pytest.FixtureRequest) -> None:
    """With -9; the other one takes its triggers."""
    airflow = two_triggerers
    scene = begin(airflow, "kills", "crashed")
    scene.wait_until_it_runs()
    owner = scene.wait("a triggerer has the trigger", lambda: airflow.owner(scene))
    airflow.crash(owner)
    try:
        scene.wait("the other one has it", lambda: airflow.owner(scene) not in ("", owner))
        scene.wait("the other one runs it", lambda: scene.logged("attends to job") == 2)
    finally:
        airflow.launch("triggerer", owner)
    scene.assert_goes_on_to_its_end()
    scene.tell(request, "triggerer ended with -9")


@pytest.mark.long
@pytest.mark.promise("A5")
def test_a_kill_that_nobody_was_told_of(two_triggerers: OnPostgresql, request: pytest.FixtureRequest) -> None:
    """No triggerer is up when a task is marked, when another is cleared, and when a third, with a job under a given
    key, is marked. The janitor's task, and the next try, find them; a healthy job beside them goes on."""
    airflow = two_triggerers
    marked, cleared, named, healthy = (
        begin(airflow, dag, mark)
        for dag, mark in (
            ("kills", "lost-marked"),
            ("kills", "lost-cleared"),
            ("kills_named", "lost-named"),
            ("kills", "lost-beside"),
        )
    )
    scenes = (marked, cleared, named, healthy)
    for scene in scenes:
        scene.wait_until_it_runs()
    for triggerer in ("triggerer", "second"):
        airflow.crash(triggerer)
    try:
        marked.mark_task("failed")
        named.mark_task("failed")
        cleared.clear()
        cleared.wait("the next try has deferred", lambda: cleared.instance()["try_number"] == 2)
        cleared.wait("it has cancelled the job", lambda: cleared.jobs()[0].record.outcome)
        janitor = airflow.run_dag("kills_janitor")
        for scene in (marked, named):
            scene.wait("the janitor clears it away", lambda scene=scene: scene.job().record.settled)
    finally:
        for triggerer in ("triggerer", "second"):
            airflow.launch("triggerer", triggerer)
    for scene in (marked, named):
        scene.assert_cancelled(scene.job(), "the janitor", "its task is failed in Airflow")
        scene.assert_over("start", "stopped")
    cleared.wait_until_it_runs(starts=2)
    cleared.go()
    cleared.wait_until_done()
    cleared.assert_cancelled(cleared.jobs()[0], "the next try", "its task was cleared in Airflow")
    cleared.assert_over("start", "stopped", "start", "end")
    airflow.wait("the janitor ends", lambda: airflow.page.run_state("kills_janitor", janitor) == "success", 120.0)
    healthy.assert_goes_on_to_its_end()
    marked.tell(request, "marked failed, no triggerer")
    named.tell(request, "the same, with a given key")
    cleared.tell(request, "cleared, no triggerer")
    healthy.tell(request, "nothing, beside the janitor")


@pytest.mark.long
@pytest.mark.promise("A4")
@pytest.mark.promise("P4")
def test_a_worker_that_outlives_its_supervisor(two_triggerers: OnPostgresql, request: pytest.FixtureRequest) -> None:
    """Airflow gives it up and starts another try; the first one submits the job once the second has done so."""
    scene = begin(two_triggerers, "kills_twice", "twice")
    begins = Path(scene.folder, "begins")
    scene.wait("the worker is in the task's code", begins.exists)
    child, supervisor = map(int, begins.read_text().split())
    os.kill(supervisor, signal.SIGKILL)
    scene.wait("another try has begun", lambda: scene.instance()["try_number"] == 2)
    scene.wait_until_it_runs()
    assert Path(f"/proc/{child}").exists(), "the worker of the first try is still there"
    begins.with_suffix(".go").touch()
    scene.wait("it has ended", lambda: not Path(f"/proc/{child}").exists())
    assert begins.with_suffix(".found").read_text() == scene.job().record.uid, "it has come to the same job"
    scene.assert_goes_on_to_its_end()
    scene.tell(request, "worker's supervisor ended with -9")
