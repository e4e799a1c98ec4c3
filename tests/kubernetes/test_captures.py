"""Each recorded exchange, sent again to the test server: the same status, the same reason, the same object.

One rule: a capture is either replayed here, or played by a controller in `test_controllers.py`, or listed in
`NOT_REPLAYED` with its reason.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.kubernetes.captured import Capture, at_present, capture, cases, found_by, outline
from tests.kubernetes.client import Client
from tests.kubernetes.lives import KUEUE_LIVES, LIVES
from tests.kubernetes.server import ADMIN_TOKEN, ApiServer
from tests.kubernetes.server.kinds import BUDGET, CONFIG_MAP, JOB, NAMESPACE, QUOTA, SECRET

VIEWER = "viewer-token"
JOBS_ONLY = [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list", "watch"]}]
AS_VIEWER = {
    *("basic-53-forbidden-create", "basic-54-forbidden-patch", "basic-55-forbidden-delete", "basic-59-get-as-viewer"),
    *("basic-56-forbidden-list-cluster", "basic-57-forbidden-pods", "basic-58-forbidden-workloads"),
    *("watch-15-forbidden", "watch-17-as-viewer"),
}
AS_NOBODY = {"basic-51-unauthorized-bad-token", "basic-52-unauthorized-no-token", "watch-16-unauthorized"}

NOT_REPLAYED = {
    "basic-02-discovery-batch": "only the kinds that the server offers are listed; see test_discovery",
    "basic-40-ssa-conflict": "server-side apply is a plain merge here",
    "kueue-29-gated-watch-job": "who was quicker, Kueue or the Job controller, is chance: test_foreign_unsuspend",
    "restart-02-starting-readyz-500": "the server here is ready as soon as it listens",
    "life-12-complete-watch-pod": "pod status was played by hand in the recording; the kubelet here has its own steps",
    "life-61-suspend-watch-pod": "the same",
}
# Captures whose state takes more than one call to reach, and the test that reaches it.
PLAYED_ELSEWHERE = {
    "basic-14-list-page-1": "test_pages",
    "basic-15-list-page-2": "test_pages",
    "basic-16-list-nolabel-page-1": "test_pages",
    "watch-05-from-list": "test_changes_as_a_watch_shows_them",
    "watch-06-resume": "test_changes_as_a_watch_shows_them",
    "watch-03-leave-selector": "test_changes_as_a_watch_shows_them",
    "watch-01-periodic-bookmarks": "test_bookmarks",
    "restart-01-watch-graceful-stop": "test_watches_end",
    "restart-03-watch-killed": "test_watches_end",
    "kueue-48-queue-change-running": "test_what_kueue_refuses",
    "kueue-69-gate-after-creation": "test_what_kueue_refuses",
    "kueue-81-policy-foreign-unsuspend": "test_gate_policy_under_kueue",
    **dict.fromkeys(LIVES, "test_life_of_a_job"),
    **dict.fromkeys(KUEUE_LIVES, "test_life_under_kueue"),
}
# Of these the server gives the status and the reason, not the whole list of causes.
IN_OUTLINE = {
    "watch-19-list-rv-future": "the server names its own revision",
    "policy-07-create-invalid-cel": "the words of another reader of expressions",
    "basic-35-mergepatch-wrong-uid": "a wrong uid is refused, not also the labels that follow from it",
}


def terminating(server: ApiServer) -> None:
    namespace = copy.deepcopy(server.get(NAMESPACE, "team-b"))
    server.store.update(NAMESPACE, namespace | {"status": {"phase": "Terminating"}})


def used_up(server: ApiServer) -> None:
    one = {"count/jobs.batch": "1"}
    metadata = {"name": "jobs", "namespace": "team-b"}
    server.store.create(QUOTA, {"metadata": metadata, "spec": {"hard": one}, "status": {"hard": one, "used": one}})


def budgeted(server: ApiServer) -> None:
    metadata = {"name": "keep-trainers", "namespace": "team-a"}
    server.store.create(BUDGET, {"metadata": metadata, "spec": {"selector": {"matchLabels": {}}}})


def labelled(server: ApiServer) -> None:
    """No recording shows this object before its label was taken off."""
    (job,) = (job for job in server.store.all(JOB) if "dispatch.example/job" not in job["metadata"]["labels"])
    job = copy.deepcopy(job)
    job["metadata"]["labels"]["dispatch.example/job"] = "gated"
    server.store.update(JOB, job)


# What went wrong, or was there, when these were recorded.
PREPARED: dict[str, Callable[[ApiServer], object]] = {
    "basic-60-create-quota-exceeded": used_up,
    "basic-61-create-namespace-terminating": terminating,
    "basic-62-timeout-504-not-stored": lambda server: server.faults.slow(0.05, "create"),
    "basic-64-timeout-504-stored": lambda server: server.faults.answer(504, "create", carried=True),
    "basic-66-timeout-disconnect-not-stored": lambda server: server.faults.lose_call("create"),
    "basic-68-timeout-disconnect-stored": lambda server: server.faults.lose_reply("create"),
    "policy-26-gate-remove-label": labelled,
    "life-33-eviction-api-refused": budgeted,
    "restart-04-watch-expired": ApiServer.expire,
    "restart-05-watch-last-rv": ApiServer.expire,
    "restart-06-list-continue-expired": ApiServer.expire,
    "restart-08-list-exact-expired": ApiServer.expire,
}


def only_read(case: str) -> bool:
    """A state that controllers reached, as a GET showed it: `test_controllers.py` reaches it, parsers read it."""
    recorded = capture(case)
    return recorded.area in ("life", "kueue", "nogate") and recorded.method == "GET" and recorded.status == 200


def replayed() -> list[str]:
    left_out = (*NOT_REPLAYED, *PLAYED_ELSEWHERE)
    return [case for case in cases() if case not in left_out and capture(case).events is None and not only_read(case)]


def watched() -> list[str]:
    left_out = (*NOT_REPLAYED, *PLAYED_ELSEWHERE)
    return [case for case in cases() if case not in left_out and capture(case).events is not None]


def prepared(case: str) -> ApiServer:
    """A server that holds what the exchange found."""
    recorded = capture(case)
    with_kueue = recorded.area in ("kueue", "hookdown", "nogate")
    gates = recorded.area != "nogate"
    spaces = ("default", "team-a", "team-b")
    server = ApiServer(namespaces=spaces, kueue=with_kueue, admission_gates=gates, controllers=False)
    server.faults.webhook_down = recorded.area == "hookdown"
    server.access.add(VIEWER, "viewer", JOBS_ONLY, ["team-a"])
    for (resource, namespace, name), seed in found_by(case).items():
        if server.store.get(resource, namespace, name) is None:
            revision = seed["metadata"]["resourceVersion"]
            stored = server.store.create(resource, at_present(seed, recorded.at))
            stored["metadata"]["resourceVersion"] = revision
    revisions = [int(seed["metadata"]["resourceVersion"]) for seed in found_by(case).values()]
    asked = re.search(r"resourceVersion=(\d{3,4})\b", recorded.path)
    server.store.revision = max([server.store.revision, *revisions, int(asked[1]) if asked else 0])
    return server


def token_of(case: str) -> str:
    return VIEWER if case in AS_VIEWER else "nobody" if case in AS_NOBODY else ADMIN_TOKEN


async def sent(server: ApiServer, case: str) -> tuple[int | None, Any, str | None]:
    try:
        return await answered(server, case)
    except aiohttp.ServerDisconnectedError:
        return None, None, None


async def answered(server: ApiServer, case: str) -> tuple[int, Any, str | None]:
    recorded = capture(case)
    headers = {**recorded.headers, "authorization": f"Bearer {token_of(case)}"}
    body = at_present(recorded.body, recorded.at)
    data = body if isinstance(body, str) or body is None else json.dumps(body)
    async with (
        aiohttp.ClientSession() as session,
        session.request(recorded.method, server.url + recorded.path, headers=headers, data=data) as response,
    ):
        text = await response.text()
        answer = json.loads(text) if text.startswith(("{", "[")) else text
        return response.status, answer, response.headers.get("Warning")


def compared(recorded: Capture, answer: Any) -> Any:
    """What of an answer must be the same: all of a Status, of an object what does not vary."""
    if not isinstance(answer, dict):
        return answer
    if answer.get("kind") == "Status" or "metadata" not in answer or "kind" not in answer:
        return copy.deepcopy(answer)
    if generated(recorded):
        return outline(json.loads(json.dumps(answer).replace(answer["metadata"]["name"], "(name)")))
    names = [item["metadata"]["name"] for item in answer["items"]] if "items" in answer else answer["metadata"]["name"]
    return {"names": names, **outline(answer)}


def generated(recorded: Capture) -> bool:
    return isinstance(recorded.body, dict) and "generateName" in recorded.body.get("metadata", {})


@pytest.mark.parametrize("case", replayed())
async def test_replayed(case: str) -> None:
    recorded = capture(case)
    async with prepared(case) as server:
        PREPARED.get(case, lambda _: None)(server)
        status, answer, warning = await sent(server, case)
    assert status == recorded.status, (recorded.note, answer)
    assert warning == recorded.warning
    if case in IN_OUTLINE:
        assert answer["reason"] == recorded.answer["reason"]
    else:
        assert compared(recorded, answer) == compared(recorded, recorded.answer), recorded.note
    if recorded.method == "POST" and recorded.status in (None, 504):
        stored = server.store.get(JOB, "team-a", recorded.body["metadata"]["name"]) is not None
        assert stored != ("not-stored" in case)


async def test_pages() -> None:
    """basic-14-list-page-1, basic-15-list-page-2, basic-16-list-nolabel-page-1: the same items in the same pages."""
    first, second, bare = (capture(case) for case in cases("basic-1") if "-page-" in case)
    async with prepared("basic-15-list-page-2") as server:
        for item in first.answer["items"]:
            server.store.create(JOB, item)
        headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
        async with aiohttp.ClientSession(server.url, headers=headers) as session:
            pages = []
            for page in (first, second):
                address, _, _ = page.path.partition("&continue=")
                after = f"&continue={pages[-1]['metadata']['continue']}" if pages else ""
                pages.append(await (await session.get(address + after)).json())
            whole = await (await session.get(bare.path)).json()
    for page, recorded in zip(pages, (first, second), strict=True):
        shown = [item["metadata"]["name"] for item in page["items"]]
        assert shown == [item["metadata"]["name"] for item in recorded.answer["items"]]
        assert page["metadata"].keys() == recorded.answer["metadata"].keys()
    assert pages[0]["metadata"]["resourceVersion"] == pages[1]["metadata"]["resourceVersion"]
    assert whole["metadata"].keys() == bare.answer["metadata"].keys()
    assert whole["metadata"]["remainingItemCount"] == len(server.store.objects[JOB]) - 1


async def test_lists_of_one_moment_have_their_own_pages() -> None:
    async with ApiServer() as server:
        for number in range(4):
            for resource, labels in ((SECRET, {"half": str(number % 2)}), (CONFIG_MAP, {})):
                made = {"metadata": {"name": f"one-{number}", "namespace": "default", "labels": labels}}
                server.store.create(resource, made)
        paths = {
            "/api/v1/namespaces/default/secrets?limit=1&labelSelector=half%3D1": ["one-1", "one-3"],
            "/api/v1/namespaces/default/configmaps?limit=3": ["one-0", "one-1", "one-2", "one-3"],
            "/api/v1/secrets?limit=3": ["one-0", "one-1", "one-2", "one-3"],
        }
        shown: dict[str, list[str]] = {path: [] for path in paths}
        after = dict.fromkeys(paths, "")
        headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
        async with aiohttp.ClientSession(server.url, headers=headers) as session:
            while after:  # a page of each in turn
                for path, token in list(after.items()):
                    page = await (await session.get(f"{path}&continue={token}" if token else path)).json()
                    shown[path] += [item["metadata"]["name"] for item in page["items"]]
                    after[path] = page["metadata"].get("continue", "")
                    if not after[path]:
                        del after[path]
    assert shown == paths


@pytest.mark.parametrize("case", watched())
async def test_watched(case: str) -> None:
    """A watch opened on what the recording found there: the same status, and the same lines but for what varies."""
    recorded = capture(case)
    async with prepared(case) as server:
        PREPARED.get(case, lambda _: None)(server)
        address = re.sub(r"timeoutSeconds=\d+", "timeoutSeconds=0.3", server.url + recorded.path)
        headers = {"authorization": f"Bearer {token_of(case)}"}
        async with aiohttp.ClientSession(headers=headers) as session, session.get(address) as response:
            text = await response.text()
    assert response.status == recorded.status
    if response.status != 200:
        assert json.loads(text) == recorded.answer
        return
    shown = [json.loads(line) for line in text.splitlines()]
    assert [seen(event) for event in shown] == [seen(event) for event in recorded.events or ()]


def seen(event: dict[str, Any]) -> Any:
    found = event["object"]
    name = found["metadata"].get("name")
    return event["type"], name, outline(json.loads(re.sub(r"\b\d{1,4}\b", "0", json.dumps(found))))


async def test_changes_as_a_watch_shows_them() -> None:
    """watch-05-from-list, watch-06-resume: a Job that leaves the selector is DELETED with its old labels."""
    recorded = [told(event) for event in capture("watch-05-from-list").events or ()]
    async with ApiServer() as server, Client(server) as client:
        path = "/apis/batch/v1/namespaces/team-a/jobs"
        body = capture("basic-05-create-suspended").body
        start = 0
        for job in ("night-a", "night-b", "night-c"):
            start = server.store.revision
            labels = {"dispatch.example/store": "st-watch", "dispatch.example/job": job}
            await client.json("POST", path, body | {"metadata": {"name": job, "labels": labels}})
            await asyncio.sleep(0.1)
        for label, value in (("note", "a"), ("store", "st-elsewhere"), ("store", "st-watch")):
            labels = {f"dispatch.example/{label}": value}
            await client.json("PATCH", f"{path}/night-b", {"metadata": {"labels": labels}})
        await client.json("DELETE", f"{path}/night-a", {"propagationPolicy": "Background"})
        query = f"watch=1&labelSelector=dispatch.example/store=st-watch&resourceVersion={start}&timeoutSeconds=0.3"
        shown = [await client.lines(f"{path}?{query}") for _ in range(2)]
    assert [told(event) for event in shown[0]] == [event for event in recorded if event[0] != "BOOKMARK"]
    assert shown[0] == shown[1]


def told(event: dict[str, Any]) -> tuple[str, str, str, bool]:
    labels = event["object"]["metadata"].get("labels") or {}
    conditions = (event["object"].get("status") or {}).get("conditions")
    job, store = (labels.get(f"dispatch.example/{name}", "") for name in ("job", "store"))
    return event["type"], job, store, bool(conditions)


async def test_bookmarks() -> None:
    """watch-01-periodic-bookmarks: where nothing is to be shown, bookmarks carry the revision on."""
    recorded = capture("watch-01-periodic-bookmarks").events or ()
    async with ApiServer(bookmark_seconds=0.1) as server, Client(server) as client:
        path = "/apis/batch/v1/namespaces/team-a/jobs"
        query = "watch=1&labelSelector=a=b&resourceVersion=1001&allowWatchBookmarks=true&timeoutSeconds=0.5"
        watch = asyncio.create_task(client.lines(f"{path}?{query}"))
        await client.json("POST", path, capture("basic-05-create-suspended").body)
        shown = await watch
        assert {event["type"] for event in shown} == {event["type"] for event in recorded} == {"BOOKMARK"}
        assert shown[-1]["object"]["metadata"]["resourceVersion"] == str(server.store.revision)
        assert shown[0]["object"].keys() == recorded[0]["object"].keys()


async def test_watches_end() -> None:
    """restart-01-watch-graceful-stop ends cleanly, restart-03-watch-killed breaks the body; both lose the history."""
    async with ApiServer() as server, Client(server) as client:
        path = f"/apis/batch/v1/namespaces/team-a/jobs?watch=1&resourceVersion={server.store.revision}"
        clean = asyncio.create_task(client.lines(path))
        await asyncio.sleep(0.1)
        server.end_watches()
        assert await clean == []
        broken = asyncio.create_task(client.lines(path))
        await asyncio.sleep(0.1)
        await server.restart()
        with pytest.raises(aiohttp.ClientPayloadError):
            await broken
        assert [event["object"]["reason"] for event in await client.lines(path)] == ["Expired"]


def test_every_capture_is_accounted_for() -> None:
    listed = [*NOT_REPLAYED, *PLAYED_ELSEWHERE, *IN_OUTLINE, *PREPARED]
    assert [case for case in listed if case not in cases()] == []
    counted = {*replayed(), *watched(), *NOT_REPLAYED, *PLAYED_ELSEWHERE}
    assert [case for case in cases() if case not in counted and not only_read(case)] == []
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert [case for case, test in PLAYED_ELSEWHERE.items() if f"def {test}(" not in tests] == []
