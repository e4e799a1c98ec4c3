"""Each recorded exchange, sent again to the test server: the same status, the same reason, the same object.

One rule: a capture is either replayed here, or played by a controller in `test_controllers.py`, or listed in
`NOT_REPLAYED` with its reason.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from tests.kubernetes.captured import Capture, capture, cases, found_by, outline
from tests.kubernetes.server import ADMIN_TOKEN, ApiServer
from tests.kubernetes.server.kinds import JOB, KUEUE_KINDS, NAMESPACE, QUOTA

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
    "basic-14-list-page-1": "test_pages",
    "basic-15-list-page-2": "test_pages",
    "basic-16-list-nolabel-page-1": "test_pages",
    "basic-40-ssa-conflict": "server-side apply is a plain merge here",
}
# Of these the server gives the status and the reason, not the whole list of causes.
IN_OUTLINE = {
    "basic-35-mergepatch-wrong-uid": "a wrong uid is refused, not also the labels that follow from it",
}


def terminating(server: ApiServer) -> None:
    namespace = copy.deepcopy(server.get(NAMESPACE, "team-b"))
    server.store.update(NAMESPACE, namespace | {"status": {"phase": "Terminating"}})


def used_up(server: ApiServer) -> None:
    one = {"count/jobs.batch": "1"}
    metadata = {"name": "jobs", "namespace": "team-b"}
    server.store.create(QUOTA, {"metadata": metadata, "spec": {"hard": one}, "status": {"hard": one, "used": one}})


# What went wrong while these were recorded.
PREPARED: dict[str, Callable[[ApiServer], object]] = {
    "basic-60-create-quota-exceeded": used_up,
    "basic-61-create-namespace-terminating": terminating,
    "basic-62-timeout-504-not-stored": lambda server: server.faults.slow(0.05, "create"),
    "basic-64-timeout-504-stored": lambda server: server.faults.answer(504, "create", carried=True),
    "basic-66-timeout-disconnect-not-stored": lambda server: server.faults.lose_call("create"),
    "basic-68-timeout-disconnect-stored": lambda server: server.faults.lose_reply("create"),
}


def replayed() -> list[str]:
    return [
        case for case in cases() if case not in NOT_REPLAYED and capture(case).area in ("basic", "policy", "hookdown")
    ]


def prepared(case: str) -> ApiServer:
    """A server that holds what the exchange found."""
    recorded = capture(case)
    install = KUEUE_KINDS if recorded.area in ("kueue", "hookdown", "nogate") else ()
    server = ApiServer(namespaces=("default", "team-a", "team-b"), install=install, controllers=False)
    server.access.add(VIEWER, "viewer", JOBS_ONLY, ["team-a"])
    for (resource, namespace, name), seed in found_by(case).items():
        if server.store.get(resource, namespace, name) is None:
            revision = seed["metadata"]["resourceVersion"]
            stored = server.store.create(resource, seed)
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
    body = recorded.body
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


def test_every_capture_is_accounted_for() -> None:
    assert [case for case in NOT_REPLAYED if case not in cases()] == []
    assert NAMESPACE is not None
