"""Jobs of flows on a real Slurm cluster: named in the clusters file, and by a saved block.

A flow waits 30 s for a job to settle, and a submit to this cluster can land for 38: `dispatch supervise` does the
rest. The two flow runs are side by side, so that their tests wait for this once.
"""

import json
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from dispatch_core.plan import Cause
from dispatch_core.record import Record, Result
from dispatch_core.stores.rules import read_document
from tests.prefect.server import Prefect
from tests.slurm.beside import NAME, clusters_file, fields, shared
from tests.slurm.cluster import Cluster

EXAMPLE = "examples/slurm_flow.py"

SAVING = """
import asyncio, json, sys
from prefect_collection.blocks import SlurmCluster

async def main():
    await SlurmCluster(**json.loads(sys.argv[2])).save(sys.argv[1])

asyncio.run(main())
"""


class Ran(NamedTuple):
    """The example, run to its end, and what is left of it."""

    folder: Path
    ended: subprocess.CompletedProcess[str]
    record: Record
    """As `dispatch supervise` has left it."""


def record_in(prefect: Prefect, folder: Path) -> Record:
    """The one job that works in this folder."""
    rows = prefect.rows("SELECT * FROM dispatch_job")
    records = [read_document(row["document"], row["key"], row["uid"], row["revision"]) for row in rows]
    (record,) = (record for record in records if record.spec.working_directory == str(folder))
    return record


@pytest.fixture(scope="module")
def examples(prefect: Prefect, alps: Cluster) -> dict[str, Ran]:
    """`once` has its data, and its cluster by the clusters file; `twice` has none, and its cluster by a block."""
    python, home, file = prefect.environment.python, shared(alps, "home"), alps.work / "clusters.yaml"
    file.write_text(clusters_file(alps, home))
    named = {"DISPATCH_CLUSTERS": str(file)}
    saved = prefect.run(python, "-c", SAVING, NAME, json.dumps(fields(alps, home)))
    assert saved.returncode == 0, saved.stderr
    folders = {name: shared(alps, name) for name in ("once", "twice")}
    (folders["once"] / "data").touch()
    runs: dict[str, Callable[[], subprocess.CompletedProcess[str]]] = {
        "once": lambda: prefect.run(python, EXAMPLE, folders["once"], env=named),
        "twice": lambda: prefect.run(python, EXAMPLE, folders["twice"]),
    }
    with ThreadPoolExecutor() as pool:
        ended = dict(zip(runs, pool.map(lambda run: run(), runs.values()), strict=True))
    store = f"sqlite:///{prefect.database}"
    rest = prefect.run(python, "-m", "dispatch_core", "supervise", "--once", "--store", store, env=named)
    assert rest.returncode == 0, rest.stderr
    return {name: Ran(folder, ended[name], record_in(prefect, folder)) for name, folder in folders.items()}


@pytest.mark.long
@pytest.mark.promise("F1")
@pytest.mark.promise("A2")
def test_the_example_runs_its_job_once(examples: dict[str, Ran], alps: Cluster) -> None:
    folder, ended, record = examples["once"]
    assert ended.returncode == 0, ended.stderr
    assert "has succeeded after 1 run(s)" in ended.stdout
    assert (record.scheduler, record.settled, record.budget) == (NAME, True, ())
    assert (folder / "lines").read_text() == "1 1\n"
    assert alps.leftovers() == []


@pytest.mark.long
@pytest.mark.promise("F1")
@pytest.mark.promise("A4")
def test_a_job_that_fails_is_launched_again_as_its_plan_says(examples: dict[str, Ran], alps: Cluster) -> None:
    folder, ended, record = examples["twice"]
    assert ended.returncode != 0
    assert "JobFailed" in ended.stderr
    assert record.outcome is not None
    assert (record.outcome.result, record.outcome.cause, record.outcome.exit_code) == (Result.FAILED, Cause.EXIT, 75)
    assert (record.scheduler, record.settled, len(record.submissions)) == (NAME, True, 2)
    assert (folder / "lines").read_text() == "1 1\n2 1\n"
    assert alps.leftovers() == []
