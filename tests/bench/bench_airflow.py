"""Many deferred tasks in one triggerer, by dispatch and the usual way: `python -m tests.bench.bench_airflow [JOBS]
[SPREAD]`, as root or not; 1,000 jobs take an hour on two processors.

A real Airflow of separate programs, with PostgreSQL. First JOBS DispatchOperators (200 unless said) on the local
scheduler, then, in a triggerer that was started anew, as many tasks whose triggers each ask for their own job every 5 s
(`airflow_side/metered.py` says how, and why that is the cheapest way there is). The payload is the same, and so is the
scheduler that runs it. Every job is held until all tasks of its kind are deferred and all jobs have begun; then each
lasts 60 s and its part of SPREAD, in seconds (by default twice JOBS, as a worker has to run for each end).

Printed for both, in the minute in which nothing ends ("while all wait") and from then until the last task's success:
how late short sleeps in the triggerer's event loop end; the processor time of the triggerer's two programs and of the
commands that they run, and their memory; how often the scheduler was asked how jobs are, and called for anything else;
the time from a job's end, by its own clock, to its task's success, by Airflow's.
"""

from __future__ import annotations

import fcntl
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

import psycopg2

from dispatch_core.environments import make_environment
from tests.airflow.conftest import OnPostgresql
from tests.postgres import binaries, running

HERE = Path(__file__).parent
KINDS = ("by_dispatch", "the_usual_way")
SHORTEST_SECONDS = 60
LOOKING_SECONDS = 1.0
TICK = os.sysconf("SC_CLK_TCK")
MIB = 1024.0 * 1024.0


class Sample(NamedTuple):
    """What a triggerer, and the machine, have used so far."""

    at: float
    own: float
    """Seconds of processor time of its programs."""
    commands: float
    """And of what they ran."""
    memory: int
    """Bytes that are resident now, in all of its programs."""
    machine: float
    """Seconds of processor time of the whole machine."""


class Line(NamedTuple):
    """What the meter wrote in one second."""

    at: float
    asked: int
    others: int
    late: list[float]


@dataclass
class Measured:
    """One kind of tasks, from the first to the last."""

    kind: str
    meter: list[Line]
    samples: list[Sample]
    go: float
    deferring: float
    """Seconds until all were deferred."""
    lags: list[float] = field(default_factory=list)
    """From each job's end to its task's success."""

    def between(self, begin: float, end: float) -> tuple[Sample, Sample, list[Line]]:
        samples = [sample for sample in self.samples if begin <= sample.at <= end]
        lines = [line for line in self.meter if begin <= line.at <= end]
        return samples[0], samples[-1], lines


class Bench(OnPostgresql):
    """An Airflow with room for all of them."""

    def prepare_for(self, jobs: int) -> None:
        self.bench = self.folder / "bench"
        self.bench.mkdir()
        room = {"type": "local", "spool": str(self.bench / "room"), "slots": jobs}
        (self.bench / "clusters.yaml").write_text(json.dumps({"clusters": {"room": room}}))
        self.settings |= {
            "BENCH_FOLDER": str(self.bench),
            "BENCH_JOBS": str(jobs),
            "DISPATCH_CLUSTERS": str(self.bench / "clusters.yaml"),
            "PYTHONPATH": str(HERE / "airflow_side"),
            "AIRFLOW__CORE__MAX_MAP_LENGTH": str(jobs + 1),
            "AIRFLOW__TRIGGERER__CAPACITY": str(jobs + 10),
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "120",
        }

    def count(self, dag: str, state: str) -> int:
        asked = "SELECT count(*) AS n FROM task_instance WHERE dag_id = ? AND task_id = 'job' AND state = ?"
        return int(self.rows(asked, dag, state)[0]["n"])

    def patiently(self, what: str, have: Any, want: int, seconds: float) -> None:
        """Wait for a number to be reached, and say now and then how far it is."""
        until, told = time.monotonic() + seconds, 0.0
        while (there := have()) < want:
            if time.monotonic() > until:
                raise SystemExit(f"{there} of {want} {what} after {seconds:g} s")
            if time.monotonic() - told > 60.0:
                told = time.monotonic()
                self.say(f"{there} of {want} {what}")
            time.sleep(LOOKING_SECONDS)


