"""Answers that are none of an API server's, or not those that were hoped for: on the API server of the tests."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path

import pytest
import yaml

from dispatch_core.adapters.conformance.rig import Case
from dispatch_core.adapters.contract import Log
from dispatch_core.adapters.kubernetes import transport
from dispatch_core.adapters.kubernetes.calls import Late
from dispatch_core.adapters.kubernetes.cluster import KubernetesCluster
from dispatch_core.adapters.kubernetes.kinds import JOB, Sort
from dispatch_core.adapters.kubernetes.scheduler import KubernetesScheduler
from dispatch_core.adapters.kubernetes.transport import Answered, Api, NotSent
from dispatch_core.errors import SchedulerUnavailable
from dispatch_core.record import Answer, State
from tests.kubernetes.rig import ROLE_TOKEN, kubeconfig, served
from tests.kubernetes.server import ADMIN_TOKEN, ApiServer

PAGES = ("<html>Log in</html>", '{"error": "log in"}', "[]", "")


@pytest.mark.promise("C3")
@pytest.mark.parametrize("page", PAGES[:3])
async def test_a_page_that_a_proxy_answers_with_is_no_listing(tmp_path: Path, page: str) -> None:
    """It would show that every object is gone."""
    async with served(tmp_path) as (server, rig):
        case = Case(rig)
        target = await case.started()
        answered = server.faults.page(page, "list", "jobs")
        with pytest.raises(SchedulerUnavailable):
            await case.adapter.find(case.job)
        assert answered.hit == 1
        assert (await case.seen(target.id)).state is State.GATED


@pytest.mark.promise("G5")
@pytest.mark.parametrize("page", PAGES[:2])
async def test_a_page_that_a_proxy_answers_a_call_with_is_no_success(tmp_path: Path, page: str) -> None:
    async with served(tmp_path) as (server, rig):
        case = Case(rig)
        launch, deadline = case.launch(rig.payload(case.line)), await case.in_time()
        server.faults.page(page, "create", "jobs")
        assert (await case.adapter.start(launch, {}, deadline)).answer is Answer.UNKNOWN
        target = await case.started()
        server.faults.page(page, "patch", "jobs")
        assert (await case.adapter.open(target, await case.in_time())).answer is Answer.UNKNOWN
        await case.stays(target, State.GATED)
        server.faults.page(page, "get", "jobs")
        assert (await case.adapter.stop_job((target.name,), await case.in_time())).answer is not Answer.DONE


@pytest.mark.promise("L5")
async def test_the_clock_of_a_proxy_is_not_the_servers(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, rig):
        case = Case(rig)
        before = (await case.find()).began
        clock = rig.adapter.api.clock
        server.faults.page("Bad Gateway", "list", "jobs", status=502)
        heard: list[str] = []
        clock.heard = lambda date, sent, received: heard.append(date)  # type: ignore[method-assign]
        with pytest.raises(SchedulerUnavailable):
            await case.adapter.find(case.job)
        assert heard == []
        assert (await case.find()).began > before


@pytest.mark.promise("G5")
@pytest.mark.parametrize("plural", ["configmaps", "secrets", "jobs"])
async def test_a_quota_that_changes_meanwhile_costs_no_attempt(tmp_path: Path, plural: str) -> None:
    """409 of a create is not always "already exists"."""
    async with served(tmp_path) as (server, rig):
        case = Case(rig)
        busy = server.faults.answer(409, "create", plural, times=2)
        launch = case.launch(rig.payload(case.line))
        reply = await case.adapter.start(launch, {"TOKEN": "bait"}, await case.in_time())
        assert (reply.answer, busy.hit) == (Answer.DONE, 2)
        made = {asked.plural for asked in server.requests if asked.verb == "create"}
        assert made >= {"configmaps", "secrets", "jobs"}
        assert [kind.plural for kind, rows in server.store.objects.items() if kind.plural == "secrets" and rows]


@pytest.mark.promise("G5")
@pytest.mark.parametrize("fails", [Late, NotSent])
async def test_a_start_that_meets_its_name_and_cannot_look_at_it_is_unknown(
    tmp_path: Path, fails: type[Exception]
) -> None:
    """Late would stand for good, and say that the attempt made nothing."""
    async with served(tmp_path) as (_, rig):
        case = Case(rig)
        launch = case.launch(rig.payload(case.line))
        assert (await case.adapter.start(launch, {}, await case.in_time())).answer is Answer.DONE
        look = rig.adapter.calls.get

        async def broken(sort: Sort, name: str, deadline: datetime) -> Answered:
            if sort is JOB:
                raise fails("the server restarts")
            return await look(sort, name, deadline)

        rig.adapter.calls.get = broken  # type: ignore[method-assign]
        assert (await case.adapter.start(launch, {}, await case.in_time())).answer is Answer.UNKNOWN


# --- credentials


def renew(server: ApiServer, folder: Path, before: str, after: str) -> None:
    """A token ends, and the kubeconfig has a new one."""
    server.access.users[after] = server.access.users.pop(before)
    kubeconfig(server.url, folder, after)


async def test_a_token_that_expires_breaks_none_of_many_requests(tmp_path: Path) -> None:
    async with ApiServer() as server:
        server.access.users["first"] = server.access.users[ADMIN_TOKEN]
        api = Api(KubernetesCluster(name="test", kubeconfig=str(kubeconfig(server.url, tmp_path, "first"))))
        path = "/apis/batch/v1/namespaces/default/jobs"
        try:
            assert (await api.request("GET", path, seconds=5.0)).well
            server.faults.slow(0.3, "list", "jobs", times=20)
            early = [asyncio.create_task(api.request("GET", path, seconds=5.0)) for _ in range(5)]
            await asyncio.sleep(0.1)
            renew(server, tmp_path, "first", "second")
            works = []
            for _ in range(40):
                works.append(asyncio.create_task(api.request("GET", path, seconds=5.0)))
                await asyncio.sleep(0.003)
            found = await asyncio.gather(*early, *works, return_exceptions=True)
            assert [each for each in found if isinstance(each, BaseException) or not each.well] == []
        finally:
            await api.close()


async def test_a_token_that_expires_hinders_no_stream(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, rig):
        case = Case(rig)
        target = await case.started()
        watching = asyncio.create_task(case.adapter.watch(case.job, 60.0))
        await asyncio.sleep(0.5)
        await case.find()
        renew(server, tmp_path, ROLE_TOKEN, "second")
        server.end_watches()
        assert (await case.adapter.open(target, await case.in_time())).answer is Answer.DONE
        async with asyncio.timeout(20):
            await watching


PLUGIN = """#!/bin/sh
if [ -e {folder}/hangs ]; then
    echo $$ >{folder}/new; mv {folder}/new {folder}/hung
    while [ ! -e {folder}/ends ]; do sleep 0.1; done
