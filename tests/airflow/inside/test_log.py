"""What the log of a task says of its job: every commit once, what is in its way, and the end of the job's own log."""

import asyncio
import logging
from typing import Any

import pytest

from airflow_provider.failures import JobFailed
from airflow_provider.tail import LONGEST_LINE
from dispatch_core.client import Client
from dispatch_core.plan import Plan, Spec
from dispatch_core.stores.sql import open_store
from tests.airflow.inside.conftest import KEY, Deployment, carried_out, context, deferred, fired, made_again

MARK = "xyzzy-5c1d-the-secret-of-a-job"


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Any:
    """What was logged so far, line by line, without what frames each."""

    def read() -> list[str]:
        return [
            line.partition("] ")[2].split(" [airflow", 1)[0].strip() for line in capsys.readouterr().out.splitlines()
        ]

    return read


def test_the_end_of_the_jobs_log(deployment: Deployment, told: Any) -> None:
    carried_out(deployment.operator("seq 1 100; echo what went wrong >&2", log_lines=3), context())
    (record,) = deployment.records()
    said = told()
    at = said.index(f"the last 3 lines of the log of run 1 of {record.objects[0].id}:")
    assert said[at + 1 : at + 4] == ["98", "99", "100"]
    assert "what went wrong" in said
    assert "97" not in said


def test_a_job_that_failed_shows_why(deployment: Deployment, told: Any) -> None:
    with pytest.raises(JobFailed):
        carried_out(deployment.operator("echo no such checkpoint; exit 2"), context())
    assert "no such checkpoint" in told()


def test_none_where_none_is_asked_for(deployment: Deployment, told: Any) -> None:
    carried_out(deployment.operator("echo something", log_lines=0), context())
    assert "something" not in told()


def test_it_is_bounded(deployment: Deployment, told: Any) -> None:
    script = "head -c 3000000 /dev/zero | tr '\\0' x; printf 'end'; (head -c 9000 /dev/zero | tr '\\0' y; echo) >&2"
    carried_out(deployment.operator(script), context())
    said = told()
    (end,) = (line for line in said if line.endswith("xend"))
    (begin,) = (line for line in said if line.startswith("yyy"))
    assert (len(end), len(begin)) == (LONGEST_LINE, LONGEST_LINE)


def test_a_job_that_never_ran_has_none(deployment: Deployment, told: Any) -> None:
    waiting = deferred(deployment.operator(), context())
    deployment.asked(lambda store: Client(store, "person ann").cancel(KEY))
    asyncio.run(fired(made_again(waiting.trigger)))
    assert not [line for line in told() if "lines of the log" in line or "is not shown" in line]


def test_a_secret_that_a_job_prints_is_taken_out(deployment: Deployment, told: Any) -> None:
    (deployment.folder / "token").write_text(MARK)
    spec = {"secret_environment": {"TOKEN": {"file": f"{deployment.folder}/token"}}}
    carried_out(deployment.operator('echo "it is $TOKEN, no more"', spec=spec), context())
    said = told()
    assert "it is ***, no more" in said
    assert not [line for line in said if MARK in line]


def test_nothing_is_shown_where_a_secret_cannot_be_looked_up_any_more(deployment: Deployment, told: Any) -> None:
    token = deployment.folder / "token"
    token.write_text(MARK)
    spec = {"secret_environment": {"TOKEN": {"file": str(token)}}}
    carried_out(deployment.operator(f'rm {token}; echo "it is $TOKEN"', spec=spec), context())
    said = told()
    assert not [line for line in said if MARK in line]
    assert any(line.startswith("the end of the job's log is not shown: the secret in file") for line in said)


async def test_what_others_commit_is_told_once_and_a_hold_is_loud(
    deployment: Deployment, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store = open_store(deployment.url)
    client = Client(store, "person ann")
    script = f"echo start >> {deployment.lines}"
    record = await client.submit("job", Spec(command=("bash", "-c", script)), Plan(), scheduler="local")
    made = made_again(deferred_trigger(record.uid))
    said = ""

    async def until(text: str) -> None:
        nonlocal said
        async with asyncio.timeout(20):
            while text not in said:
                said += capsys.readouterr().out
                await asyncio.sleep(0.1)

    await client.hold("job", reason="the disk is full")
    work = asyncio.create_task(fired(made))
    await until("job job waits: ")
    await client.release("job")
    await until("hold 1 is lifted")
    await work
    await store.close()
    said += capsys.readouterr().out
    (warned,) = (line for line in said.splitlines() if "job job waits: " in line)
    assert "[warning" in warned
    assert "the disk is full" in warned
    (lifted,) = (line for line in said.splitlines() if "hold 1 is lifted" in line)
    assert "(by person ann)" in lifted
    for line in ("submission 1 is authorized", "the job has succeeded", " settled"):
        assert f"{said}{caplog.text}".count(line) == 1, line


async def test_a_job_that_another_supervises_is_told_of_all_the_same(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(deployment.url)
    record = await Client(store, "test").submit(
        "job", Spec(command=("bash", "-c", "sleep 2")), Plan(), scheduler="local"
    )
    await store.close()
    one, other = made_again(deferred_trigger(record.uid)), made_again(deferred_trigger(record.uid))
    await asyncio.gather(fired(one), fired(other))
    said = capsys.readouterr().out
    assert f"(by {one.name})" in said or f"(by {other.name})" in said


def deferred_trigger(uid: str) -> Any:
    from airflow_provider.trigger import DispatchTrigger

    return DispatchTrigger(key="job", uid=uid)
