"""The HTTP surface: paths, queries, bodies and statuses.

One rule: a request is understood whole before anything is done, faults come between understanding and doing, and every
refusal leaves here as the Status object that a real server sends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tests.kubernetes.server import pods, selecting
from tests.kubernetes.server.access import User
from tests.kubernetes.server.faults import Asked, Fault
from tests.kubernetes.server.kinds import POD, QUOTA, Resource
from tests.kubernetes.server.refusing import NoSuchPath, Refused, bad_request, internal, modified, not_found, too_many
from tests.kubernetes.server.storage import Object
from tests.kubernetes.server.watching import WatchOptions, body_of
from tests.kubernetes.server.writing import Write

if TYPE_CHECKING:
    from tests.kubernetes.server import ApiServer

VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "GET": "get"}
PATH = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+)/(?P<version>[^/]+))"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?=/))?/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>[^/]+))?"
)
VERSION = {
    **{"major": "1", "minor": "36", "emulationMajor": "1", "emulationMinor": "36", "minCompatibilityMajor": "1"},
    **{"minCompatibilityMinor": "35", "gitVersion": "v1.36.2", "gitCommit": "$Format:%H$", "gitTreeState": "clean"},
    **{"buildDate": "1970-01-01T00:00:00Z", "goVersion": "go1.27.3", "compiler": "gc", "platform": "linux/amd64"},
}


@dataclass(frozen=True)
class Call:
    """One request, understood."""

    request: web.Request
    user: User
    verb: str
    resource: Resource
    namespace: str | None
    name: str
    subresource: str
    query: dict[str, str]
    raw: bytes
    body: Any

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace or "", self.name

    def asked(self, at: float) -> Asked:
        name = self.name
        if not name and isinstance(self.body, dict):
            name = (self.body.get("metadata") or {}).get("name", "")
        namespace = self.namespace or ""
        return Asked(self.verb, self.resource.plural, namespace, name, self.query, self.body, self.user.name, at)

    def write(self) -> Write:
        agent = self.request.headers.get("User-Agent", "unknown").split("/")[0]
        strict = self.query.get("fieldValidation") == "Strict"
        manager, dry_run = self.query.get("fieldManager") or agent, self.query.get("dryRun") == "All"
        return Write(manager, self.user.name, dry_run, strict, self.query.get("timeout", "10s"))


def timeout_of(query: dict[str, str]) -> float:
    """Seconds that the request may take; 60 where it does not say."""
    text = query.get("timeout")
    if not text:
        return 60.0
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([a-zµ]*)", text)
    units = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "us": 1e-6, "ns": 1e-9}
    if found is None or found[2] not in units:
        unit = found[2] if found else text
        why = (
            f'time: unknown unit "{unit}" in duration "{text}"' if unit else f'time: missing unit in duration "{text}"'
        )
        raise bad_request(f"invalid timeout specified in the request URL - {why}")
    return min(float(found[1]) * units[found[2]], 60.0)


def json_response(body: Any, status: int = 200, warnings: list[str] | None = None) -> web.Response:
    response = web.Response(body=json.dumps(body).encode(), status=status, content_type="application/json")
    for warning in warnings or ():
        quoted = warning.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{quoted}"')
    return response


def timed_out() -> web.Response:
    """504 of `?timeout=`: a Status without kind, called plain text."""
    message = "Timeout: request did not complete within the allotted timeout"
    body = {"metadata": {}, "status": "Failure", "message": message, "reason": "Timeout", "details": {}, "code": 504}
    return web.Response(text=json.dumps(body), status=504, content_type="text/plain", charset="utf-8")


def refusal(refused: Refused) -> web.Response:
    response = json_response(refused.status(), refused.code)
    if refused.retry_after:
        response.headers["Retry-After"] = str(refused.retry_after)
    return response


class Surface:
    """What one server answers."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server

    async def handle(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except Refused as refused:
            return refusal(refused)
        except NoSuchPath:
            return web.Response(text="404 page not found\n", status=404)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.path in ("/readyz", "/livez", "/healthz"):
            return web.Response(text="ok")
        user = self.server.access.user(request.headers.get("Authorization"))
        if request.path == "/version":
            return json_response(VERSION)
        if (found := self._discovery(request.path)) is not None:
            return json_response(found)
        if found := pods.PROXIED.fullmatch(request.raw_path):
            self.server.access.check(user, "get", POD, found["name"], found["namespace"], "proxy")
            url = f"http://127.0.0.1:{found['port']}{found['path']}"
            return await pods.proxied(self.server, found["namespace"], found["name"], url)
        call = await self._understood(request, user)
        self.server.access.check(user, call.verb, call.resource, call.name, call.namespace, call.subresource)
        if call.resource not in self.server.installed:
            raise NoSuchPath
        seconds = timeout_of(call.query)
        asked = call.asked(asyncio.get_running_loop().time())
        self.server.requests.append(asked)
        fault = self.server.faults.next_for(asked)
        if fault is not None:
            return await self._spoilt(call, fault, seconds)
        return await self._done(call)

    def _discovery(self, path: str) -> Object | None:
        found = re.fullmatch(r"/(?:api/(v1)|apis/([^/]+/[^/]+))/?", path)
        if found is None:
            return None
        rows = [row for row in self.server.installed if row.api_version == (found[1] or found[2])]
        if not rows:
            raise NoSuchPath
        resources = []
        for row in rows:
            verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
            named = {"name": row.plural, "singularName": row.kind.lower(), "namespaced": row.namespaced}
            resources.append({**named, "kind": row.kind, "verbs": verbs})
        return {"kind": "APIResourceList", "groupVersion": found[1] or found[2], "resources": resources}

    async def _understood(self, request: web.Request, user: User) -> Call:
        found = PATH.fullmatch(request.path)
        if found is None:
            raise NoSuchPath
        group, version = found["group"] or "", found["core"] or found["version"]
        resource = next(
            (
                row
                for row in self.server.known
                if (row.group, row.version, row.plural) == (group, version, found["plural"])
            ),
            None,
        )
        if resource is None or request.method not in VERBS:
            raise NoSuchPath
        query = dict(request.query)
        verb = VERBS[request.method]
        if verb == "get" and not found["name"]:
            verb = "watch" if query.get("watch") in ("true", "1") else "list"
        elif verb == "delete" and not found["name"]:
            verb = "deletecollection"
        raw = await request.read()
        namespace = found["namespace"]
        body = self._body(resource, verb, raw)
        return Call(request, user, verb, resource, namespace, found["name"] or "", found["sub"] or "", query, raw, body)

    @staticmethod
    def _body(resource: Resource, verb: str, raw: bytes) -> Any:
        try:
            return json.loads(raw) if raw else None
        except ValueError as error:
            if verb == "patch":
                return None
            shown = raw[:30].decode(errors="replace")
            raise bad_request(
                f"the object provided is unrecognized (must be of type {resource.kind}): couldn't get version/kind; "
                f"json parse error: unexpected end of JSON input ({shown} ...)"
            ) from error

    # ---- faults

    async def _spoilt(self, call: Call, fault: Fault, seconds: float) -> web.StreamResponse:
        if fault.carried:
            await asyncio.sleep(min(fault.seconds, seconds))
            return timed_out() if fault.seconds >= seconds else await self._done(call)
        if fault.effect == "late":
            late = asyncio.get_running_loop().create_task(self._later(call, fault.seconds))
            self.server.faults.late.add(late)
            late.add_done_callback(self.server.faults.late.discard)
        elif fault.effect == "before":
            await self._quietly(call)
        if fault.page:
            return web.Response(text=fault.page, status=fault.status, content_type="text/html")
        if fault.status == 504:
            return timed_out()
        if fault.status == 409:
            return refusal(modified(QUOTA, "all"))
        if fault.status == 429:
            return refusal(too_many("too many requests, please try again later", fault.retry_after))
        if fault.status:
            return refusal(replace_code(internal("the server was made to fail"), fault.status))
        return self._closed(call.request)

    async def _later(self, call: Call, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._quietly(call)

    async def _quietly(self, call: Call) -> None:
        with contextlib.suppress(Refused):
            await self._done(call)

    @staticmethod
    def _closed(request: web.Request) -> web.Response:
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=500)

    # ---- what is done

    async def _done(self, call: Call) -> web.StreamResponse:
        if call.subresource == "log":
            return await pods.log(self.server, call)
        if call.subresource == "eviction":
            return pods.evicted(self.server, call)
        answer: Callable[[Call], Awaitable[web.StreamResponse]] = getattr(self, f"_{call.verb}")
        return await answer(call)

    def _matches(self, call: Call) -> selecting.Matches:
        return selecting.both(call.query.get("labelSelector", ""), call.query.get("fieldSelector", ""))

    async def _get(self, call: Call) -> web.StreamResponse:
        found = self.server.store.get(call.resource, *call.key)
        if found is None:
            raise not_found(call.resource, call.name)
        return json_response(body_of(call.resource, found))

    async def _list(self, call: Call) -> web.StreamResponse:
        listed = self.server.lists.answer(call.resource, call.namespace, self._matches(call), call.query)
        if "PartialObjectMetadataList" in call.request.headers.get("Accept", ""):
            partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
            items = [{**partial, "metadata": item["metadata"]} for item in listed["items"]]
            listed |= {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "items": items}
        return json_response(listed)

    async def _watch(self, call: Call) -> web.StreamResponse:
        options = WatchOptions.read(call.resource, call.query)
        matches = self._matches(call)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(call.request)
        transport = call.request.transport
        self.server.streams.add(transport)
        try:
            async for line in self.server.watches.lines(call.resource, call.namespace, matches, options):
                while self.server.faults.silent:
                    await asyncio.sleep(0.02)
                await response.write(line)
            await response.write_eof()
        except ConnectionResetError:
            pass
        finally:
            self.server.streams.discard(transport)
        return response

    async def _create(self, call: Call) -> web.StreamResponse:
        if not isinstance(call.body, dict):
            raise bad_request("the request has no object")
        write = call.write()
        made = self.server.writer.create(call.resource, call.namespace or "", call.body, write)
        return json_response(body_of(call.resource, made), 201, write.warnings)

    async def _update(self, call: Call) -> web.StreamResponse:
        write = call.write()
        changed = self.server.writer.replace(call.resource, call.key, call.body or {}, write, call.subresource)
        return json_response(body_of(call.resource, changed), 200, write.warnings)

    async def _patch(self, call: Call) -> web.StreamResponse:
        write = call.write()
        content_type = call.request.headers.get("Content-Type", "").split(";")[0]
        changed = self.server.writer.patch(call.resource, call.key, content_type, call.raw, write, call.subresource)
        return json_response(body_of(call.resource, changed), 200, write.warnings)

    def _options(self, call: Call, write: Write) -> dict[str, Any]:
        """DeleteOptions: where there is a body, the query counts for nothing."""
        if isinstance(call.body, dict):
            write.dry_run = call.body.get("dryRun") == ["All"]
            return call.body
        grace = call.query.get("gracePeriodSeconds")
        return {
            "propagationPolicy": call.query.get("propagationPolicy"),
            "gracePeriodSeconds": None if grace is None else int(grace),
        }

    async def _delete(self, call: Call) -> web.StreamResponse:
        found = self.server.store.get(call.resource, *call.key)
        if found is None:
            raise not_found(call.resource, call.name)
        write = call.write()
        left = self.server.writer.delete(call.resource, found, self._options(call, write), write)
        if left is None and call.resource is not POD:
            details = {"name": call.name, "kind": call.resource.plural, "uid": found["metadata"]["uid"]}
            if call.resource.group:
                details = {"name": call.name, "group": call.resource.group} | details
            status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
            return json_response(status, 200, write.warnings)
        return json_response(body_of(call.resource, left or found), 200, write.warnings)

    async def _deletecollection(self, call: Call) -> web.StreamResponse:
        write = call.write()
        options = self._options(call, write)
        listed = self.server.lists.answer(call.resource, call.namespace, self._matches(call), {})
        for item in listed["items"]:
            metadata = item["metadata"]
            found = self.server.store.get(call.resource, metadata.get("namespace", ""), metadata["name"])
            if found is not None:
                self.server.writer.delete(call.resource, found, options, write)
        return json_response(listed, 200, write.warnings)


def replace_code(refused: Refused, code: int) -> Refused:
    refused.code = code
    if code == 503:
        refused.reason = "ServiceUnavailable"
    return refused
