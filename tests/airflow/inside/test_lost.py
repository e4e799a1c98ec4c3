"""Lost kills and the janitor's task: nothing is cancelled but on Airflow's word. Its answers are stood in for here."""

import asyncio
import logging
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse

from airflow_provider import ending, identity, lost, tasks
from airflow_provider.detaching import leave
from airflow_provider.janitor import DispatchJanitorOperator
from airflow_provider.submission import COME_TO
from airflow_provider.tasks import Instance
from dispatch_core.client import Client
from dispatch_core.plan import Plan, Spec
from dispatch_core.record import Record, Result
from dispatch_core.stores.contract import Store
from tests.airflow.inside.conftest import Deployment, StateStore, Try, context, deferred, fired, made_again

AWKWARD = [
    Instance("etl", "manual__2026-11-29T00:00:00+00:00", "train", -1),
    Instance("a/b%2Fc", "run 1, with words", "group.task", 0),
    Instance("e%", "r\u00fcn", "x_1", 12),
]
LONG = Instance("d" * 100, "r" * 100, "t" * 100, 7)

Answers = dict[tuple[str, str, str, int], str | None]


@pytest.fixture
def airflow_says(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """What Airflow answers: the states of Try's task instance, and of others."""

    def says(state: str | None = "deferred", **others: str | None) -> None:
        def run_states(dag_id: str, run_id: str, task_ids: list[str]) -> dict[tuple[str, int], str | None]:
            known = {"train": state, **others}
            return {(name, -1): known[name] for name in task_ids if known.get(name) != "unknown"}

        monkeypatch.setattr(lost, "run_states", run_states)

    return says


def janitor(**options: Any) -> dict[str, list[str]]:
    told: dict[str, list[str]] = DispatchJanitorOperator(task_id="janitor", **options).execute(context(Try()))
    return told


def looked(**options: Any) -> list[str]:
    """The keys that were cancelled in one look."""
    return janitor(adopt_seconds=0, **options)["cancelled"]


@pytest.mark.parametrize("instance", AWKWARD)
def test_a_tasks_own_key_names_it(instance: Instance) -> None:
    assert tasks.of_key(identity.key(instance.stem, 3)) == instance


@pytest.mark.parametrize(
    "key",
    [
        *("nightly", "airflow/a/b/c/-1", "airflow/a/b/c/x/0", "airflow/a/b/c/-1/x", "prefect/a/b/c/-1/0", ""),
        *("airflow/a%20b/b/c/-1/0/0", "airflow/a%2fb/b/c/-1/0", identity.key(LONG.stem, 0)),
    ],
)
def test_another_key_names_nobody(key: str) -> None:
    assert tasks.of_key(key) is None


@pytest.mark.parametrize("instance", [*AWKWARD, LONG])
def test_a_tasks_commits_are_signed_by_it(instance: Instance) -> None:
    assert tasks.of_actor(instance.actor("try 1 (max_tries 0, retries 0) some-uuid")) == instance


@pytest.mark.parametrize("actor", ["person ann", "airflow some-uuid 1234abcd", "airflow try 1 (max_tries 0) uuid"])
def test_others_sign_otherwise(actor: str) -> None:
    assert tasks.of_actor(actor) is None


@pytest.mark.promise("A5")
@pytest.mark.parametrize("state", sorted(ending.ENDED))
@pytest.mark.parametrize("task_id", ["train", "train" + "n" * 230])
def test_the_job_of_a_task_that_has_ended_is_cancelled(
    deployment: Deployment, airflow_says: Callable[..., None], state: str, task_id: str
) -> None:
    """A key that had to be cut is found by who made the record."""
    made = Try(task_id=task_id)
    airflow_says(**({"state": state} if task_id == "train" else {task_id: state}))
    deferred(deployment.operator(task_id=task_id), context(made))
    (key,) = looked()
    (record,) = deployment.records()
    assert record.key == key
    assert record.outcome is not None
    assert (record.outcome.result, record.outcome.message) == (Result.CANCELLED, f"its task is {state} in Airflow")
    assert record.outcome.by.startswith("airflow janitor ")
    assert looked() == []


@pytest.mark.parametrize(
    "state", ["deferred", "queued", "scheduled", "running", "up_for_retry", "restarting", "up_for_reschedule", None, ""]
)
def test_a_task_that_goes_on_keeps_its_job(
    deployment: Deployment, airflow_says: Callable[..., None], state: str | None
) -> None:
    airflow_says(state)
    deferred(deployment.operator(), context())
    assert looked() == []
    assert deployment.records()[0].outcome is None


def test_a_task_that_airflow_does_not_know_keeps_its_job(
    deployment: Deployment, airflow_says: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """It may be another Airflow's, on the same store."""
    airflow_says("unknown")
    deferred(deployment.operator(), context())
    assert looked() == []
    assert "goes on: this Airflow has no such task instance any more" in caplog.text


@pytest.mark.parametrize(
    "error",
    [AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR)), RuntimeError("no answer"), OSError("away")],
)
def test_no_answer_is_no_reason(deployment: Deployment, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(lost, "run_states", refuse)
    deferred(deployment.operator(), context())
    assert looked() == []
    assert deployment.records()[0].outcome is None


def test_a_job_that_was_left_running_goes_on(deployment: Deployment, airflow_says: Callable[..., None]) -> None:
    airflow_says("failed")
    deferred(deployment.operator(), context())
    (record,) = deployment.records()
    left(deployment, record, Try())
    assert looked() == []


def left(deployment: Deployment, record: Record, ti: Try) -> bool:
    """What the trigger of a try says when its time is over; whether it may."""
    instance = Instance(ti.dag_id, ti.run_id, ti.task_id, -1)
    history = deployment.asked(lambda store: store.history(record.key))
    ti_id = next(change.actor for change in history if tasks.of_actor(change.actor) == instance).rpartition(", ")[2]
    return bool(deployment.asked(lambda store: leave(store, record, instance, ti_id)))


def test_who_leaves_a_job_that_several_wait_for_has_left_it_alone(
    deployment: Deployment, airflow_says: Callable[..., None]
) -> None:
    """It has no say any more; the others' ends count, and where all have left it, nobody has ended it."""
    for name in ("train", "other", "third"):
        deferred(deployment.operator(task_id=name, key="nightly"), context(Try(task_id=name)))
    (record,) = deployment.records()
    assert left(deployment, record, Try())
    for other, third in (("deferred", "failed"), ("deferred", "deferred"), ("unknown", "failed")):
        airflow_says("failed", other=other, third=third)
        assert looked() == []
    assert left(deployment, record, Try(task_id="third"))
    airflow_says("failed", other="failed", third="failed")
    assert looked() == ["nightly"]


def test_a_job_that_all_have_left_goes_on(deployment: Deployment, airflow_says: Callable[..., None]) -> None:
    for name in ("train", "other"):
        deferred(deployment.operator(task_id=name, key="nightly"), context(Try(task_id=name)))
    (record,) = deployment.records()
    assert all(left(deployment, record, Try(task_id=name)) for name in ("train", "other"))
    airflow_says("failed", other="failed")
    assert looked() == []


def test_a_job_that_several_wait_for_goes_on_until_all_have_ended(
    deployment: Deployment, airflow_says: Callable[..., None]
) -> None:
    tries = [Try(task_id=name) for name in ("train", "other")]
    for ti in (*tries, tries[0]):
        deferred(deployment.operator(task_id=ti.task_id, key="nightly"), context(ti))
    (record,) = deployment.records()
    history = deployment.asked(lambda store: store.history(record.key))
    assert [change.lines for change in history[1:]] == [(COME_TO,)], "each is told once"
    for state, other in (("failed", "deferred"), ("deferred", "failed"), ("failed", "unknown")):
        airflow_says(state, other=other)
        assert looked() == []
    airflow_says("failed", other="success")
    assert looked() == ["nightly"]
    (record,) = deployment.records()
    assert record.outcome is not None
    assert record.outcome.message == "its task is failed or success in Airflow"


@pytest.mark.parametrize(("other", "cancelled"), [("deferred", False), ("up_for_retry", False), ("failed", True)])
def test_a_kill_of_one_of_several_tasks_leaves_the_others_their_job(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, other: str, cancelled: bool
) -> None:
    states = {"train": "failed", "other": other}
    monkeypatch.setattr(ending, "task_state", lambda instance: states[instance["task_id"]])
    one, _ = (
        deferred(deployment.operator("sleep 60", task_id=name, key="nightly"), context(Try(task_id=name)))
        for name in ("train", "other")
    )
    asyncio.run(made_again(one.trigger).on_kill())
    assert (deployment.records()[0].outcome is not None) is cancelled


@pytest.mark.parametrize(("leaver", "cancelled"), [("other", True), ("train", False)])
def test_a_kill_of_one_of_several_tasks_is_nothing_to_who_has_left_the_job(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, leaver: str, cancelled: bool
) -> None:
    """The job of a task that is killed is cancelled though another had left it; who has left it is not killed."""
    monkeypatch.setattr(ending, "task_state", lambda instance: "failed")
    one, _ = (
        deferred(deployment.operator("sleep 60", task_id=name, key="nightly"), context(Try(task_id=name)))
        for name in ("train", "other")
    )
    (record,) = deployment.records()
    assert left(deployment, record, Try(task_id=leaver))
    asyncio.run(made_again(one.trigger).on_kill())
    assert (deployment.records()[0].outcome is not None) is cancelled


@pytest.mark.parametrize("answer", [{}, {"manual__2026-11-29T00:00:00+00:00": {}}])
def test_a_task_that_airflow_does_not_list_keeps_its_job_when_it_is_killed(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any]
) -> None:
    """As with the janitor: nobody has said that it ended."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", lambda **_: answer)
    waiting = deferred(deployment.operator("sleep 60"), context())
    asyncio.run(made_again(waiting.trigger).on_kill())
    assert deployment.records()[0].outcome is None


def test_a_job_that_somebody_else_made_goes_on(deployment: Deployment, airflow_says: Callable[..., None]) -> None:
    """A person, or Prefect, may wait for it as well."""

    async def by_hand(store: Store) -> Record:
        return await Client(store, "person ann").submit("nightly", Spec(command=("true",)), Plan(), scheduler="local")

    deployment.asked(by_hand)
    airflow_says("failed")
    deferred(deployment.operator(command=["true"], key="nightly"), context())
    assert looked() == []


def test_a_job_that_was_followed_by_another_is_cancelled(
    deployment: Deployment, airflow_says: Callable[..., None]
) -> None:
    """Airflow tells the new try's state; the earlier job is nobody's."""
    airflow_says("deferred")
    deferred(deployment.operator(), context())
    (old,) = deployment.records()
    newer = identity.key(old.key.rpartition("/")[0], 1)
    deployment.asked(lambda store: Client(store, "other").submit(newer, old.spec, old.plan, scheduler="local"))
    assert looked() == [old.key]
    outcomes = {record.key: record.outcome for record in deployment.records()}
    assert outcomes[newer] is None
    assert outcomes[old.key].message == "its task was cleared in Airflow"


def test_a_record_that_has_moved_on_is_looked_at_again(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, airflow_says: Callable[..., None]
) -> None:
    """Airflow's answer is older than what was committed since, by a task that came to the job, say."""
    airflow_says("failed")
    deferred(deployment.operator(key="nightly"), context())
    asked = lost.ask_airflow

    def meanwhile(jobs: Any) -> Any:
        states = asked(jobs)
        deferred(deployment.operator(task_id="other", key="nightly"), context(Try(task_id="other")))
        return states

    with monkeypatch.context() as once:
        once.setattr(lost, "ask_airflow", meanwhile)
        assert looked() == []
    airflow_says("failed", other="failed")
    assert looked() == ["nightly"]


