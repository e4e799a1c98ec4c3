"""What needs no job: keys, retries, results, and the block."""

import pickle
from datetime import UTC, datetime
from importlib.metadata import entry_points
from uuid import UUID, uuid4

import pytest
from prefect import task
from prefect.blocks.core import Block
from prefect.client.schemas.objects import FlowRun, State, TaskRun
from prefect.states import Failed
from prefect.tasks import exponential_backoff
from pydantic import ValidationError

from dispatch_core.errors import BadInput, KeyTaken, StoreUnavailable
from dispatch_core.plan import Cause, Delay, Plan, Spec, problems
from dispatch_core.record import Outcome, Record, Result
from prefect_collection import keys
from prefect_collection.blocks import DispatchStore
from prefect_collection.keys import Place, in_use, place_of
from prefect_collection.results import JobCancelled, JobFailed, JobResult, result_of
from prefect_collection.retries import is_of_retries, may_be_repeated, plan_of

ROOT = UUID("0198aaaa-0000-7000-8000-000000000001")


def test_a_step_has_one_key_and_another_step_another() -> None:
    place = Place(root=ROOT, path=("train-0",))
    assert place.key("fit") == f"prefect/{ROOT}/train-0/fit"
    assert Place(root=ROOT, path=("train-1",)).key("fit") != place.key("fit")
    assert place.key("fit").startswith(place.prefix)


def test_a_long_way_to_a_step_still_makes_a_key() -> None:
    deep, other = (Place(root=ROOT, path=("x" * 200, name)).key("fit") for name in ("a-0", "b-0"))
    assert len(deep) <= 250
    assert deep != other
    with pytest.raises(BadInput, match="shorten it"):
        Place(root=ROOT).key("y" * 300)


def test_two_tasks_of_one_program_cannot_be_one_job() -> None:
    with in_use("prefect/a/fit"), pytest.raises(KeyTaken, match="a key of its own"), in_use("prefect/a/fit"):
        pass
    with in_use("prefect/a/fit"):  # later is no harm
        pass


class Api:
    """The two questions that a place is made of, answered."""

    def __init__(self, runs: dict[UUID, FlowRun], calls: dict[UUID, TaskRun]) -> None:
        self.runs, self.calls = runs, calls

    async def __aenter__(self) -> "Api":
        return self

    async def __aexit__(self, *error: object) -> None:
        return None

    async def read_task_run(self, id: UUID) -> TaskRun:
        return self.calls[id]

    async def read_flow_run(self, id: UUID) -> FlowRun:
        return self.runs[id]


def called(flow_run: UUID, dynamic_key: str) -> TaskRun:
    return TaskRun(
        id=uuid4(), task_key="train", dynamic_key=dynamic_key, flow_run_id=flow_run, name=f"train-{dynamic_key}"
    )


@pytest.mark.promise("F1")
async def test_a_subflow_that_is_made_anew_finds_its_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = FlowRun(id=ROOT, flow_id=uuid4())
    call = called(ROOT, "0")
    monkeypatch.setattr(keys, "get_client", lambda: Api({ROOT: parent}, {call.id: call}))
    first, again = (FlowRun(id=uuid4(), flow_id=uuid4(), parent_task_run_id=call.id) for _ in range(2))
    assert (await place_of(first)).key("fit") == (await place_of(again)).key("fit")
    assert (await place_of(first)).flow_runs == (first.id, ROOT)


async def test_a_subflow_that_no_rerun_could_match_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    call = called(ROOT, str(uuid4()))
    monkeypatch.setattr(keys, "get_client", lambda: Api({}, {call.id: call}))
    with pytest.raises(BadInput, match="across_runs"):
        await place_of(FlowRun(id=uuid4(), flow_id=uuid4(), parent_task_run_id=call.id))


@task(retries=3, retry_delay_seconds=exponential_backoff(10))
def backing_off() -> None: ...


@task(retries=5, retry_delay_seconds=[1, 2])
def listed() -> None: ...


@task(retries=2, retry_delay_seconds=7, retry_jitter_factor=0.5)
def plain() -> None: ...


@task
def never() -> None: ...


@pytest.mark.promise("F1")
def test_retries_become_rules() -> None:
    (rule,) = plan_of(plain).rules
    assert (rule.budget, rule.delay) == (2, Delay(seconds=7.0, jitter=0.5))
    assert Cause.NODE_FAILURE in rule.when.cause
    assert Cause.STOPPED_OUTSIDE not in rule.when.cause
    assert [rule.delay.seconds for rule in plan_of(backing_off).rules] == [10.0, 20.0, 40.0]
    assert [(rule.delay.seconds, rule.budget) for rule in plan_of(listed).rules] == [(1.0, 1), (2.0, 4)]
    assert plan_of(never) == plan_of(None) == Plan()
    for one in (plain, backing_off, listed):
        assert problems(Spec(command=("true",)), plan_of(one)) == []
        assert is_of_retries(plan_of(one))


RESULT = JobResult(
    key="k", uid="u", outcome="failed", cause="exit", exit_code=3, message="", submissions=1, runs=1, settled=True
)


@pytest.mark.promise("F1")
@pytest.mark.parametrize(
    ("error", "again"),
    [
        (JobFailed(RESULT), False),
        (JobCancelled(RESULT), False),
        (BadInput("no"), False),
        (KeyTaken("no"), False),
        (StoreUnavailable("later"), True),
        (TimeoutError(), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_prefect_repeats_only_what_the_record_has_not_judged(error: Exception, again: bool) -> None:
    run = TaskRun(task_key="t", dynamic_key="0")
    state: State[object] = Failed(data=error)
    assert may_be_repeated(plain, run, state) is again


def record(result: Result, cause: Cause | None) -> Record:
    outcome = Outcome(result=result, cause=cause, at=datetime.now(UTC), by="test", exit_code=3 if cause else None)
    return Record(
        key="k", uid="0123456789abcdef", scheduler="local", spec=Spec(command=("true",)), plan=Plan(), outcome=outcome
    )


def test_an_outcome_is_a_result_or_an_error_that_carries_it() -> None:
    assert result_of(record(Result.SUCCEEDED, None)).outcome == "succeeded"
    with pytest.raises(JobFailed, match=r"failed \(exit\) with exit code 3") as failed:
        result_of(record(Result.FAILED, Cause.EXIT))
    with pytest.raises(JobCancelled) as cancelled:
        result_of(record(Result.CANCELLED, None))
    for error in (failed.value, cancelled.value):
        read = pickle.loads(pickle.dumps(error))  # noqa: S301 - what Prefect does with an error that it keeps
        assert (type(read), read.result, str(read)) == (type(error), error.result, str(error))


def test_the_block_is_found_by_its_entry_point() -> None:
    (point,) = (point for point in entry_points(group="prefect.collections") if point.name == "dispatch")
    assert point.load().DispatchStore is DispatchStore
    assert issubclass(DispatchStore, Block)
    assert DispatchStore.get_block_type_slug() == "dispatch-store"
    assert DispatchStore.get_description()
    assert "DispatchStore" in (DispatchStore.get_code_example() or "")


def test_the_block_keeps_its_url_to_itself() -> None:
    block = DispatchStore(url="postgresql://dispatch:bait@db/jobs")
    assert "bait" not in repr(block) + str(block) + block.model_dump_json()


def test_a_block_means_one_database() -> None:
    with pytest.raises(ValidationError, match="not both"):
        DispatchStore(url="sqlite:///jobs.db", server=True)
    assert DispatchStore.of_server(database_schema="jobs").server
