"""`dispatch demo`: a real Airflow, thrown away again, in which what dispatch promises is put to the test.

One rule: the demo believes nothing that dispatch says of itself. It counts the runs by the lines that they wrote, reads
the record past dispatch with plain SQL, and `run` returns 0 only if every check held.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from types import FrameType

from dispatch_core.demo import acts
from dispatch_core.demo.acts import Check, Play
from dispatch_core.demo.report import Report
from dispatch_core.demo.throwaway import ThrowawayAirflow
from dispatch_core.environments import checkout, make_environment
from dispatch_core.errors import DispatchError

INTERRUPTED = 130
"""The exit code after Ctrl-C or SIGTERM, as of any program that one ended."""

EXAMPLE = "airflow_dag.py"


def run(keep: bool = False, output_json: bool = False) -> int:
    """Show it all once; the exit code: 0 if every check held. Nothing is left when it returns, however it ends.

    `keep`: leave Airflow up, and say where its page is, until Ctrl-C.
    """
    report = Report(as_json=output_json)
    before = signal.signal(signal.SIGTERM, _interrupt)
    play: Play | None = None
    checks: Sequence[Check] = ()
    problem = ""
    try:
        environment = make_environment("airflow", say=report.step)
        example = checkout() / "examples" / EXAMPLE
        with ThrowawayAirflow(environment, [example], prefix="dispatch-demo-", say=report.step) as airflow:
            lines = airflow.folder / "lines"
            airflow.settings["LINES"] = str(lines)
            airflow.start()
            report.step("Airflow is up: scheduler, triggerer, DAG processor and API server")
            play = acts.perform(airflow, lines, report.step)
            checks = acts.checks(play)
            report.tell(play, checks)
            if output_json:
                report.document(play, checks)
            if keep:
                _keep(airflow, play, report)
        report.step("Airflow is gone, and its folder with it")
    except DispatchError as error:
        problem = str(error)
        report.say(f"the demo could not go on: {problem}")
    except KeyboardInterrupt:
        problem = "interrupted"
        report.say("interrupted: everything that was started is ended and removed")
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
        if output_json and problem:
            report.document(play, checks, problem)
    return 0 if not problem and checks and all(check.held for check in checks) else 1


def _keep(airflow: ThrowawayAirflow, play: Play, report: Report) -> None:
    """Wait for Ctrl-C, with Airflow's page up."""
    page = airflow.page
    report.say(f"\nAirflow's page stays up until Ctrl-C: {page.url}  user {page.user}  password {page.password}")
    report.say(f"the task: {page.link(acts.DAG, play.run, acts.NAME)}")
    try:
        while not airflow.shelter.ended().keys() - {"migrate"}:
            time.sleep(1.0)
        report.say(f"of Airflow's programs have ended: {', '.join(airflow.shelter.ended())}")
    except KeyboardInterrupt:
        report.say("")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
