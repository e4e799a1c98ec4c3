"""The service's judgement, on a real store: what Prefect says is played, and which records get a cancel is looked at.

The service in a real Prefect is in `tests/prefect/test_scenes.py`.
"""

import logging
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from msgspec.structs import replace
from prefect.client.schemas.objects import FlowRun, State, StateDetails, StateType, TaskRun
from prefect.exceptions import PrefectException
from prefect.settings import PREFECT_API_URL

from dispatch_core.adapters.contract import Adapter
from dispatch_core.client import Client
from dispatch_core.errors import BadInput, UnreadableRecord
from dispatch_core.places import open_scheduler
from dispatch_core.plan import Plan, Spec
from dispatch_core.record import Record, Result
from dispatch_core.stores.contract import Change, Store
from dispatch_core.stores.sql import open_store
from dispatch_core.supervisor import Supervisor
from prefect_collection import keys, service, showing
from prefect_collection.service import PrefectService
from prefect_collection.showing import Showing, page, progress, slug
from prefect_collection.suspending import MARK, pause_key, waits_for


@pytest.fixture
async def store(folder: Path) -> AsyncIterator[Store]:
    opened = open_store(f"sqlite:///{folder / 'jobs.db'}")
    yield opened
    await opened.close()


async def submit(store: Store, key: str) -> Record:
    return await Client(store, who="test").submit(key, Spec(command=("true",)), Plan(), scheduler="local")


async def end(store: Store, key: str) -> None:
    await Client(store, who="test").cancel(key)


def flow_run(type: StateType, name: str = "", *, id: UUID | None = None, **more: Any) -> FlowRun:
    details = StateDetails(pause_key=more.pop("pause_key", None))
    state: State[Any] = State(type=type, name=name or type.value.title(), state_details=details)
    return FlowRun(
        id=id or uuid4(),
        flow_id=uuid4(),
        name="calm-otter",
        state=state,
        state_type=type,
        state_name=state.name,
        **more,
    )


class Api:
    """A Prefect server that knows these flow runs, and the calls that made subflow runs."""

    def __init__(self, *runs: FlowRun, calls: Sequence[TaskRun] = ()) -> None:
        self.runs, self.calls = list(runs), {call.id: call for call in calls}
        self.resumed: list[UUID] = []
        self.broken: Exception | None = None
        self.refused: UUID | None = None

    async def __aenter__(self) -> "Api":
        return self

    async def __aexit__(self, *error: object) -> None:
        return None

    async def read_flow_runs(self, *, flow_run_filter: Any, limit: int, offset: int) -> list[FlowRun]:
        if self.broken is not None:
            raise self.broken
        asked, found = flow_run_filter, self.runs
        if asked.id is not None:
            found = [run for run in found if run.id in asked.id.any_]
        if asked.parent_flow_run_id is not None:
            above = {id: call.flow_run_id for id, call in self.calls.items()}
            found = [run for run in found if above.get(run.parent_task_run_id) in asked.parent_flow_run_id.any_]
        if asked.state is not None and asked.state.type is not None:
            found = [run for run in found if run.state_type in asked.state.type.any_]
        if asked.state is not None and asked.state.name is not None:
            found = [run for run in found if run.state_name in asked.state.name.any_]
        return found[offset : offset + limit]

    async def read_flow_run(self, id: UUID) -> FlowRun:
        return next(run for run in self.runs if run.id == id)

    async def read_task_run(self, id: UUID) -> TaskRun:
        return self.calls[id]

    async def resume_flow_run(self, id: UUID) -> SimpleNamespace:
        if id == self.refused:
            raise PrefectException("is not to be resumed")
        self.resumed.append(id)
        return SimpleNamespace(status=SimpleNamespace(value="ACCEPT"))


async def look(monkeypatch: pytest.MonkeyPatch, store: Store, api: Api) -> PrefectService:
    for room in (service, keys):
        monkeypatch.setattr(room, "get_client", lambda: api)
    looking = PrefectService()
    await looking.look(store)
    return looking


async def cancelled(store: Store) -> set[str]:
    records = [job.record for job in await store.jobs()]
    return {one.key for one in records if one and one.outcome and one.outcome.result is Result.CANCELLED}


