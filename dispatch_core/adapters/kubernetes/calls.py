"""Calls: read the object, decide the patch, send it; and what each answer of the server means for the call.

One rule: a call is over when the server has carried it out, when it is certain that nothing happened, or when neither
is known. What certainly did not happen (a full server, a test of the patch that failed on newer facts) is decided anew
until the deadline, and is `late` then; what may have happened is `unknown` at once, and never sent again from here.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from dispatch_core.adapters.contract import Target
from dispatch_core.adapters.kubernetes import kinds, patches
from dispatch_core.adapters.kubernetes.cluster import KubernetesCluster
from dispatch_core.adapters.kubernetes.kinds import MANAGER, WORKLOAD, Json, Sort
from dispatch_core.adapters.kubernetes.listing import Lister
from dispatch_core.adapters.kubernetes.patches import Decided, Needless, Patch, Refused
from dispatch_core.adapters.kubernetes.policies import LATE_MESSAGE
from dispatch_core.adapters.kubernetes.reading import Shown, run_of
from dispatch_core.adapters.kubernetes.transport import JSON_PATCH, Answered, Api, Lost, NotSent
from dispatch_core.errors import SchedulerUnavailable
from dispatch_core.record import Answer, Reply

REQUEST_SECONDS = 10.0
"""The longest that one request is waited for, and, by `?timeout=`, that the server goes on with it."""
AGAIN_SECONDS = 0.1
WORKLOAD_SECONDS = 5.0
"""How long Kueue may take to make an object's Workload."""

NOTHING_TO_EVICT = "there is nothing to evict"

Decide = Callable[[Sort, Json, str], Decided]


class Late(Exception):
    """The deadline has passed, and nothing happened."""


