"""What only pods have: their log, and the eviction call.

One rule: a log is what the program wrote, as far as it has written it; a pod whose program has not begun has none, and
says so with 400.
"""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import ClientError, ClientSession, web

from tests.kubernetes.server.controllers.loop import set_condition
from tests.kubernetes.server.kinds import BUDGET, POD
from tests.kubernetes.server.refusing import Refused, bad_request, not_found
from tests.kubernetes.server.removing import delete
from tests.kubernetes.server.storage import Object, copied

if TYPE_CHECKING:
    from tests.kubernetes.server import ApiServer
    from tests.kubernetes.server.surface import Call

EVICTING = "Eviction API: evicting"
BUDGET_MESSAGE = "Cannot evict pod as it would violate the pod's disruption budget."


def _found(server: ApiServer, call: Call) -> Object:
    pod = server.store.get(POD, *call.key)
    if pod is None:
        raise not_found(POD, call.name)
    return pod


def _begun(pod: Object) -> None:
    states = [container["state"] for container in pod["status"].get("containerStatuses") or ()]
    name = pod["spec"]["containers"][0].get("name", "main")
    if not states:
        return
    if "waiting" in states[0]:
        why = states[0]["waiting"]["reason"]
        raise bad_request(f'container "{name}" in pod "{pod["metadata"]["name"]}" is waiting to start: {why}')


def _with_times(server: ApiServer, path: Path, text: bytes) -> bytes:
    """Each line behind its time. What came since the last look has the time of the latest write."""
    times = server.node.line_times.setdefault(path.name, [])
    lines = text.splitlines(keepends=True)
    if lines:
        written = datetime.fromtimestamp(path.stat().st_mtime, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
        times += [written] * (len(lines) - len(times))
    return b"".join(at.encode() + b" " + line for at, line in zip(times, lines, strict=False))


def _part(text: bytes, query: dict[str, str]) -> bytes:
    if "tailLines" in query:
        lines = text.splitlines(keepends=True)
        wanted = int(query["tailLines"])
        text = b"".join(lines[-wanted:]) if wanted else b""
    return text[: int(query["limitBytes"])] if "limitBytes" in query else text


async def log(server: ApiServer, call: Call) -> web.StreamResponse:
    """GET of a pod's log: timestamps, tailLines, limitBytes and follow."""
    pod = _found(server, call)
    _begun(pod)
    path = server.node.log_of(pod)
    text = path.read_bytes() if path.exists() else b""
    if call.query.get("timestamps") in ("true", "1"):
        text = _with_times(server, path, text)
    if call.query.get("follow") not in ("true", "1"):
        return web.Response(body=_part(text, call.query), content_type="text/plain")
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    response.enable_chunked_encoding()
    await response.prepare(call.request)
    await response.write(_part(text, call.query))
    sent = len(text)
    while True:
        now = server.store.by_uid(pod["metadata"]["uid"])
        over = now is None or now[1]["status"].get("phase") in ("Succeeded", "Failed")
        more = path.read_bytes()[sent:] if path.exists() else b""
        if more:
            await response.write(more)
            sent += len(more)
        if over:
            break
        await asyncio.sleep(0.02)
    await response.write_eof()
    return response


PROXIED = re.compile(r"/api/v1/namespaces/(?P<namespace>[^/]+)/pods/(?P<name>[^/:]+):(?P<port>\d+)/proxy(?P<path>/.*)")


async def proxied(server: ApiServer, namespace: str, name: str, url: str) -> web.Response:
    """GET of a pod's own server, which listens on this machine."""
    pod = server.store.get(POD, namespace, name)
    if pod is None:
        raise not_found(POD, name)
    try:
        async with ClientSession() as session, session.get(url) as response:
            return web.Response(body=await response.read(), status=response.status)
    except ClientError as error:
        raise Refused(503, "ServiceUnavailable", f"error trying to reach service: {error}") from error


def evicted(server: ApiServer, call: Call) -> web.StreamResponse:
    """POST of an eviction: refused with 429 while a PodDisruptionBudget allows none."""
    pod = _found(server, call)
    labels = pod["metadata"].get("labels") or {}
    for budget in server.store.all(BUDGET, call.namespace):
        wanted = budget["spec"]["selector"].get("matchLabels") or {}
        if wanted.items() <= labels.items() and not budget.get("status", {}).get("disruptionsAllowed"):
            name = budget["metadata"]["name"]
            message = f"The disruption budget {name} is still being processed by the server."
            cause = {"reason": "DisruptionBudget", "message": message}
            raise Refused(
                429, "TooManyRequests", BUDGET_MESSAGE, {"causes": [cause], "retryAfterSeconds": 10}, retry_after=10
            )
    changed = copied(pod)
    set_condition(changed["status"], "DisruptionTarget", True, "EvictionByEvictionAPI", EVICTING, lastProbeTime=None)
    delete(server.store, POD, server.store.update(POD, changed), "Background")
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
    return web.json_response(body, status=201)