@pytest.mark.promise("F1")
@pytest.mark.promise("A5")
@pytest.mark.case("T18")
async def test_the_jobs_of_cancelled_flow_runs_alone_are_cancelled(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever state the flow run was cancelled from: pending, running, suspended. No event is needed."""
    gone, going, running = (flow_run(type) for type in (StateType.CANCELLED, StateType.CANCELLING, StateType.RUNNING))
    crashed = flow_run(StateType.CRASHED)
    for run in (gone, going, running, crashed):
        await submit(store, f"prefect/{run.id}/train")
    await submit(store, f"prefect/{uuid4()}/another server's")
    await submit(store, "nightly/train")
    await submit(store, f"nightly/{gone.id}/train")
    await look(monkeypatch, store, Api(gone, going, running, crashed))
    assert await cancelled(store) == {f"prefect/{gone.id}/train", f"prefect/{going.id}/train"}
    record = await store.read(f"prefect/{gone.id}/train")
    assert record.outcome is not None
    assert (record.outcome.by, record.outcome.message) == (service.WHO, "the flow run 'calm-otter' was cancelled")


@pytest.mark.promise("F1")
@pytest.mark.promise("A5")
@pytest.mark.parametrize("made_anew", [False, True])
async def test_a_subflow_run_is_cancelled_by_itself(
    store: Store, monkeypatch: pytest.MonkeyPatch, made_anew: bool
) -> None:
    """The parent goes on; where it was run again since, the newer subflow run has taken on the job."""
    parent = flow_run(StateType.RUNNING)
    calls = [
        TaskRun(id=uuid4(), task_key="t", dynamic_key="0", flow_run_id=parent.id, name="training-0") for _ in range(2)
    ]
    now = datetime.now(UTC)
    old = flow_run(StateType.CANCELLED, parent_task_run_id=calls[0].id, created=now - timedelta(hours=1))
    new = flow_run(StateType.RUNNING, parent_task_run_id=calls[1].id, created=now)
    key = f"prefect/{parent.id}/training-0/train"
    await submit(store, key)
    await submit(store, f"prefect/{parent.id}/beside")
    await look(monkeypatch, store, Api(parent, old, *([new] if made_anew else []), calls=calls))
    assert await cancelled(store) == (set() if made_anew else {key})


@pytest.mark.promise("F1")
async def test_an_answer_that_fails_cancels_nothing_and_is_told_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gone = flow_run(StateType.CANCELLED)
    await submit(store, f"prefect/{gone.id}/train")
    api = Api(gone)
    api.broken = httpx.ConnectError("no route")
    with caplog.at_level(logging.WARNING):
        looking = await look(monkeypatch, store, api)
        await looking.look(store)
    assert [entry.getMessage() for entry in caplog.records] == [
        "Prefect does not answer, and its cancels are not heard: no route"
    ]
    assert await cancelled(store) == set()
    api.broken = None
    await looking.look(store)
    assert await cancelled(store) == {f"prefect/{gone.id}/train"}


@pytest.mark.promise("F1")
@pytest.mark.promise("A5")
async def test_a_job_that_cannot_be_cancelled_keeps_nothing_else_waiting(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every failure is told; the other jobs are cancelled, and flow runs are resumed."""
    gone = flow_run(StateType.CANCELLED)
    names = [f"prefect/{gone.id}/{step}" for step in ("a", "b", "c", "d")]
    for key in (*names, "over"):
        await submit(store, key)
    suspended = flow_run(StateType.PAUSED, "Suspended", pause_key=pause_key([await store.read("over")]))
    await end(store, "over")
    commit = type(store).commit

    async def refusing(self: Store, record: Record, **how: Any) -> Record:
        if record.key in (names[0], names[2]):
            raise UnreadableRecord(f"job {record.key!r} is broken")
        return await commit(self, record, **how)

    monkeypatch.setattr(type(store), "commit", refusing)
    api = Api(gone, suspended)
    with caplog.at_level(logging.WARNING):
        await look(monkeypatch, store, api)
    assert await cancelled(store) == {names[1], names[3], "over"}
    told = " ".join(entry.getMessage() for entry in caplog.records)
    assert all(f"job {key!r} is broken" in told for key in (names[0], names[2]))
    assert api.resumed == [suspended.id]


@pytest.mark.promise("F1")
async def test_a_flow_run_waits_for_its_own_job_and_not_for_the_next_under_that_key(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = await submit(store, "train")
    waiting = flow_run(StateType.PAUSED, "Suspended", pause_key=pause_key([own]))
    await end(store, "train")
    adapter: Adapter = open_scheduler("local", folder / "spool")
    await Supervisor(store, adapter).attend("train")
    await adapter.close()
    following = await Client(store, who="test").submit("train", own.spec, own.plan, scheduler="local", new=True)
    assert following.uid != own.uid
    beside = flow_run(StateType.PAUSED, "Suspended", pause_key=pause_key([following]))
    api = Api(waiting, beside)
    await look(monkeypatch, store, api)
    assert api.resumed == [waiting.id]


@pytest.mark.promise("F1")
async def test_a_flow_run_that_cannot_be_resumed_keeps_no_other_waiting(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = await submit(store, "train")
    await end(store, "train")
    broken, other = (flow_run(StateType.PAUSED, "Suspended", pause_key=pause_key([job])) for _ in range(2))
    api = Api(broken, other)
    api.refused = broken.id
    with caplog.at_level(logging.WARNING):
        await look(monkeypatch, store, api)
    assert api.resumed == [other.id]
    assert "is not to be resumed" in caplog.text


@pytest.mark.promise("F1")
async def test_a_suspended_flow_run_is_resumed_once_all_its_jobs_are_over(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that a person suspended is left alone, and one that waits for jobs of another store."""
    a, b = [await submit(store, key) for key in ("a", "b")]
    both, strange, persons = (
        flow_run(StateType.PAUSED, "Suspended", pause_key=key)
        for key in (pause_key([b, a]), pause_key([a, replace(b, key="elsewhere")]), "1")
    )
    assert (waits_for(both), waits_for(persons)) == ([("a", a.uid), ("b", b.uid)], [])
    api = Api(both, strange, persons)
    await end(store, "a")
    await look(monkeypatch, store, api)
    assert api.resumed == []
    await end(store, "b")
    await look(monkeypatch, store, api)
    assert api.resumed == [both.id]


@pytest.mark.parametrize("words", ["lunch", "[1]", "7", '["a", "b", "c"]', '[["a"], "b"]', '[[7], "b"]'])
def test_a_person_may_suspend_a_flow_run_in_like_words(words: str) -> None:
    details = StateDetails(pause_key=MARK + words)
    run = FlowRun(flow_id=uuid4(), state=State(type=StateType.PAUSED, name="Suspended", state_details=details))
    assert waits_for(run) == []


def test_a_service_without_a_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "PREFECT_API_URL", SimpleNamespace(value=lambda: None))
    assert PREFECT_API_URL.value()
    with pytest.raises(BadInput, match="PREFECT_API_URL is not set"):
        PrefectService()


async def test_a_page_holds_the_record_and_its_story(store: Store) -> None:
    record = await submit(store, f"prefect/{uuid4()}/Fit | all")
    told = page(record, ["12:00 created: <b> *.csv of [it](there) & _all_"])
    assert told.startswith("# Fit \\| all\n")
    assert "\n| state | submitted |\n|---|---|\n" in told
    assert "- 12:00 created: &lt;b> \\*.csv of \\[it\\](there) &amp; \\_all\\_" in told
    assert (slug(record.key), progress(record)) == ("fit-all", 0.0)


@pytest.mark.promise("F1")
async def test_what_keeps_prefect_from_showing_a_job_is_told_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And every change of state is an event."""
    events: list[dict[str, Any]] = []
    monkeypatch.setattr(showing, "emit_event", lambda **event: events.append(event))
    record = await submit(store, "train")
    history: list[Change] = await store.history("train")
    shown = Showing(uuid4(), uuid4())  # the server of these tests is not there
    with caplog.at_level(logging.WARNING):
        await shown.show(record, history)
        await end(store, "train")
        await shown.show(await store.read("train"), [])
        await shown.show(await store.read("train"), [])
    assert len([entry for entry in caplog.records if "is not shown in Prefect" in entry.getMessage()]) == 1
    assert [event["event"] for event in events] == ["dispatch.job.submitted", "dispatch.job.cancelled"]
    assert events[1]["payload"]["outcome"] == "cancelled"
