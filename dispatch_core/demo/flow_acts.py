"""What the demo does to one real job of a Prefect flow run, and what it checks afterwards.

One rule: as in `acts`, a check compares what two sources say that do not know of each other; what it checks is the
same, but that the flow's own process is the supervisor that is lost.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dispatch_core.demo import acts, witness
from dispatch_core.demo.acts import BEGINNING_SECONDS, ENDING_SECONDS, RUN_SECONDS, TAKING_OVER_SECONDS, Check, Play
from dispatch_core.demo.throwaway_prefect import ThrowawayPrefect
from dispatch_core.demo.witness import Job
from dispatch_core.errors import DispatchError

DEPLOYMENT = "dispatch-example/demo"


def perform(prefect: ThrowawayPrefect, file: Path, say: Callable[[str], None]) -> Play:
    """Run the example, lose the node of its first run, then the flow's process during the second; run the flow again,
    and see it to its end."""
    run = prefect.run(DEPLOYMENT, {"seconds": RUN_SECONDS})
    say(f"the flow run {run} is asked for")
    prefect.wait("the first run has begun", lambda: witness.lines(file), BEGINNING_SECONDS)
    first = _job(prefect).record.submissions[0].canonical or ""
    say(f"its job runs as object {first}")

    pid = witness.fail_node(prefect.spool, first, 1)
    say(f"the runner of that run, pid {pid}, is ended with SIGKILL: to the job, its node has failed")
    prefect.wait("the second run has begun", lambda: len(witness.lines(file)) > 1, BEGINNING_SECONDS)
    second = _job(prefect).record.submissions[1].canonical or ""
    runner = witness.runner(prefect.spool, second, 1)
    say(f"the record has authorized a second submission, and it runs as object {second}, runner {runner}")

    before = prefect.wait("it is supervised", lambda: _job(prefect).row["lease_owner"], TAKING_OVER_SECONDS)
    _end_flow(prefect)
    say("the flow's process, and with it the job's supervisor, is ended with SIGKILL")
    prefect.wait("Prefect calls it crashed", lambda: prefect.state(run) == "crashed", TAKING_OVER_SECONDS)
    goes_on = runner is not None and witness.runner(prefect.spool, second, 1) == runner
    say(f"Prefect calls the flow run crashed; the run of its job {'goes on' if goes_on else 'has ended'}")
    prefect.wait(
        "it is taken over", lambda: _job(prefect).row["lease_owner"] not in (None, before), TAKING_OVER_SECONDS
    )
    say("the lease of the lost one has run out, and `dispatch supervise --prefect` supervises the job")
    prefect.again(run)
    say("the flow run is run again, as by the button on its page")
    prefect.wait("the flow run has ended", lambda: prefect.state(run) in ("completed", "failed"), ENDING_SECONDS)
    say(f"the job is done, and the flow run has ended: {prefect.state(run)}")
    prefect.wait("the record is settled", lambda: _job(prefect).record.settled, TAKING_OVER_SECONDS)
    job = _job(prefect)
    rows = prefect.rows("SELECT id, name, state_type, run_count FROM flow_run WHERE id = ?", run)
    return Play(
        run=run,
        state=prefect.state(run),
        tries=int(rows[0]["run_count"]),
        job=job,
        jobs=len(witness.jobs(prefect.rows)),
        lines=tuple(witness.lines(file)),
        history=tuple(witness.history(prefect.rows, job.record.uid)),
        dag_run=rows[0],
        first=first,
        second=second,
    )


def checks(play: Play) -> list[Check]:
    """What was to be shown, and whether it was."""
    second = acts.causes(play.job.record, play.second)
    wrote = len({told.actor for told in play.history})
    row = play.dag_run
    return [
        Check(
            name="finished",
            held=play.state == "completed",
            found=f"Prefect says that the flow run is {play.state}",
        ),
        Check(
            name="one_job",
            held=play.jobs == 1 and play.tries == 2,
            found=f"{play.jobs} job in dispatch_job, {play.tries} runs of the flow run",
        ),
        Check(
            name="flow_process_lost",
            held=second == ["completed"] and wrote >= 2,
            found=f"{wrote} supervisors wrote its history; the run under way ended as {', '.join(second) or 'nothing'}",
        ),
        *acts.checks_of_job(play),
        Check(
            name="row_beside_flow_run",
            held=row["state_type"] == "COMPLETED" and f"/{row['id']}/" in play.job.row["key"],
            found="the database in which flow_run has the run is the one in which dispatch_job has its job",
        ),
    ]


def _end_flow(prefect: ThrowawayPrefect) -> None:
    """End the one child of the runner, found by descent."""
    pid = prefect.pids["runner"]
    children = [
        int(number)
        for thread in Path(f"/proc/{pid}/task").iterdir()
        for number in (thread / "children").read_text().split()
    ]
    if not children:
        raise DispatchError("the runner has no flow's process")
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def _job(prefect: ThrowawayPrefect) -> Job:
    """The one job there is."""
    found = witness.jobs(prefect.rows)
    if not found:
        raise DispatchError("there is no job in dispatch_job")
    return found[-1]
