"""The trigger: a supervisor among others, that nothing but the job's outcome ends."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from airflow.triggers.base import TriggerEvent

from airflow_provider import ending, sites, trigger
from airflow_provider.trigger import DispatchTrigger
from dispatch_core.client import Client
from dispatch_core.plan import Plan, Spec
from dispatch_core.record import Record, Result
from dispatch_core.stores.sql import open_store
from tests.airflow.inside.conftest import Deployment, context, deferred, fired, made_again

USER_ACTION = "user-action"
"""How Airflow's runner marks the cancellation that `on_kill` follows; any other text would do here."""


async def submitted(deployment: Deployment, key: str = "job", script: str = "") -> DispatchTrigger:
    """A job, and a trigger for it as the operator makes one."""
    told = f'echo "$DISPATCH_SUBMISSION $DISPATCH_RUN start" >> {deployment.lines}; {script}'
    store = open_store(deployment.url)
    try:
        client = Client(store, "test")
        record = await client.submit(key, Spec(command=("bash", "-c", told)), Plan(), scheduler="local")
    finally:
        await store.close()
    instance = {"dag_id": "etl", "run_id": "r", "task_id": "train", "map_index": -1, "ti_id": "some-uuid"}
    return DispatchTrigger(key=key, uid=record.uid, instance=instance)


async def read(deployment: Deployment, key: str = "job") -> Record:
    store = open_store(deployment.url)
    try:
        return await store.read(key)
    finally:
        await store.close()


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 15.0) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.1)


async def killed(made: DispatchTrigger, work: "asyncio.Task[Any]") -> None:
    """What Airflow's runner does with a trigger whose row is gone: cancel it, then call its hook."""
    work.cancel(USER_ACTION)
    with pytest.raises(asyncio.CancelledError) as raised:
        await work
    assert raised.value.args == (USER_ACTION,), "else Airflow would not call the hook"
    await made.on_kill()


def test_it_is_made_again_from_what_was_serialized(deployment: Deployment) -> None:
    made = deferred(deployment.operator(), context()).trigger
    again = made_again(made)
    assert again.serialize() == made.serialize()
    assert again.name != made.name
    assert deployment.url not in str(made.serialize())


@pytest.mark.promise("A1")
@pytest.mark.promise("A3")
async def test_it_runs_the_job_to_its_end_and_fires_once(deployment: Deployment) -> None:
    made = await submitted(deployment)
    assert await fired(made) == {"key": "job", "uid": made.uid}
    record = await read(deployment)
    assert record.settled
    assert deployment.read_lines() == ["1 1 start"]
    assert sites._shared == {}