class Calls:
    """Calls on the objects of one namespace."""

    def __init__(self, api: Api, cluster: KubernetesCluster, lister: Lister) -> None:
        self._api, self._cluster, self._lister = api, cluster, lister

    def now(self) -> datetime:
        """Host time. Raises SchedulerUnavailable before the first answer."""
        if not self._api.clock.is_set:
            raise SchedulerUnavailable(f"{self._cluster.name} has not been asked for its time yet")
        return self._api.clock.at(time.monotonic())

    async def in_time(self, deadline: datetime) -> float:
        """The seconds left. Raises Late and NotSent; asks the server for its time first if nobody has."""
        if not self._api.clock.is_set:
            try:
                await self._api.request("GET", "/version", seconds=REQUEST_SECONDS)
            except Lost as error:
                raise NotSent(str(error)) from error
        left = (deadline - self.now()).total_seconds()
        if left <= 0:
            raise Late("its deadline has passed")
        return left

    async def send(
        self, method: str, path: str, deadline: datetime, body: object, content: str = "application/json"
    ) -> Answered:
        """A request that changes something. It is written before the deadline or not at all, and sent again only when
        nothing happened. Raises Late and Lost."""
        while True:
            left = min(REQUEST_SECONDS, await self.in_time(deadline))
            query = {"timeout": f"{math.ceil(left)}s", "fieldManager": MANAGER}
            query |= {"fieldValidation": "Strict"} if method == "POST" else {}
            try:
                answered = await self._api.request(method, path, query, body, seconds=left, content=content)
            except NotSent:
                await self._pause(deadline, AGAIN_SECONDS * 10)
                continue
            if not _is_busy(method, answered):
                return answered
            await self._pause(deadline, max(answered.retry_after, AGAIN_SECONDS))

    async def _pause(self, deadline: datetime, seconds: float) -> None:
        await asyncio.sleep(min(seconds, await self.in_time(deadline)))

    async def get(self, sort: Sort, name: str, deadline: datetime) -> Answered:
        """An object as it is now: a read without a resourceVersion is of the present state. Raises Late and NotSent."""
        return await self._read(sort.path(self._cluster.namespace, name), {}, deadline)

    async def _read(self, path: str, query: Mapping[str, str], deadline: datetime) -> Answered:
        """What is only read changes nothing: without an answer, nothing happened."""
        left = min(REQUEST_SECONDS, await self.in_time(deadline))
        try:
            return await self._api.request("GET", path, query, seconds=left)
        except Lost as error:
            raise NotSent(str(error)) from error

    # --- one call

    async def on(self, target: Target, deadline: datetime, decide: Decide) -> Reply:
        """Decide on the object that is there, and carry it out."""
        return await self.replied(self._on(target, deadline, decide))

    async def replied(self, work: Any) -> Reply:
        """What a call came to. Only what is certain is `refused` or `late`."""
        try:
            reply: Reply = await work
        except (Late, NotSent) as error:
            return Reply(answer=Answer.LATE, text=f"{error}; nothing was done")
        except Lost as error:
            return Reply(answer=Answer.UNKNOWN, text=f"it may have been done: {error}")
        return reply

    async def _on(self, target: Target, deadline: datetime, decide: Decide) -> Reply:
        while True:
            sort, object = await self.named(target, deadline)
            if object is None:
                return Reply(answer=Answer.REFUSED, text=f"there is no {target.name} with uid {target.id}")
            wrong = await self._wrong_run(sort, object, target, deadline)
            decided = wrong or decide(sort, object, self.told(deadline))
            reply = await self.carried_out(sort.path(self._cluster.namespace, target.name), decided, deadline)
            if reply is not None:
                return reply
            await self._pause(deadline, AGAIN_SECONDS)

    async def active(self, target: Target, deadline: datetime, active: bool, *, stops: bool = False) -> Reply:
        """Set the `active` of an object's Workload: hold, release and, under Kueue, the first half of a Stop."""
        return await self.replied(self._active(target, deadline, active, stops))

    async def _active(self, target: Target, deadline: datetime, active: bool, stops: bool) -> Reply:
        while True:
            sort, object = await self.named(target, deadline)
            if object is None:
                return Reply(answer=Answer.REFUSED, text=f"there is no {target.name} with uid {target.id}")
            workload = await self.workload(target.id, deadline, wait=not stops)
            if stops and (workload is None or is_over(object, workload)):
                return Reply(answer=Answer.DONE, text=NOTHING_TO_EVICT)
            if workload is None:
                return Reply(answer=Answer.REFUSED, text=f"Kueue has made no Workload of {target.name}")
            if not active and not stops:  # once more: it may have been admitted before its Workload was read
                sort, object = await self.named(target, deadline)
                object = object or {}
            decided = self._of_workload(Shown(sort, object, None, workload), target, active, stops, deadline)
            path = WORKLOAD.path(self._cluster.namespace, kinds.name_of(workload))
            reply = await self.carried_out(path, decided, deadline)
            if reply is not None:
                return reply
            await self._pause(deadline, AGAIN_SECONDS)

    def _of_workload(self, shown: Shown, target: Target, active: bool, stops: bool, deadline: datetime) -> Decided:
        if not _is_meant(shown.object, run_of(shown), target):
            return Refused(f"it is on run {run_of(shown)}, not {target.run}")
        if kinds.annotation(shown.object, kinds.STOPPED) == kinds.YES and not stops:
            return Refused("it was stopped for good")
        if not active and not stops and patches.has_begun(shown.object):
            return Refused("it runs: on Kubernetes a hold would end the run")
        holds = not active and not stops
        return patches.set_active(shown.workload or {}, active, self.told(deadline), holds=holds)

    async def carried_out(self, path: str, decided: Decided, deadline: datetime) -> Reply | None:
        """The reply to what was decided; None: on facts that are no longer so, and nothing was done."""
        if isinstance(decided, Needless):
            return Reply(answer=Answer.DONE, text=decided.text)
        if isinstance(decided, Refused):
            return Reply(answer=Answer.REFUSED, text=f"{decided.text}; nothing was done")
        answered = await self.send("PATCH", path, deadline, patch_of(decided), JSON_PATCH)
        return reply_of(answered)

    def told(self, deadline: datetime) -> str:
        """The deadline as the server's policy reads it: cut to whole seconds, so never later."""
        return deadline.replace(microsecond=0).strftime("%Y-%m-%dT%H:%M:%SZ")

    # --- what is there

    async def named(self, target: Target, deadline: datetime) -> tuple[Sort, Json | None]:
        """The object that a target means: of this name and this uid. Raises Late and Lost."""
        known = self._lister.sort_of.get(target.id)
        for sort in self._lister.sorts if known is None else [known]:
            answered = await self.get(sort, target.name, deadline)
            if answered.well and kinds.uid_of(answered.body) == target.id:
                return sort, answered.body
            if not answered.well and answered.status != 404:
                raise NotSent(f"{sort.kind} {target.name} cannot be read: {answered.message}")
        return self._lister.sorts[0], None

    async def _wrong_run(self, sort: Sort, object: Json, target: Target, deadline: datetime) -> Refused | None:
        run = await self.run(sort, object, deadline)
        return None if _is_meant(object, run, target) else Refused(f"it is on run {run}, not {target.run}")

    async def run(self, sort: Sort, object: Json, deadline: datetime) -> int:
        """Which run an object is on. Raises Late, Lost and NotSent."""
        workload = await self.workload(kinds.uid_of(object), deadline) if patches.is_kueue(object) else None
        return run_of(Shown(sort, object, None, workload))

    async def workload(self, uid: str, deadline: datetime, *, wait: bool = False) -> Json | None:
        """The Workload that Kueue made of an object."""
        until = self.now() + timedelta(seconds=WORKLOAD_SECONDS if wait else 0.0)
        query = {"labelSelector": f"{kinds.JOB_UID}={uid}"}
        while True:
            answered = await self._read(WORKLOAD.path(self._cluster.namespace), query, deadline)
            if not answered.well:
                raise NotSent(f"the Workload cannot be read: {answered.message}")
            rows: Sequence[Json] = answered.body.get("items") or ()
            if rows or self.now() >= until:
                return rows[0] if rows else None
            await self._pause(deadline, AGAIN_SECONDS)


