"""One key at one time in two processes of one flow run: real processes, as a pool of them or two hosts would run.

Within one program the second is refused at once. In another process it is refused once the first is known to live;
a rerun of the flow run takes the job over; and whoever asks, there is one job.
"""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from dispatch_core.client import Client
from dispatch_core.errors import KeyTaken
from dispatch_core.plan import Plan, Spec
from dispatch_core.stores.memory import MemoryStore
from dispatch_core.stores.sql import open_store
from prefect_collection import holding
from prefect_collection.holding import Holder, owner_of
from tests.prefect.inside.test_steps import WAITS, lines, until

STEP = """
import asyncio, json, sys
from pathlib import Path
from uuid import UUID

from dispatch_core.errors import KeyTaken
from dispatch_core.supervisor import Supervisor
from prefect_collection import errands, tasks
from prefect_collection.blocks import DispatchStore
from prefect_collection.errands import Asker, Wanted
from prefect_collection.holding import Holder
from prefect_collection.keys import Place

Supervisor.lease_seconds = 10.0  # the rule is the same for a short one
folder, run, task_run, command = Path(sys.argv[1]), int(sys.argv[2]), UUID(sys.argv[3]), sys.argv[4:]
place = Place(root=UUID("0198aaaa-0000-7000-8000-000000000001"), runs=(run,))
store = DispatchStore(url=f"sqlite:///{folder / 'jobs.db'}", spool=folder / "spool")
name, holder = f"prefect flow run {place.root}", Holder(place.root, place.runs, task_run)
asker = Asker(key=place.key("train"), uid=None, name=name, holder=holder, place=place, store=store, shared=False)
spec = tasks.spec_of(command, None, None, None, None, None)
wanted = Wanted(spec=spec, plan=tasks.Plan(), scheduler="local")
try:
    result = asyncio.run(errands.run(asker, wanted, on_timeout="detach", settle_seconds=30))
    print(json.dumps([result.uid, result.outcome, result.submissions]))
except KeyTaken:
    print(json.dumps("refused"))
"""


@contextmanager
def step(folder: Path, run: int, *command: str, task_run: UUID | None = None) -> Iterator[Callable[[], object]]:
    """A process of the flow run with the step in it; what it answered, once it has ended."""
    words = (sys.executable, "-c", STEP, str(folder), str(run), str(task_run or uuid4()), *command)
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
    waits = ("sh", "-c", WAITS, str(folder))
    with ExitStack() as steps:
        first = steps.enter_context(step(folder, 1, *waits))
        until(lambda: len(lines(folder)) == 1)
        second = steps.enter_context(step(folder, 1, *waits))
        other = steps.enter_context(step(folder, 1, "true"))
        assert other() == "refused"
        assert second() == "refused"
        assert claims(folder) == 1
        rerun = steps.enter_context(step(folder, 2, *waits))
        until(lambda: claims(folder) >= 2)
        (folder / "go").touch()
        answer = first()
        assert rerun() == answer
    store = open_store(f"sqlite:///{folder / 'jobs.db'}")
    (job,) = await store.jobs()
    await store.close()
    assert answer == [job.uid, "succeeded", 1]
    assert len(lines(folder)) == 1


@pytest.mark.promise("F1")
async def test_a_step_whose_process_is_gone_is_no_hindrance_to_another(folder: Path) -> None:
    waits = ("sh", "-c", WAITS, str(folder))
    with ExitStack() as steps:
        gone = ExitStack()
        gone.enter_context(step(folder, 1, *waits))
        until(lambda: len(lines(folder)) == 1)
        gone.close()
        assert claims(folder) == 1
        second = steps.enter_context(step(folder, 1, *waits))
        (folder / "go").touch()
        assert second()[1:] == ["succeeded", 1]  # type: ignore[index]
    assert len(lines(folder)) == 1


ROOT, TASK = UUID("0198aaaa-0000-7000-8000-000000000001"), UUID("0198aaaa-0000-7000-8000-00000000000a")
MINE = Holder(ROOT, (2, 1), TASK)
SHORT = 0.2


@pytest.mark.promise("F1")
@pytest.mark.parametrize(
    ("owner", "is_mine", "left"),
    [
        (None, True, None),
        (MINE.name, True, MINE.name),
        (Holder(ROOT, (1, 3), TASK).name, True, None),
        (Holder(ROOT, (2, 0), None).name, True, None),
        (Holder(ROOT, (3, 1), TASK).name, False, Holder(ROOT, (3, 1), TASK).name),
        (Holder(TASK, (1, 1), TASK).name, False, Holder(TASK, (1, 1), TASK).name),
        ("prefect service", False, "prefect service"),
    ],
    ids=["free", "mine", "earlier run", "earlier subflow run", "later run", "another flow run", "the service"],
)
async def test_whose_job_it_is(owner: str | None, is_mine: bool, left: str | None) -> None:
    store = MemoryStore()
    record = await Client(store, who="test").submit("train", Spec(command=("true",)), Plan(), scheduler="local")
    if owner is not None:
        await store.acquire(record, owner, 60.0)
    assert await MINE.claim(store, record, SHORT) is is_mine
    assert await owner_of(store, record) == left


@pytest.mark.promise("F1")
@pytest.mark.parametrize("alive", [True, False], ids=["alive", "gone"])
async def test_a_step_of_the_same_run_is_refused_only_while_the_first_lives(
    monkeypatch: pytest.MonkeyPatch, alive: bool
) -> None:
    monkeypatch.setattr(holding, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(holding, "LEEWAY_SECONDS", SHORT)
    store, sibling = MemoryStore(), Holder(ROOT, (2, 1), uuid4())
    record = await Client(store, who="test").submit("train", Spec(command=("true",)), Plan(), scheduler="local")
    await store.acquire(record, sibling.name, 60.0 if alive else SHORT)
    if alive:
        with pytest.raises(KeyTaken, match=str(sibling.task_run)):
            await MINE.claim(store, record, SHORT)
    else:
        assert await MINE.claim(store, record, SHORT)