async def test_the_story_is_told_in_the_log(deployment: Deployment, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        await fired(await submitted(deployment))
    told = [record.getMessage() for record in caplog.records]
    assert any("submission 1 is authorized: first" in line for line in told)
    assert any("the job has succeeded" in line for line in told)


@pytest.mark.promise("P4")
async def test_the_same_trigger_in_two_triggerers_runs_one_job(deployment: Deployment) -> None:
    made = await submitted(deployment, script="sleep 1")
    one, other = await asyncio.gather(fired(made_again(made)), fired(made_again(made)))
    assert one == other
    assert (await read(deployment)).settled
    assert deployment.read_lines() == ["1 1 start"]


@pytest.mark.promise("P4")
@pytest.mark.case("T12")
def test_a_trigger_that_is_made_again_three_times_at_once_runs_one_job(deployment: Deployment) -> None:
    """From what the operator has serialized; nobody has launched it yet, and all three find it so."""
    made = deferred(deployment.operator("sleep 1"), context()).trigger
    three = [made_again(made) for _ in range(3)]
    assert len({one.name for one in three}) == 3

    async def at_once() -> list[Any]:
        return await asyncio.gather(*map(fired, three))

    assert asyncio.run(at_once()) == [{"key": made.key, "uid": made.uid}] * 3
    (record,) = deployment.records()
    assert record.settled
    assert len(record.submissions) == len(record.objects) == 1
    assert deployment.read_lines() == ["1 1 start"]


async def test_a_trigger_of_a_settled_job_fires_at_once(deployment: Deployment) -> None:
    made = await submitted(deployment)
    await fired(made)
    began = time.monotonic()
    await fired(made_again(made))
    assert time.monotonic() - began < 1.0


@pytest.mark.promise("P3")
async def test_a_triggerer_that_ends_leaves_the_job_running(deployment: Deployment) -> None:
    made = await submitted(deployment, script="sleep 3")
    work = asyncio.create_task(fired(made))

    async def is_running() -> bool:
        return bool(deployment.read_lines())

    await until(is_running)
    began = time.monotonic()
    work.cancel()
    with suppress(asyncio.CancelledError):
        await work
    assert time.monotonic() - began < 2 * trigger.DRAIN_SECONDS + 1
    store = open_store(deployment.url)
    (job,) = await store.jobs()
    assert job.owner is None, "the lease is given up"
    await store.close()
    await fired(made_again(made))
    assert (await read(deployment)).settled
    assert deployment.read_lines() == ["1 1 start"]


@pytest.mark.promise("P3")
async def test_an_outcome_alone_is_told_at_once_and_the_rest_is_seen_to(deployment: Deployment) -> None:
    made = await submitted(deployment)
    made.wait_for = "outcome"
    await fired(made)
    record = await read(deployment)
    assert record.outcome is not None
    assert not record.settled

    async def is_settled() -> bool:
        return (await read(deployment)).settled

    await until(is_settled)
    await until(lambda: _none_left())


async def test_a_store_that_is_away_is_waited_for(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trigger, "AGAIN_SECONDS", (0.3,))
    made = await submitted(deployment)
    away = deployment.folder / "away.db"
    (deployment.folder / "jobs.db").rename(away)
    work = asyncio.create_task(fired(made))
    await asyncio.sleep(1.0)
    assert not work.done()
    away.rename(deployment.folder / "jobs.db")
    await work
    assert (await read(deployment)).settled
    assert capsys.readouterr().out.count("is left as it is meanwhile") == 1, "told once, not at every try"


async def test_a_connection_that_is_missing_is_waited_for(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trigger, "AGAIN_SECONDS", (0.2,))
    made = await submitted(deployment)
    with monkeypatch.context() as without:
        without.delenv("AIRFLOW_CONN_DISPATCH_DEFAULT")
        work = asyncio.create_task(fired(made))
        await asyncio.sleep(0.5)
        assert not work.done()
    await work
    assert (await read(deployment)).settled


async def test_a_held_job_stays_deferred_and_says_so(deployment: Deployment, caplog: pytest.LogCaptureFixture) -> None:
    made = await submitted(deployment)
    store = open_store(deployment.url)
    client = Client(store, "person ann")
    await client.hold("job", reason="the disk is full")
    with caplog.at_level(logging.INFO):
        work = asyncio.create_task(fired(made))

        async def says_so() -> bool:
            return "waits:" in caplog.text

        await until(says_so)
        await asyncio.sleep(1.0)
        assert not work.done()
        assert deployment.read_lines() == []
        await client.release("job")
        await work
    await store.close()
    assert deployment.read_lines() == ["1 1 start"]


@pytest.mark.promise("A3")
@pytest.mark.promise("R2")
async def test_fifty_triggers_list_the_spool_once_a_period_in_all(deployment: Deployment) -> None:
    made = [await submitted(deployment, f"job-{number}", "sleep 2") for number in range(50)]
    began = time.monotonic()
    await asyncio.gather(*(fired(one) for one in made))
    periods = (time.monotonic() - began) / 0.2
    (adapter,) = deployment.adapters
    assert adapter.listings <= periods + 1
    assert deployment.read_lines() == ["1 1 start"] * 50
    assert sites._shared == {}
    with pytest.raises(Exception, match="closed"):
        await adapter.everything()


@pytest.mark.promise("A5")
@pytest.mark.parametrize("state", ["failed", "success", "skipped", "removed"])
async def test_a_task_that_has_ended_cancels_its_job_and_stops_it(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setattr(ending, "task_state", lambda instance: state)
    made = await submitted(deployment, script="sleep 60")
    work = asyncio.create_task(fired(made))

    async def is_running() -> bool:
        return bool(deployment.read_lines())

    await until(is_running)
    await killed(made, work)
    record = await read(deployment)
    assert record.outcome is not None
    assert record.outcome.result is Result.CANCELLED
    assert record.outcome.message == f"its task is {state} in Airflow"
    assert record.settled


@pytest.mark.parametrize("state", ["deferred", "queued", "scheduled", "running", "up_for_retry", None, ending.UNLISTED])
async def test_a_kill_of_a_task_that_goes_on_does_nothing(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, state: str | None
) -> None:
    """Reassigned to another triggerer: `deferred`; cleared: whatever the new try is."""
    monkeypatch.setattr(ending, "task_state", lambda instance: state)
    made = await submitted(deployment, script="sleep 60")
    work = asyncio.create_task(fired(made))
    await asyncio.sleep(0.5)
    await killed(made, work)
    assert (await read(deployment)).outcome is None


async def test_a_kill_that_airflow_does_not_explain_does_nothing(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(instance: object) -> str:
        raise RuntimeError("no answer")

    monkeypatch.setattr(ending, "task_state", refuse)
    made = await submitted(deployment)
    await made.on_kill()
    assert (await read(deployment)).outcome is None


async def test_a_kill_after_the_event_asks_nothing(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(ending, "task_state", asked.append)
    made = await submitted(deployment)
    await fired(made)
    await made.on_kill()
    await made_again(made).on_kill()  # another triggerer's, of a job that has its outcome
    assert asked == []


async def test_a_slow_answer_is_not_lost_when_airflow_stops_waiting(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(instance: object) -> str:
        time.sleep(1.0)
        return "failed"

    monkeypatch.setattr(ending, "task_state", slow)
    monkeypatch.setattr(trigger, "KILL_SECONDS", 0.2)
    made = await submitted(deployment)
    await made.on_kill()
    assert (await read(deployment)).outcome is None

    async def is_settled() -> bool:
        return (await read(deployment)).settled

    await until(is_settled)
    await until(lambda: _none_left())


async def _none_left() -> bool:
    return not trigger._ending and not sites._shared


async def test_a_kill_while_the_store_is_away_is_not_lost(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "task_state", lambda instance: "failed")
    monkeypatch.setattr(trigger, "AGAIN_SECONDS", (0.3,) * 10)
    made = await submitted(deployment)
    away = deployment.folder / "away.db"
    (deployment.folder / "jobs.db").rename(away)
    asyncio.get_running_loop().call_later(0.5, away.rename, deployment.folder / "jobs.db")
    await made.on_kill()
    record = await read(deployment)
    assert record.outcome is not None
    assert record.settled


async def test_the_event_is_one_that_airflow_can_store(deployment: Deployment) -> None:
    made = await submitted(deployment)
    (event,) = [event async for event in made.run()]
    assert isinstance(event, TriggerEvent)
    assert TriggerEvent.model_validate_json(event.model_dump_json()) == event
