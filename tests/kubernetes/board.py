"""Payloads whose doings can be read from outside a real cluster: they tell a board, a pod that the API server asks.

One rule: a board and payloads need an image with Python and nothing else, no volume and no rights; who runs the tests
needs to create pods and to use `pods/proxy`.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import Any
from urllib.parse import quote

from dispatch_core.adapters.conformance import Rig
from dispatch_core.adapters.kubernetes.cluster import KubernetesCluster
from dispatch_core.adapters.kubernetes.kinds import POD, dig
from dispatch_core.adapters.kubernetes.scheduler import KubernetesScheduler
from dispatch_core.adapters.kubernetes.transport import Answered, Api
from dispatch_core.plan import Spec

BOARD = """
import http.server, json, sys, urllib.parse
said, may, told = [], set(), {}

class Board(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        verb, _, rest = self.path.lstrip("/").partition("/")
        rest, answer = urllib.parse.unquote(rest), None
        if verb == "say": said.append(rest)
        elif verb == "go": may.add(rest)
        elif verb == "may": answer = rest in may
        elif verb == "lines": answer = said
        elif verb == "told": answer = told.get(rest)
        self.answer(answer)

    def do_POST(self):
        told[self.path.rpartition("/")[2]] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(None)

    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_): pass

http.server.ThreadingHTTPServer(("", int(sys.argv[1])), Board).serve_forever()
"""
PAYLOAD = """
import sys, time, urllib.request
url, line, waits, code, signal = sys.argv[1:]
def ask(path): return urllib.request.urlopen(url + path, timeout=10).read()
ask("/say/" + line)
print(line, flush=True)
while waits and ask("/may/" + line) != b"true": time.sleep(0.1)
sys.exit(128 + int(signal) if int(signal) else int(code))  # the first program of a container cannot kill itself
"""
RECITAL = """
import json, os, sys, urllib.request
url, place, names, arguments = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4:]
told = json.dumps([arguments, {name: os.environ.get(name) for name in names}]).encode()
urllib.request.urlopen(urllib.request.Request(url + "/tell/" + place, data=told), timeout=10).read()
"""
PYTHON = ("python3", "-c")


class Place:
    """A namespace of its own with a board in it; `make` and `remove` it."""

    def __init__(self, kubeconfig: str, image: str, *, kind: str = "Job", queue: str = "", port: int = 8000) -> None:
        self.namespace, self.image, self.kind, self.queue, self.port = "", image, kind, queue, port
        self.kubeconfig = kubeconfig
        self.url = ""
        """Where payloads find the board."""

    def cluster(self) -> KubernetesCluster:
        return KubernetesCluster(
            name="real",
            namespace=self.namespace,
            kubeconfig=self.kubeconfig,
            kinds=tuple(dict.fromkeys(("Job", self.kind))),
            kueue=bool(self.queue),
            queue="tests" if self.queue else None,
            image=self.image,
            poll_seconds=0.5,
            absence_seconds=10.0,
        )

    async def make(self) -> None:
        self.namespace = f"dispatch-test-{secrets.token_hex(4)}"
        api = Api(self.cluster())
        try:
            await created(api, "/api/v1/namespaces", {"metadata": {"name": self.namespace}})
            if self.queue:
                path = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{self.namespace}/localqueues"
                local = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "metadata": {"name": "tests"}}
                await created(api, path, local | {"spec": {"clusterQueue": self.queue}})
            container = {"name": "main", "image": self.image, "command": [*PYTHON, BOARD, str(self.port)]}
            pod = {"metadata": {"name": "board"}, "spec": {"containers": [container], "restartPolicy": "Never"}}
            await created(api, POD.path(self.namespace), pod)
            async with asyncio.timeout(300):
                while not self.url:
                    await asyncio.sleep(0.2)
                    shown = await api.request("GET", POD.path(self.namespace, "board"), seconds=10.0)
                    if (ip := dig(shown.body, "status", "podIP")) and await asked(api, self, "lines") is not None:
                        self.url = f"http://{ip}:{self.port}"
        finally:
            await api.close()

    async def remove(self) -> None:
        api = Api(self.cluster())
        path = f"/api/v1/namespaces/{self.namespace}"
        await api.request("DELETE", POD.path(self.namespace, "board"), seconds=10.0)
        await api.request("DELETE", path, seconds=10.0)
        await api.close()


async def created(api: Api, path: str, body: dict[str, Any]) -> Answered:
    kinds = {"apiVersion": "v1", "kind": "Pod" if path.endswith("/pods") else "Namespace"}
    answered = await api.request("POST", path, {}, {**kinds, **body}, seconds=10.0)
    assert answered.well, answered.message
    return answered


async def asked(api: Api, place: Place, what: str) -> Any:
    """What the board answers, through the API server; None: it does not yet."""
    path = f"{POD.path(place.namespace, 'board')}:{place.port}/proxy/{what}"
    status, text = await api.read(path, {}, 10.0)
    return json.loads(text) if status == 200 else None


class BoardRig(Rig):
    """One connection to a cluster of which nothing is known but its API."""

    patience_seconds = 180.0
    quiet_seconds = 5.0

    def __init__(self, place: Place) -> None:
        self.place = place
        self.adapter: KubernetesScheduler = KubernetesScheduler(place.cluster())
        self.asking = Api(place.cluster())
        """A connection of its own: checks close the other."""
        self.options: dict[str, str | int | float | bool | tuple[str, ...]] = {"kind": place.kind}
        self.options |= {"runtime": "torch-distributed"} if place.kind == "TrainJob" else {"grace_seconds": 1}

    async def close(self) -> None:
        await self.adapter.close()
        await self.asking.close()

    def payload(self, line: str, *, waits: bool = False, exit_code: int = 0, signal: int = 0) -> Spec:
        told = (self.place.url, line, "waits" if waits else "", str(exit_code), str(signal))
        return Spec(command=(*PYTHON, PAYLOAD, *told), options=self.options)

    async def go(self, line: str) -> None:
        await asked(self.asking, self.place, f"go/{quote(line)}")

    async def lines(self) -> list[str]:
        return [str(line) for line in await asked(self.asking, self.place, "lines") or ()]

    def recital(self, place: str, arguments: tuple[str, ...], names: tuple[str, ...]) -> Spec:
        told = (self.place.url, place, json.dumps(names), *arguments)
        return Spec(command=(*PYTHON, RECITAL, *told), options=self.options)

    async def recited(self, place: str) -> tuple[list[str], dict[str, str | None]] | None:
        found = await asked(self.asking, self.place, f"told/{quote(place)}")
        return None if found is None else (found[0], found[1])

    def listings(self) -> int:
        return self.adapter.listings