fi
if [ -e {folder}/broken ]; then echo "the identity provider is away" >&2; exit 1; fi
echo '{{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",'
echo '"status": {{"token": "'$(cat {folder}/token)'"}}}}'
"""


def with_plugin(server: ApiServer, folder: Path) -> KubernetesCluster:
    """A kubeconfig whose token a program gets."""
    path = kubeconfig(server.url, folder)
    told = yaml.safe_load(path.read_text())
    program = folder / "plugin"
    program.write_text(PLUGIN.format(folder=folder))
    program.chmod(0o755)
    how = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(program), "interactiveMode": "Never"}
    told["users"][0]["user"] = {"exec": how}
    path.write_text(yaml.safe_dump(told))
    return KubernetesCluster(name="test", kubeconfig=str(path), image="i", poll_seconds=0.02, proxy_seconds=0.0)


@pytest.mark.promise("R1")
async def test_a_program_that_gets_no_new_token_for_a_while_is_an_outage(tmp_path: Path) -> None:
    """The kubeconfig has been good before, so it is not told to be bad input, which ends a supervisor."""
    async with ApiServer() as server:
        server.access.users["first"] = server.access.users[ADMIN_TOKEN]
        (tmp_path / "token").write_text("first")
        adapter = KubernetesScheduler(with_plugin(server, tmp_path))
        try:
            await adapter.everything()
            server.access.users["second"] = server.access.users.pop("first")
            (tmp_path / "token").write_text("second")
            (tmp_path / "broken").touch()
            for _ in range(2):
                with pytest.raises(SchedulerUnavailable, match="identity provider"):
                    await adapter.everything()
            (tmp_path / "broken").unlink()
            await adapter.everything()
        finally:
            await adapter.close()


async def test_a_program_that_hangs_over_a_token_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream has no time limit of its own, and everybody waits for one login."""
    monkeypatch.setattr(transport, "LOGIN_SECONDS", 1.0)
    async with ApiServer() as server:
        (tmp_path / "token").write_text(ADMIN_TOKEN)
        api = Api(with_plugin(server, tmp_path))
        path = "/apis/batch/v1/namespaces/default/jobs"

        async def follow() -> list[bytes]:
            return [line async for line in api.lines(path, {"watch": "true"}, 90.0)]

        try:
            (tmp_path / "hangs").touch()
            following = asyncio.create_task(follow())
            while not (tmp_path / "hung").exists():
                await asyncio.sleep(0.05)
            (tmp_path / "hangs").unlink()
            assert (await api.request("GET", path, seconds=20.0)).well
            with pytest.raises(NotSent):
                await following
        finally:
            (tmp_path / "ends").touch()
            hung = Path("/proc") / (tmp_path / "hung").read_text().strip()
            while hung.exists():  # the library does not end what it does not wait for any more
                await asyncio.sleep(0.1)
            await api.close()


# --- logs


@pytest.mark.parametrize("status", [429, 500])
async def test_a_log_that_cannot_be_read_now_is_not_gone(tmp_path: Path, status: int) -> None:
    async with served(tmp_path) as (server, rig):
        case = Case(rig)
        target = await case.running()
        server.faults.answer(status, "get", "pods")
        with pytest.raises(SchedulerUnavailable):
            await case.adapter.read_log(target, 1, 0, 100)
        assert (await case.adapter.read_log(target, 1, 0, 100)).log is Log.THERE