def test_a_mapped_task_and_one_that_is_named_like_it_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    answers = {"a": {"a_1": "failed", "a_2": None}, "a_1": {"a_1": "running"}}

    def states(*, task_ids: list[str], **_: Any) -> dict[str, dict[str, str | None]]:
        return {"r": answers[task_ids[0]]}

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", states)
    assert ending.run_states("d", "r", ["a", "a_1"]) == {("a", 1): "failed", ("a", 2): None, ("a_1", -1): "running"}
    instance = {"dag_id": "d", "run_id": "r", "task_id": "a", "map_index": 1}
    assert ending.task_state(instance) == "failed"
    assert ending.task_state({**instance, "map_index": 3}) == ending.UNLISTED


@pytest.mark.promise("O3")
def test_what_nobody_supervises_is_taken_on(
    deployment: Deployment, airflow_says: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(monkeypatch)
    airflow_says()
    deferred(deployment.operator(), context())
    told = janitor(adopt_seconds=30, local=True)
    assert told == {"cancelled": [], "unattended": [], "unsettled": []}
    assert deployment.read_lines() == ["1 1 start"]
    assert deployment.records()[0].settled


def test_what_it_cancels_is_seen_to_its_end_although_a_lost_triggerer_has_a_lease_on_it(
    deployment: Deployment, airflow_says: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(monkeypatch)
    monkeypatch.setattr("airflow_provider.janitor.LOOKING_SECONDS", 0.5)
    airflow_says("failed")
    deferred(deployment.operator(), context())
    (record,) = deployment.records()
    deployment.asked(lambda store: store.acquire(record, "a triggerer that is gone", 4.0))
    told = janitor(adopt_seconds=60, local=True)
    assert told == {"cancelled": [record.key], "unattended": [], "unsettled": []}
    assert deployment.read_lines() == []


def test_a_job_that_lasts_is_left_when_the_time_is_over(
    deployment: Deployment, airflow_says: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(monkeypatch)
    airflow_says()
    first = deferred(deployment.operator("sleep 5"), context())
    (record,) = deployment.records()
    told = janitor(adopt_seconds=2, local=True)
    assert told == {"cancelled": [], "unattended": [record.key], "unsettled": [record.key]}
    asyncio.run(fired(made_again(first.trigger)))
    assert deployment.read_lines() == ["1 1 start"]
    assert deployment.records()[0].settled


def test_local_jobs_are_left_to_their_triggerers_unless_told(
    deployment: Deployment, airflow_says: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    airflow_says()
    deferred(deployment.operator(), context(Try(), StateStore()))
    told = janitor(adopt_seconds=30)
    assert len(told["unattended"]) == 1
    assert deployment.records()[0].submissions == ()
    assert "local=True takes them on" in capsys.readouterr().out


def test_a_cluster_that_is_not_defined_keeps_nobody_else_waiting(
    deployment: Deployment, airflow_says: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(monkeypatch)
    airflow_says()

    async def elsewhere(store: Store) -> Record:
        return await Client(store, "ann").submit("far", Spec(command=("true",)), Plan(), scheduler="nowhere")

    deployment.asked(elsewhere)
    deferred(deployment.operator(), context())
    assert janitor(adopt_seconds=30, local=True)["unattended"] == ["far"]


def test_the_example_finds_a_lost_kill(deployment: Deployment, airflow_says: Callable[..., None]) -> None:
    path = Path(__file__).parents[3] / "examples" / "airflow_janitor_dag.py"
    spec = spec_from_file_location("example", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    (made,) = module.dag.tasks
    assert isinstance(made, DispatchJanitorOperator)
    airflow_says("failed")
    deferred(deployment.operator(), context())
    told = made.execute(context(Try()))
    assert told["cancelled"] == told["unattended"] == [record.key for record in deployment.records()]


def opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """The janitor's local scheduler is as quick as that of the triggers here."""
    from airflow_provider import janitor as module
    from airflow_provider import sites

    monkeypatch.setattr(module, "open_cluster", sites.open_cluster)


def test_it_says_how_many_it_looked_at(
    deployment: Deployment, airflow_says: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    airflow_says("failed")
    deferred(deployment.operator(), context())
    with caplog.at_level(logging.INFO):
        (key,) = looked()
    assert f"job {key} is cancelled: its task is failed in Airflow, and nobody had told dispatch" in caplog.text
