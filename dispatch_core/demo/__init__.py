"""`dispatch demo`: a real Airflow or Prefect, thrown away again, in which what dispatch promises is put to the test.

One rule: the demo believes nothing that dispatch says of itself. It counts the runs by the lines that they wrote, reads
the record past dispatch with plain SQL, and `run` returns 0 only if every check held.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple

from dispatch_core.demo import acts, flow_acts
from dispatch_core.demo.acts import Check, Play
from dispatch_core.demo.report import Report
from dispatch_core.demo.shelter import Shelter
from dispatch_core.demo.throwaway import ThrowawayAirflow
from dispatch_core.demo.throwaway_prefect import ThrowawayPrefect
from dispatch_core.environments import checkout, make_environment
from dispatch_core.errors import DispatchError

PREFIX = "dispatch-demo-"
INTERRUPTED = 130
"""The exit code after Ctrl-C or SIGTERM, as of any program that one ended."""

Say = Callable[[str], None]


class Running(NamedTuple):
    """A play in an engine that is up."""

    play: Play
    checks: Sequence[Check]
    page: str
    """Where a person looks at it, and how to get in."""
    shelter: Shelter


def run(engine: str = "airflow", keep: bool = False, output_json: bool = False) -> int:
    """Show it all once; the exit code: 0 if every check held. Nothing is left when it returns, however it ends.

    `keep`: leave the engine up, and say where its page is, until Ctrl-C.
    """
    in_engine, name, table = ENGINES[engine]
    report = Report(as_json=output_json, engine=name, run=table)
    before = signal.signal(signal.SIGTERM, _interrupt)
    play: Play | None = None
    checks: Sequence[Check] = ()
    problem = ""
    try:
        with in_engine(report.step) as running:
            play, checks = running.play, running.checks
            report.tell(play, checks)
            if output_json:
                report.document(play, checks)
            if keep:
                _keep(running, name, report)
        report.step(f"{name} is gone, and its folder with it")
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


@contextmanager
def in_airflow(say: Say) -> Iterator[Running]:
    """The play in a throwaway Airflow, which lasts as long as the context."""
    environment = make_environment("airflow", say=say)
    example = checkout() / "examples" / "airflow_dag.py"
    with ThrowawayAirflow(environment, [example], prefix=PREFIX, say=say) as airflow:
        lines = airflow.folder / "lines"
        airflow.settings["LINES"] = str(lines)
        airflow.start()
        say("Airflow is up: scheduler, triggerer, DAG processor and API server")
        play = acts.perform(airflow, lines, say)
        page = airflow.page
        where = f"{page.url}  user {page.user}  password {page.password}"
        where += f"\nthe task: {page.link(acts.DAG, play.run, acts.NAME)}"
        yield Running(play, acts.checks(play), where, airflow.shelter)


@contextmanager
def in_prefect(say: Say) -> Iterator[Running]:
    """The play in a throwaway Prefect, which lasts as long as the context."""
    environment = make_environment("prefect", say=say)
    with ThrowawayPrefect(environment, checkout() / "examples" / "prefect_served_flow.py", prefix=PREFIX) as prefect:
        lines = prefect.folder / "lines"
        prefect.settings["LINES"] = str(lines)
        prefect.start()
        say("Prefect is up: server, runner and `dispatch supervise --prefect`")
        play = flow_acts.perform(prefect, lines, say)
        where = f"{prefect.page}\nthe flow run: {prefect.page}/runs/flow-run/{play.run}"
        yield Running(play, flow_acts.checks(play), where, prefect.shelter)


ENGINES = {"airflow": (in_airflow, "Airflow", "dag_run"), "prefect": (in_prefect, "Prefect", "flow_run")}


def _keep(running: Running, name: str, report: Report) -> None:
    """Wait for Ctrl-C, with the engine's page up."""
    report.say(f"\n{name}'s page stays up until Ctrl-C: {running.page}")
    try:
        while not running.shelter.ended().keys() - {"migrate", "setup"}:
            time.sleep(1.0)
        report.say(f"of {name}'s programs have ended: {', '.join(running.shelter.ended())}")
    except KeyboardInterrupt:
        report.say("")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
