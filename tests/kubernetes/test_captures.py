"""Each recorded exchange, sent again to the test server: the same status, the same reason, the same object.

One rule: a capture is either replayed here, or played by a controller in `test_controllers.py`, or listed in
`NOT_REPLAYED` with its reason.
"""

from __future__ import annotations

import copy
import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.kubernetes.captured import Capture, at_present, capture, cases, found_by, outline
from tests.kubernetes.client import Client
from tests.kubernetes.server import ADMIN_TOKEN, ApiServer
from tests.kubernetes.server.kinds import JOB, NAMESPACE, QUOTA

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
}
# Captures whose state takes more than one call to reach, and the test that reaches it.
PLAYED_ELSEWHERE = {
    "basic-14-list-page-1": "test_pages",
    "basic-15-list-page-2": "test_pages",
    "basic-16-list-nolabel-page-1": "test_pages",
    "watch-05-from-list": "test_changes_as_a_watch_shows_them",
    "watch-06-resume": "test_changes_as_a_watch_shows_them",
}
# Of these the server gives the status and the reason, not the whole list of causes.
IN_OUTLINE = {
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
    if recorded.status is None or recorded.status == 504:
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
    async with ApiServer() as server, Client(server) as client:
        path = "/apis/batch/v1/namespaces/team-a/jobs"
        start = server.store.revision
        body = capture("basic-05-create-suspended").body
        for name, job in (("leaves", "watch-1"), ("new", "watch-3")):
            labels = {"dispatch.example/store": "st-watch", "dispatch.example/job": job}
            await client.json("POST", path, body | {"metadata": {"name": name, "labels": labels}})
            await asyncio.sleep(0.1)
        for name, labels in (
            ("new", {"dispatch.example/note": "a"}),
            ("leaves", {"dispatch.example/store": "st-moved"}),
        ):
            await client.json("PATCH", f"{path}/{name}", {"metadata": {"labels": labels}})
        await client.json("DELETE", f"{path}/new", {"propagationPolicy": "Background"})
        query = f"watch=1&labelSelector=dispatch.example/store=st-watch&resourceVersion={start}&timeoutSeconds=0.3"
        shown = await client.lines(f"{path}?{query}&allowWatchBookmarks=true")
        again = await client.lines(f"{path}?{query}&allowWatchBookmarks=true")
    recorded = [event for case in ("watch-05-from-list",) for event in capture(case).events or ()]

    def told(events: list[dict[str, Any]], name: str) -> list[tuple[str, str | None]]:
        of = [
            event
            for event in events
            if event["object"]["metadata"].get("labels", {}).get("dispatch.example/job") == name
        ]
        return [(event["type"], event["object"]["metadata"]["labels"]["dispatch.example/store"]) for event in of]

    assert told(shown, "watch-3") == told(recorded, "watch-3")
    assert told(shown, "watch-1")[-1] == ("DELETED", "st-watch")
    assert shown[-1]["type"] == recorded[-1]["type"] == "BOOKMARK"
    assert again == shown


def test_every_capture_is_accounted_for() -> None:
    listed = [*NOT_REPLAYED, *PLAYED_ELSEWHERE, *IN_OUTLINE, *PREPARED]
    assert [case for case in listed if case not in cases()] == []
    counted = {*replayed(), *watched(), *NOT_REPLAYED, *PLAYED_ELSEWHERE}
    assert [case for case in cases() if case not in counted and not only_read(case)] == []
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert [case for case, test in PLAYED_ELSEWHERE.items() if f"def {test}(" not in tests] == []
