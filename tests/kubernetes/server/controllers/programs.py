"""What a pod's container does: a real program on this machine, or one that a test plays.

One rule: the program is run as its container declares it, command, arguments and environment and nothing else, in a
folder and a session of its own, and is always waited for.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import re
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kubernetes.server.kinds import CONFIG_MAP, SECRET
from tests.kubernetes.server.storage import Object, Store


@dataclass
class Played:
    """A program that is none: it runs for `seconds`, or until a test ends it, and then has `exit_code`."""

    seconds: float = 1e9
    exit_code: int = 0
    log: str = ""
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self, log: Path) -> None:
        with log.open("w") as out:
            out.write(self.log)

    async def end(self) -> int:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.stopped.wait(), self.seconds)
        return self.exit_code

    def stop(self, *, hard: bool) -> None:
        """As SIGTERM or SIGKILL; a played program ends at once."""
        if not self.stopped.is_set():
            self.exit_code = 137 if hard else 143
            self.stopped.set()


@dataclass
class Program:
    """A process of this machine."""

    command: list[str]
    environment: dict[str, str]
    folder: Path
    running: asyncio.subprocess.Process | None = None

    async def start(self, log: Path) -> None:
        """Raises OSError where there is no such program."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            self.running = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,
            )

    async def end(self) -> int:
        if self.running is None:
            return 128
        code = await self.running.wait()
        return code if code >= 0 else 128 - code

    def stop(self, *, hard: bool) -> None:
        if self.running is not None and self.running.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.running.pid, signal.SIGKILL if hard else signal.SIGTERM)


def _field(pod: Object, path: str) -> str:
    found = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path)
    if found:
        return str((pod["metadata"].get(found[1]) or {}).get(found[2], ""))
    value: Any = pod
    for part in path.split("."):
        value = (value or {}).get(part)
    return str(value or "")


def _data(store: Store, resource: Any, namespace: str, name: str) -> dict[str, str]:
    found = store.get(resource, namespace, name) or {}
    if resource is SECRET:
        read = {key: base64.b64decode(value).decode() for key, value in (found.get("data") or {}).items()}
        return read | (found.get("stringData") or {})
    return dict(found.get("data") or {})


def _value(store: Store, pod: Object, source: dict[str, Any]) -> str:
    namespace = pod["metadata"]["namespace"]
    for name, resource in (("secretKeyRef", SECRET), ("configMapKeyRef", CONFIG_MAP)):
        if name in source:
            return _data(store, resource, namespace, source[name]["name"]).get(source[name]["key"], "")
    return _field(pod, source["fieldRef"]["fieldPath"]) if "fieldRef" in source else ""


def environment_of(store: Store, pod: Object, container: Object) -> dict[str, str]:
    """The container's variables: env and envFrom with ConfigMaps, Secrets and the pod's own fields."""
    made = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOSTNAME": pod["metadata"]["name"], "HOME": "/"}
    for source in container.get("envFrom") or ():
        for name, resource in (("secretRef", SECRET), ("configMapRef", CONFIG_MAP)):
            if name in source:
                made |= _data(store, resource, pod["metadata"]["namespace"], source[name]["name"])
    for variable in container.get("env") or ():
        if "valueFrom" in variable:
            made[variable["name"]] = _value(store, pod, variable["valueFrom"])
        else:
            made[variable["name"]] = expanded(variable.get("value", ""), made)
    return made


def expanded(text: str, variables: dict[str, str]) -> str:
    """`$(NAME)` as the kubelet replaces it; `$$(NAME)` stays `$(NAME)`."""
    return re.sub(
        r"\$\$|\$\((\w+)\)",
        lambda found: "$" if found[0] == "$$" else variables.get(found[1], found[0]),
        text,
    )
