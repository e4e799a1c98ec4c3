"""Recorded exchanges with a real API server, and the state that each of them found.

One rule: what an exchange found is taken from the exchanges before it in its own area and from nowhere else, so a test
fails, and names the capture, where the recording does not show enough.
"""

from __future__ import annotations

import copy
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jsonpatch

from tests.kubernetes.server.kinds import EVERY, Resource
from tests.kubernetes.server.selecting import labels
from tests.kubernetes.server.storage import read_stamp, stamp

FOLDER = Path(__file__).parents[1] / "captures" / "kubernetes"
Seeds = dict[tuple[Resource, str, str], dict[str, Any]]

# What differs from run to run, or is kept only in outline here (who wrote which field).
VARYING = frozenset(
    [
        *("uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "managedFields", "generation", "name"),
        *("lastTransitionTime", "lastProbeTime", "startTime", "completionTime", "time", "continue", "generateName"),
    ]
)


@dataclass(frozen=True)
class Capture:
    """One exchange."""

    case: str
    note: str
    method: str
    path: str
    headers: dict[str, str]
    body: Any
    status: int | None
    answer: Any
    warning: str | None
    at: datetime
    events: tuple[dict[str, Any], ...] | None

    @property
    def area(self) -> str:
        return self.case.split("-")[0]


@cache
def capture(case: str) -> Capture:
    read = json.loads((FOLDER / f"{case}.json").read_text())
    request, response = read["request"], read["response"]
    headers = response.get("headers") or {}
    events = None
    if "events" in read:
        events = tuple(json.loads(event["line"]) for event in read["events"])
    return Capture(
        *(case, read["note"], request["method"], request["path"], request["headers"], request["body"]),
        *(response["status"], response.get("body"), headers.get("Warning")),
        *(parsedate_to_datetime(headers["Date"]) if "Date" in headers else datetime.now(UTC), events),
    )


@cache
def cases(area: str = "") -> list[str]:
    return sorted(path.stem for path in FOLDER.glob(f"{area}*.json"))


def resource_at(path: str) -> tuple[Resource, str, str] | None:
    """(resource, namespace, name) that a path means."""
    found = re.fullmatch(
        r"/(?:api/(v1)|apis/([^/]+/[^/]+))(?:/namespaces/([^/]+)(?=/))?/([^/]+)(?:/([^/]+))?(?:/[^/]+)?",
        urlsplit(path).path,
    )
    if found is None:
        return None
    for resource in EVERY:
        if (resource.api_version, resource.plural) == (found[1] or found[2], found[4]):
            return resource, found[3] or "", found[5] or ""
    return None


def _objects(resource: Resource, answer: Any) -> list[dict[str, Any]]:
    if not isinstance(answer, dict):
        return []
    if str(answer.get("kind", "")).endswith("List"):
        return [item for item in answer.get("items", ()) if "spec" in item or not resource.status]
    return [answer] if answer.get("kind") == resource.kind else []


def found_by(case: str) -> Seeds:
    """The objects that were there when the exchange began: the last state of each that its area shows before it.

    What a GET shows was there, and what is changed or deleted without having been seen was as its answer shows it.
    """
    seeds: Seeds = {}
    now = capture(case)
    listed = cases(now.area)
    place = listed.index(case)
    for earlier in listed[:place]:
        _learn(seeds, capture(earlier))
    where = resource_at(now.path)
    if where is None:
        return seeds
    resource, namespace, name = where
    if now.method == "GET":
        if not name and "PartialObject" not in now.headers.get("accept", ""):
            _forget_selected(seeds, now, resource, namespace)
        _learn(seeds, now)
    elif name and now.status != 404:
        if where not in seeds:
            seeds[where] = _seen_later(where, [now, *(capture(later) for later in listed[place + 1 :])])
        if now.method == "PATCH" and now.status == 200:
            _as_patched(seeds[where], now)
    return seeds


def _seen_later(where: tuple[Resource, str, str], later: list[Capture]) -> dict[str, Any]:
    resource, namespace, name = where
    for one in later:
        for found in _objects(resource, one.answer) if one.events is None else ():
            if found["metadata"]["name"] == name:
                return _before_deletion(found)
    details = later[0].answer.get("details") or {} if isinstance(later[0].answer, dict) else {}
    return _unseen(namespace, name, details.get("uid", ""))


def _as_patched(seed: dict[str, Any], now: Capture) -> None:
    """What a patch that went through proves: its tests held, and status was what its answer has."""
    if "/status" not in now.path and now.answer["kind"] != "Status":
        seed["status"] = now.answer.get("status", {})
    for operation in now.body if isinstance(now.body, list) else ():
        if operation["op"] == "test" and operation["path"] != "/metadata/uid":
            held = {**operation, "op": "add"}
            seed.update(jsonpatch.apply_patch(seed, [held]))


def _forget_selected(seeds: Seeds, now: Capture, resource: Resource, namespace: str) -> None:
    matches = labels(parse_qs(urlsplit(now.path).query).get("labelSelector", [""])[0]) if now.status == 200 else None
    for key, seed in list(seeds.items()):
        if matches and key[0] is resource and namespace in ("", key[1]) and matches(seed):
            del seeds[key]


def _before_deletion(found: dict[str, Any]) -> dict[str, Any]:
    before = {name: copy.deepcopy(value) for name, value in found.items() if name not in ("kind", "apiVersion")}
    for name in ("deletionTimestamp", "deletionGracePeriodSeconds"):
        before["metadata"].pop(name, None)
    kept = [name for name in before["metadata"].pop("finalizers", ()) if name not in ("orphan", "foregroundDeletion")]
    if kept:
        before["metadata"]["finalizers"] = kept
    return before


def _unseen(namespace: str, name: str, uid: str) -> dict[str, Any]:
    """An object of which a recording shows no more than its name and uid."""
    metadata = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": "1", "generation": 1}
    return {"metadata": metadata, "spec": {}}


def _learn(seeds: Seeds, earlier: Capture) -> None:
    where = resource_at(earlier.path)
    if where is None or earlier.status is None:
        return
    resource, namespace, name = where
    if earlier.events is not None:
        for event in earlier.events:
            if event["type"] in ("ADDED", "MODIFIED"):
                _keep(seeds, resource, event["object"])
        return
    query = parse_qs(urlsplit(earlier.path).query)
    dry = query.get("dryRun") and not (earlier.method == "DELETE" and earlier.body)
    dry = dry or (isinstance(earlier.body, dict) and earlier.body.get("dryRun"))
    if dry:
        return
    gone = earlier.method == "GET" and name and earlier.status == 404
    deleted = earlier.method == "DELETE" and earlier.status == 200 and name and earlier.answer.get("kind") == "Status"
    if gone or deleted:
        seeds.pop((resource, namespace, name), None)
        return
    for found in _objects(resource, earlier.answer):
        _keep(seeds, resource, found)


def _keep(seeds: Seeds, resource: Resource, found: dict[str, Any]) -> None:
    kept = {name: copy.deepcopy(value) for name, value in found.items() if name not in ("kind", "apiVersion")}
    metadata = kept["metadata"]
    seeds[resource, metadata.get("namespace", ""), metadata["name"]] = kept


TIME = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ")
UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def outline(value: Any, varying: frozenset[str] = VARYING) -> Any:
    """An answer without what differs from run to run."""
    if isinstance(value, dict):
        return {name: outline(inner, varying) for name, inner in value.items() if name not in varying}
    if isinstance(value, list):
        return [outline(inner, varying) for inner in value]
    return TIME.sub("(time)", UID.sub("(uid)", value)) if isinstance(value, str) else value


def at_present(value: Any, recorded_at: datetime) -> Any:
    """The same with every time moved as if the recording were made now."""
    moved = datetime.now(UTC) - recorded_at
    return json.loads(TIME.sub(lambda found: stamp(read_stamp(found[0]) + moved), json.dumps(value)))
