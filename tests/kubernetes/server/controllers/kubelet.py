"""Scheduler and kubelet in one: pods get a node, start, run, end, and go.

One rule: a pod's phases come in the order of a real node, each as a write of its own, and a pod that is deleted stays
until its program has ended. A node takes any number of pods, but none that asks for more than it has.

Not here: restarts inside a pod, init containers, probes, volumes, more than one container.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.kubernetes.server.controllers.loop import emit, set_condition
from tests.kubernetes.server.controllers.programs import Played, Program, environment_of, expanded
from tests.kubernetes.server.kinds import POD
from tests.kubernetes.server.removing import delete, stored
from tests.kubernetes.server.storage import Change, Object, Store, copied, key_of, stamp

NODE = "node-1"
UNITS = {"m": 1e-3, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 1e3, "M": 1e6, "G": 1e9}


def amount(text: str | int | float) -> float:
    """A resource quantity as a number."""
    digits = str(text).rstrip("mKMGTki")
    return float(digits) * UNITS.get(str(text)[len(digits) :], 1)


class Kubelet:
    """The one node of the cluster."""

    def __init__(self, store: Store, pause: float = 0.01) -> None:
        self.store = store
        self.pause = pause
        self.programs: dict[str, Callable[[], Played]] = {}
        """What an image does, by image; without a row here a container's command is really run."""
        self.missing: set[str] = set()
        """Images that cannot be pulled."""
        self.has: dict[str, str] = {"cpu": "64", "memory": "256Gi", "nvidia.com/gpu": "8"}
        self.log_folder = tempfile.TemporaryDirectory(prefix="dispatch-pods-")
        self.line_times: dict[str, list[str]] = {}
        """When the lines of a log were written, by the log's name, as far as anybody has asked."""
        self._running: dict[str, Played | Program] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._reasons: dict[str, str] = {}
        store.listeners.append(self._hear)

    def _hear(self, change: Change) -> None:
        if change.resource is not POD:
            return
        uid = change.at["metadata"]["uid"]
        if change.before is None:
            self._begin(uid, self._live(uid))
        elif change.after is None:
            self._stop(uid, hard=True)
        elif "deletionTimestamp" in change.after["metadata"].keys() - change.before["metadata"].keys():
            grace = change.after["metadata"].get("deletionGracePeriodSeconds", 0)
            self._begin(f"{uid} stops", self._end_softly(uid, grace))

    def _begin(self, name: str, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[name] = task
        task.add_done_callback(lambda _: self._tasks.pop(name, None))

    async def close(self) -> None:
        """End every program that still runs, and wait for it."""
        for uid in list(self._running):
            self._stop(uid, hard=True)
        tasks = list(self._tasks.values())
        _, late = await asyncio.wait(tasks, timeout=5) if tasks else ((), ())
        for task in late:
            task.cancel()
        self.log_folder.cleanup()

    # ---- for tests

    def end(self, name: str, exit_code: int = 0, reason: str = "", namespace: str = "team-a") -> None:
        """End a played program; a reason such as OOMKilled is what its container then says."""
        pod = self.store.get(POD, namespace, name)
        if pod is None:
            raise KeyError(name)
        uid = pod["metadata"]["uid"]
        program = self._running[uid]
        if reason:
            self._reasons[uid] = reason
        if isinstance(program, Played):
            program.exit_code = exit_code
            program.stopped.set()
        else:
            program.stop(hard=True)

    def disrupt(self, name: str, reason: str, namespace: str = "team-a") -> None:
        """A preemption, a taint or an eviction: the condition DisruptionTarget, and the pod is deleted."""
        pod = self._change(self.store.get(POD, namespace, name), _disruption(reason))
        if pod is None:
            raise KeyError(name)
        delete(self.store, POD, pod, "Background")

    def log_of(self, pod: Object) -> Path:
        return Path(self.log_folder.name) / f"{pod['metadata']['uid']}.log"

    # ---- the life of a pod

    def _now(self, uid: str) -> Object | None:
        found = self.store.by_uid(uid)
        return found[1] if found else None

    def _change(self, pod: Object | None, change: Callable[[Object], None]) -> Object | None:
        if pod is None:
            return None
        changed = copied(pod)
        change(changed)
        return stored(self.store, POD, changed)

    async def _live(self, uid: str) -> None:
        await asyncio.sleep(self.pause)
        pod = self._now(uid)
        if pod is None or "deletionTimestamp" in pod["metadata"] or not self._scheduled(pod):
            return
        pod = self._now(uid)
        container = pod["spec"]["containers"][0] if pod else {}
        self._change(pod, _bound)
        await asyncio.sleep(self.pause)
        if container.get("image") in self.missing:
            await self._not_pulled(uid, container["image"])
            return
        if pod is not None:
            await self._run(uid, pod, container)

    def _scheduled(self, pod: Object) -> bool:
        if pod["spec"].get("schedulingGates"):
            return False
        short = []
        for container in pod["spec"]["containers"]:
            limits = container["resources"]
            asked = {**(limits.get("limits") or {}), **(limits.get("requests") or {})}
            short += [name for name, value in asked.items() if amount(value) > amount(self.has.get(name, "0"))]
        if not short and not pod["spec"].get("nodeSelector"):
            return True
        why = f"Insufficient {short[0]}" if short else "node(s) didn't match Pod's node affinity/selector"
        message = f"0/1 nodes are available: 1 {why}. preemption: 0/1 nodes are available: 1 Preemption is not helpful."
        emit(self.store, POD, pod, "FailedScheduling", message, "Warning")

        def unschedulable(changed: Object) -> None:
            set_condition(changed["status"], "PodScheduled", False, "Unschedulable", message, lastProbeTime=None)

        self._change(pod, unschedulable)
        return False

    async def _not_pulled(self, uid: str, image: str) -> None:
        message = f'Back-off pulling image "{image}"'
        for reason, text in (
            ("ErrImagePull", f'failed to pull and unpack image "{image}": not found'),
            ("ImagePullBackOff", message),
        ):
            pod = self._now(uid)
            if pod is None:
                return
            emit(self.store, POD, pod, "Failed" if reason == "ErrImagePull" else "BackOff", text, "Warning")
            self._change(pod, _waiting(reason, text))
            await asyncio.sleep(self.pause)

    async def _run(self, uid: str, pod: Object, container: Object) -> None:
        program = self._program(pod, container)
        try:
            await program.start(self.log_of(pod))
        except OSError as error:
            self._change(self._now(uid), _over(128, "StartError", str(error)))
            return
        self._running[uid] = program
        if self._change(self._now(uid), _started) is None:
            program.stop(hard=True)
        code = await program.end()
        del self._running[uid]
        reason = self._reasons.pop(uid, "") or ("Completed" if code == 0 else "Error")
        self._change(self._now(uid), _over(code, reason))

    def _program(self, pod: Object, container: Object) -> Played | Program:
        made = self.programs.get(container.get("image", ""))
        command = [*(container.get("command") or ()), *(container.get("args") or ())]
        if made is not None or not command:
            return (made or Played)()
        variables = environment_of(self.store, pod, container)
        folder = Path(self.log_folder.name) / pod["metadata"]["uid"]
        return Program([expanded(word, variables) for word in command], variables, folder)

    def _stop(self, uid: str, *, hard: bool) -> None:
        if uid in self._running:
            self._running[uid].stop(hard=hard)

    async def _end_softly(self, uid: str, grace: float) -> None:
        """SIGTERM, the pod's grace, SIGKILL, and then the pod may go."""
        self._stop(uid, hard=False)
        end = asyncio.get_running_loop().time() + grace
        while uid in self._running and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(self.pause)
        while uid in self._running:
            self._stop(uid, hard=True)
            await asyncio.sleep(self.pause)
        pod = self._now(uid)
        if pod is not None and key_of(pod) in self.store.objects[POD]:
            self._change(pod, _gone)


def _bound(pod: Object) -> None:
    pod["spec"]["nodeName"] = NODE
    set_condition(pod["status"], "PodScheduled", True, "", "", lastProbeTime=None)
    _waiting("ContainerCreating", "")(pod)


def _container(pod: Object, state: dict[str, Any], *, is_ready: bool) -> None:
    container = pod["spec"]["containers"][0]
    image = container.get("image", "")
    status = {"name": container.get("name", "main"), "state": state, "lastState": {}, "ready": is_ready}
    status |= {"restartCount": 0, "image": image, "imageID": "", "started": is_ready}
    pod["status"]["containerStatuses"] = [status]
    reason = "" if is_ready else "ContainersNotReady"
    for kind in ("Ready", "ContainersReady"):
        set_condition(pod["status"], kind, is_ready, reason, "", lastProbeTime=None)


def _waiting(reason: str, message: str) -> Callable[[Object], None]:
    def change(pod: Object) -> None:
        waiting = {"reason": reason, "message": message} if message else {"reason": reason}
        _container(pod, {"waiting": waiting}, is_ready=False)

    return change


def _started(pod: Object) -> None:
    pod["status"] |= {"phase": "Running", "podIP": "127.0.0.1"}
    pod["status"]["startTime"] = stamp()
    _container(pod, {"running": {"startedAt": stamp()}}, is_ready=True)


def _over(code: int, reason: str, message: str = "") -> Callable[[Object], None]:
    def change(pod: Object) -> None:
        start = pod["status"].get("startTime", stamp())
        state = {"exitCode": code, "reason": reason, "startedAt": start, "finishedAt": stamp()}
        _container(pod, {"terminated": {**state, "message": message} if message else state}, is_ready=False)
        pod["status"]["phase"] = "Succeeded" if code == 0 else "Failed"

    return change


def _gone(pod: Object) -> None:
    pod["metadata"]["deletionGracePeriodSeconds"] = 0
    if pod["status"].get("phase") not in ("Succeeded", "Failed"):
        pod["status"]["phase"] = "Failed"


def _disruption(reason: str) -> Callable[[Object], None]:
    def change(pod: Object) -> None:
        message = f"Pod was disrupted: {reason}"
        set_condition(pod["status"], "DisruptionTarget", True, reason, message, lastProbeTime=None)

    return change
