"""What the demo does to one real job, and what it checks afterwards.

One rule: a check compares what two sources say that do not know of each other, and says both. An act that cannot be
carried out is an error, never a check that is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dispatch_core.demo import witness
from dispatch_core.demo.throwaway import ThrowawayAirflow
from dispatch_core.demo.witness import Job
from dispatch_core.errors import DispatchError
from dispatch_core.plan import Value
from dispatch_core.record import Record, Result

DAG, NAME = "dispatch_example", "train"
RUN_SECONDS = 60
"""How long a run of the example takes: as long as it takes to start another triggerer, and to let the lease of the one
before it run out. If it is shorter, it ends unsupervised, and that shows as much."""

BEGINNING_SECONDS = 150.0
TAKING_OVER_SECONDS = 120.0
ENDING_SECONDS = 240.0


class Check(Value, frozen=True):
    """One thing that was to be shown."""

    name: str
    held: bool
    found: str


class Play(Value, frozen=True):
    """All that the acts have left behind."""

    run: str
    """The DAG run's id."""
    state: str
    """What Airflow's API says of the task."""
    tries: int
    job: Job
    jobs: int
    lines: tuple[witness.Line, ...]
    history: tuple[witness.Told, ...]
    dag_run: dict[str, Any]
    first: str
    """The object whose run was ended as by the end of its node."""
    second: str
    """The object whose run was under way when the triggerer was ended."""


def perform(airflow: ThrowawayAirflow, file: Path, say: Callable[[str], None]) -> Play:
    """Run the example, lose the node of its first run, and then the triggerer during the second; see it to its end."""
    run = airflow.run_dag(DAG, {"seconds": RUN_SECONDS})
    say(f"the DAG {DAG} runs as {run}")
    airflow.wait("the first run has begun", lambda: witness.lines(file), BEGINNING_SECONDS)
    airflow.wait("the task is deferred", lambda: airflow.page.state(DAG, run, NAME) == "deferred", 60.0)
    first = _job(airflow).record.submissions[0].canonical or ""
    say(f"its task is deferred, and no worker waits with it; its job runs as object {first}")

    pid = witness.fail_node(airflow.spool, first, 1)
    say(f"the runner of that run, pid {pid}, is ended with SIGKILL: to the job, its node has failed")
    airflow.wait("the second run has begun", lambda: len(witness.lines(file)) > 1, BEGINNING_SECONDS)
    second = _job(airflow).record.submissions[1].canonical or ""
    runner = witness.runner(airflow.spool, second, 1)
    say(f"the record has authorized a second submission, and it runs as object {second}, runner {runner}")

    before = airflow.wait("it is supervised", lambda: _job(airflow).row["lease_owner"], TAKING_OVER_SECONDS)
    airflow.crash("triggerer")
    say("the triggerer, and with it the job's supervisor, is ended with SIGKILL")
    airflow.restart("triggerer")
    goes_on = runner is not None and witness.runner(airflow.spool, second, 1) == runner
    say(f"another triggerer is up; nobody supervised the run meanwhile, and it {'goes on' if goes_on else 'has ended'}")
    airflow.wait("it is taken over", lambda: _job(airflow).row["lease_owner"] != before, TAKING_OVER_SECONDS)
    say("the lease of the lost one has run out, and the new triggerer supervises the job")

    airflow.wait("the task has ended", lambda: _ended(airflow, run), ENDING_SECONDS)
    airflow.wait("the DAG run has ended", lambda: airflow.page.run_state(DAG, run) in ("success", "failed"), 60.0)
    instance = next(row for row in airflow.page.instances(DAG, run) if row["task_id"] == NAME)
    say(f"the job is done, and its task has ended: {instance['state']}")
    job = _job(airflow)
    return Play(
        run=run,
        state=instance["state"],
        tries=instance["try_number"],
        job=job,
        jobs=len(witness.jobs(airflow.rows)),
        lines=tuple(witness.lines(file)),
        history=tuple(witness.history(airflow.rows, job.record.uid)),
        dag_run=airflow.rows("SELECT id, dag_id, run_id, state FROM dag_run WHERE run_id = ?", run)[0],
        first=first,
        second=second,
    )


def checks(play: Play) -> list[Check]:
    """What was to be shown, and whether it was."""
    second = causes(play.job.record, play.second)
    attended = {told.actor for told in play.history} - {play.history[0].actor}
    return [
        Check(name="finished", held=play.state == "success", found=f"Airflow says that the task is {play.state}"),
        Check(
            name="one_job",
            held=play.jobs == 1 and play.tries == 1,
            found=f"{_count(play.jobs, 'job')} in dispatch_job, {_count(play.tries, 'try', 'tries')} of the task",
        ),
        Check(
            name="triggerer_lost",
            held=second == ["completed"] and len(attended) == 2,
            found=f"{_count(len(attended), 'supervisor')} wrote its history; the run under way ended as {_or(second)}",
        ),
        *checks_of_job(play),
        Check(
            name="row_beside_dag_run",
            held=play.dag_run["state"] == "success" and f"/{DAG}/" in play.job.row["key"],
            found="the database in which dag_run has the run is the one in which dispatch_job has its job",
        ),
    ]


def checks_of_job(play: Play) -> list[Check]:
    """What was to be shown of the job, in whatever engine."""
    record, lines = play.job.record, play.lines
    began = sorted((line.submission, line.run) for line in lines if line.what == "start")
    ended = [(line.submission, line.run) for line in lines if line.what == "end"]
    opened = play.job.opened
    first = causes(record, play.first)
    result = record.outcome.result if record.outcome is not None else "none"
    return [
        Check(
            name="node_failure",
            held=first == ["node_failure"] and len(record.budget) == 1,
            found=f"the first run ended as {_or(first)}; {_count(len(record.budget), 'unit')} of budget spent",
        ),
        Check(
            name="runs_are_authorized",
            held=began == opened == [(1, 1), (2, 1)],
            found=f"{len(began)} runs wrote that they began, {len(opened)} gates were opened by the record",
        ),
        Check(
            name="no_overlap",
            held=[(line.submission, line.what) for line in lines] == [(1, "start"), (2, "start"), (2, "end")],
            found=f"the runs wrote, in this order: {', '.join(f'{line.submission} {line.what}' for line in lines)}",
        ),
        Check(
            name="one_result", held=ended == [(2, 1)], found=f"{_count(len(ended), 'run')} reached the end of its work"
        ),
        Check(
            name="settled",
            held=record.settled and result is Result.SUCCEEDED,
            found=f"the record is {'settled' if record.settled else 'open'}, its outcome: {result}",
        ),
    ]


def _job(airflow: ThrowawayAirflow) -> Job:
    """The one job there is."""
    found = witness.jobs(airflow.rows)
    if not found:
        raise DispatchError("there is no job in dispatch_job")
    return found[-1]


def _ended(airflow: ThrowawayAirflow, run: str) -> bool:
    return airflow.page.state(DAG, run, NAME) in ("success", "failed", "skipped", "upstream_failed", "removed")


def causes(record: Record, object: str) -> list[str]:
    """How the runs of one object ended."""
    return [str(row.end.cause) for known in record.objects if known.id == object for row in known.ends]


def _or(causes: list[str]) -> str:
    return ", ".join(causes) or "nothing yet"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
