"""One key at one time in two processes of one flow run: real processes, as a pool of them or two hosts would run.

Within one program the second is refused. A second process cannot be told from the rerun of one that has crashed, or of
one that Prefect only believes to have: it comes to the same job, and never makes another.
"""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from dispatch_core.stores.sql import open_store
from tests.prefect.inside.test_steps import WAITS, lines, until

STEP = """
import asyncio, json, sys
from pathlib import Path
from uuid import UUID

from dispatch_core.errors import KeyTaken
from prefect_collection import errands, tasks
from prefect_collection.blocks import DispatchStore
from prefect_collection.errands import Asker, Wanted
from prefect_collection.keys import Place

folder, command = Path(sys.argv[1]), sys.argv[2:]
place = Place(root=UUID("0198aaaa-0000-7000-8000-000000000001"))
store = DispatchStore(url=f"sqlite:///{folder / 'jobs.db'}", spool=folder / "spool")
name = f"prefect flow run {place.root}"
asker = Asker(key=place.key("train"), uid=None, name=name, place=place, store=store, shared=False)
spec = tasks.spec_of(command, None, None, None, None, None)
wanted = Wanted(spec=spec, plan=tasks.Plan(), scheduler="local")
try:
    result = asyncio.run(errands.run(asker, wanted, on_timeout="detach", settle_seconds=30))
    print(json.dumps([result.uid, result.outcome, result.submissions]))
except KeyTaken:
    print(json.dumps("refused"))
"""


@contextmanager
def step(folder: Path, *command: str) -> Iterator[Callable[[], object]]:
    """A process of the flow run with the step in it; what it answered, once it has ended."""
    words = (sys.executable, "-c", STEP, str(folder), *command)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        try:
            yield lambda: json.loads(child.communicate(timeout=120)[0])
        finally:
            child.kill()


def claims(folder: Path) -> int:
    """How often the job was taken by a supervisor."""
    with closing(sqlite3.connect(folder / "jobs.db")) as connection:
        return int(connection.execute("SELECT max(lease_epoch) FROM dispatch_job").fetchone()[0])


@pytest.mark.promise("F1")
@pytest.mark.promise("A2")
async def test_two_processes_with_one_key_are_one_job(folder: Path) -> None:
    with ExitStack() as steps:
        first = steps.enter_context(step(folder, "sh", "-c", WAITS, str(folder)))
        until(lambda: len(lines(folder)) == 1)
        second = steps.enter_context(step(folder, "sh", "-c", WAITS, str(folder)))
        other = steps.enter_context(step(folder, "true"))
        until(lambda: claims(folder) >= 2)
        assert other() == "refused"
        (folder / "go").touch()
        answer = first()
        assert second() == answer
    store = open_store(f"sqlite:///{folder / 'jobs.db'}")
    (job,) = await store.jobs()
    await store.close()
    assert answer == [job.uid, "succeeded", 1]
    assert len(lines(folder)) == 1