def _is_meant(object: Json, run: int, target: Target) -> bool:
    """Whether a call means the run that is shown. Runs only grow; an earlier one is shown of an opened object only
    where the Workload that counted them was made anew."""
    may_be_forgotten = patches.is_kueue(object) and kinds.annotation(object, kinds.GATE) == kinds.OPEN
    return run == target.run or (run < target.run and may_be_forgotten)


def is_over(object: Json, workload: Json) -> bool:
    return patches.is_finished(object) or kinds.is_true(workload, "Finished")


def _is_busy(method: str, answered: Answered) -> bool:
    """Whether nothing happened, and the same may do in a moment: a quota that changes under a create is a 409 too."""
    raced = method == "POST" and answered.status == 409 and answered.reason != "AlreadyExists"
    return answered.status == 429 or raced


def patch_of(decided: Patch) -> list[dict[str, Any]]:
    return decided.operations


def reply_of(answered: Answered) -> Reply | None:
    """What the answer to a patch means; None: a test of it failed, and nothing happened."""
    if answered.well:
        return Reply(answer=Answer.DONE)
    if answered.status == 422 and LATE_MESSAGE in answered.message:
        return Reply(answer=Answer.LATE, text=f"{answered.message}; nothing was done")
    if answered.status == 409 or (answered.status == 422 and not answered.body.get("details")):
        return None
    if answered.status in (400, 401, 403, 404, 415, 422):
        return Reply(answer=Answer.REFUSED, text=f"{answered.message}; nothing was done")
    return Reply(answer=Answer.UNKNOWN, text=f"it may have been done: {answered.message}")