class Watch:
    """Samples of one triggerer, for as long as it is asked."""

    def __init__(self, pid: int) -> None:
        self.pids = [pid, *_children(pid)]
        self.samples: list[Sample] = []

    def look(self) -> None:
        own = commands = memory = 0.0
        for pid in self.pids:
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            own += sum(map(int, words[11:13])) / TICK
            commands += sum(map(int, words[13:15])) / TICK
            memory += int(words[21]) * os.sysconf("SC_PAGE_SIZE")
        machine = Path("/proc/stat").read_text().splitlines()[0].split()
        busy = sum(map(int, (*machine[1:4], *machine[6:8]))) / TICK
        self.samples.append(Sample(time.time(), own, commands, int(memory), busy))


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def held(path: Path) -> Iterator[IO[str]]:
    """The file that jobs wait for, held until this ends."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def measured(airflow: Bench, kind: str, jobs: int, spread: float) -> Measured:
    """Run all tasks of one kind, and watch the triggerer."""
    watch = Watch(airflow.pids["triggerer"])
    began = time.monotonic()

    def looked(count: int) -> int:
        watch.look()
        return count

    with held(airflow.bench / f"{kind}.go") as go:
        airflow.run_dag(kind)
        meter = airflow.bench / f"{kind}.meter"
        airflow.wait("the meter runs", meter.exists, 120.0)
        patience = 120.0 + 10.0 * jobs
        airflow.patiently(f"deferred ({kind})", lambda: looked(airflow.count(kind, "deferred")), jobs, patience)
        deferring = time.monotonic() - began
        begun = lambda: looked(len(list(airflow.bench.glob(f"{kind}.*.begun"))))  # noqa: E731
        airflow.patiently(f"begun ({kind})", begun, jobs, 300.0)
        for number in range(jobs):
            go.write(f"{SHORTEST_SECONDS + spread * number / jobs:.1f}\n")
        go.flush()
    released = time.time()
    airflow.patiently(f"ended well ({kind})", lambda: looked(airflow.count(kind, "success")), jobs, spread + patience)
    watch.look()
    meter.with_suffix(".stop").touch()
    lines = [json.loads(line) for line in meter.read_text().splitlines()]
    found = [Line(line["at"], line["asked"], line["others"], line["late"]) for line in lines]
    return Measured(kind, found, watch.samples, released, deferring, list(lags(airflow, kind)))


def lags(airflow: Bench, kind: str) -> Iterator[float]:
    asked = (
        "SELECT map_index, extract(epoch FROM end_date) AS ended FROM task_instance"
        " WHERE dag_id = ? AND task_id = 'job'"
    )
    for row in airflow.rows(asked, kind):
        yield float(row["ended"]) - float((airflow.bench / f"{kind}.{row['map_index'] + 1}.ended").read_text())


def percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def figures(one: Measured, jobs: int) -> dict[str, float]:
    waiting = one.between(one.go + 5.0, one.go + SHORTEST_SECONDS - 5.0)
    whole = one.between(0.0, float("inf"))
    ending = one.between(one.go + SHORTEST_SECONDS, float("inf"))
    found: dict[str, float] = {"s until all were deferred": one.deferring}
    for when, (first, last, lines) in (("while all wait", waiting), ("while they end", ending), ("in all", whole)):
        seconds = last.at - first.at
        late = [1000.0 * late for line in lines for late in line.late]
        found |= {
            f"{when}: s": seconds,
            f"{when}: loop lag p50, ms": percentile(late, 50),
            f"{when}: loop lag p99, ms": percentile(late, 99),
            f"{when}: loop lag at most, ms": max(late),
            f"{when}: processor time of the triggerer, s": last.own - first.own,
            f"{when}: and of its commands, s": last.commands - first.commands,
            f"{when}: of the whole machine, s": last.machine - first.machine,
            f"{when}: asked how jobs are, a minute": 60.0 * (lines[-1].asked - lines[0].asked) / seconds,
            f"{when}: other scheduler calls, a minute": 60.0 * (lines[-1].others - lines[0].others) / seconds,
        }
    first, last, _ = waiting
    found |= {
        "memory of the triggerer, MiB, before": whole[0].memory / MIB,
        "memory of the triggerer, MiB, while all wait": last.memory / MIB,
        "memory a job, KiB": (last.memory - whole[0].memory) / 1024.0 / jobs,
        "from a job's end to its task's success, s, median": statistics.median(one.lags),
        "from a job's end to its task's success, s, p99": percentile(one.lags, 99),
    }
    return found


def table(found: list[dict[str, float]]) -> str:
    """Both kinds side by side, and how many times as much the usual way needs."""
    lines = [f"{'':58}{KINDS[0].replace('_', ' '):>14}{KINDS[1].replace('_', ' '):>16}"]
    for name, ours in found[0].items():
        usual = found[1][name]
        ratio = f"   x {usual / ours:.1f}" if ours else ""
        lines.append(f"{name:58}{ours:14.2f}{usual:16.2f}{ratio}")
    return "\n".join(lines)


def main() -> None:
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    spread = float(sys.argv[2]) if len(sys.argv) > 2 else 2.0 * jobs
    programs = binaries()
    if programs is None:
        raise SystemExit("PostgreSQL's server is not installed: apt-get install postgresql-15")
    engine = make_environment("airflow", dev=True)
    with running(programs, in_memory=True) as server:
        maker = psycopg2.connect(server.url("postgres"))
        maker.autocommit = True
        maker.cursor().execute("CREATE DATABASE bench")
        maker.close()
        dags = [HERE / "airflow_side" / "many.py"]
        with Bench(engine, dags, database=server.url("bench"), prefix="dispatch-bench-") as airflow:
            airflow.prepare_for(jobs)
            airflow.start()
            found = []
            for kind in KINDS:
                if found:
                    airflow.crash("triggerer")
                    airflow.restart("triggerer")
                found.append(figures(measured(airflow, kind, jobs, spread), jobs))
                for name, value in found[-1].items():
                    airflow.say(f"{kind}: {name}: {value:.2f}")
    print(f"{jobs} jobs, their ends spread over {spread:g} s")
    print(table(found))


if __name__ == "__main__":
    main()
