"""Listings of one namespace: every object of ours, with the pods and Workloads that tell more of it.

One rule: a list without a resourceVersion is the present state, never a cache, and it is whole or not there at all.
Pods are listed only of objects of which they tell more than is known, by name, and all of them where that would be too
many. A Job that runs at rest, with each of its pods ready, tells of any change of theirs itself.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from dispatch_core.adapters.kubernetes import kinds
from dispatch_core.adapters.kubernetes.cluster import KubernetesCluster
from dispatch_core.adapters.kubernetes.kinds import POD, UID, WORKLOAD, Json, Sort, dig, label, name_of, uid_of
from dispatch_core.adapters.kubernetes.progress import Progress
from dispatch_core.adapters.kubernetes.reading import Shown, is_at_rest, needs_pods, sighting
from dispatch_core.adapters.kubernetes.transport import Answered, Api, Lost, NotSent
from dispatch_core.adapters.kubernetes.watching import Listed, marks_of
from dispatch_core.adapters.shared import Snapshot
from dispatch_core.errors import SchedulerUnavailable
from dispatch_core.evidence import Sighting
from dispatch_core.record import State

PAGE = 500
LIST_SECONDS = 30.0
"""For one page of a list."""
PODS_AT_ONCE = 100
"""Names in one selector; where more objects need their pods, all pods are listed."""
KEPT = 20_000
"""Objects of which is remembered what they were read as."""
RESTARTS = 3


class Lister:
    """Asks one namespace."""

    def __init__(self, api: Api, cluster: KubernetesCluster) -> None:
        self._api, self._cluster = api, cluster
        self.namespace = cluster.namespace
        self.sorts = [kinds.SORTS[kind] for kind in cluster.kinds]
        self.sort_of: dict[str, Sort] = {}
        """The kinds of listed objects, by uid."""
        self.found: dict[Sort, Mapping[str, tuple[str, frozenset[str]]]] = {}
        """What the latest listing showed, as a stream compares it."""
        self.seconds = 0.0
        """What the latest listing took."""
        self.ended: list[tuple[Sort, Json]] = []
        """The objects that the latest listing showed ended."""
        self._progress = Progress(api, cluster.namespace)
        self._at_rest: dict[str, tuple[str, Sighting]] = {}
        """What was read of objects at rest, by uid, with the resourceVersion that it was read at."""

    async def listed(self, sort: Sort, selector: str) -> tuple[str, list[Json]]:
        """All objects of a kind by a label selector, in pages of one moment, and its resourceVersion. Raises
        SchedulerUnavailable."""
        path, query = sort.path(self._cluster.namespace), {"labelSelector": selector, "limit": str(PAGE)}
        rows: list[Json] = []
        restarts = 0
        while True:
            answered = await self.asked(path, query)
            if answered.status == 410 and "continue" in query and restarts < RESTARTS:
                restarts, rows = restarts + 1, []  # the moment that the pages show is too long ago
                del query["continue"]
                continue
            if not answered.well or "items" not in answered.body:
                raise SchedulerUnavailable(f"{sort.plural} on {self._cluster.name}: {answered.message}")
            rows += answered.body.get("items") or ()
            going_on = dig(answered.body, "metadata", "continue")
            if not going_on:
                return str(dig(answered.body, "metadata", "resourceVersion") or ""), rows
            query["continue"] = str(going_on)

    async def asked(self, path: str, query: Mapping[str, str]) -> Answered:
        """One read. Raises SchedulerUnavailable."""
        try:
            return await self._api.request("GET", path, query, seconds=LIST_SECONDS)
        except (NotSent, Lost) as error:
            raise SchedulerUnavailable(str(error)) from error

    async def marks(self, sort: Sort) -> Listed:
        """What a stream compares."""
        at, rows = await self.listed(sort, UID)
        return at, _marks(rows)

    async def snapshot(self) -> Snapshot:
        """One listing of all that is ours. Raises SchedulerUnavailable."""
        began = time.monotonic()
        found: list[Shown] = []
        for sort in self.sorts:
            _, rows = await self.listed(sort, UID)
            found += [Shown(sort, row) for row in rows]
            self.found[sort] = _marks(rows)
        if self._cluster.kueue:
            _, rows = await self.listed(WORKLOAD, kinds.JOB_UID)
            workloads = {label(row, kinds.JOB_UID): row for row in rows}
            found = [shown._replace(workload=workloads.get(uid_of(shown.object))) for shown in found]
        sightings = await self._read(found)
        self.seconds = time.monotonic() - began
        return Snapshot(self._api.clock.at(began), self._api.clock.at(time.monotonic()), sightings)

    async def _read(self, found: Sequence[Shown]) -> list[Sighting]:
        """What each object is; what was at rest and has not changed is not read again."""
        self.sort_of = {uid_of(shown.object): shown.sort for shown in found}
        known = {uid: told for uid, told in self._at_rest.items() if uid in self.sort_of}
        fresh = [shown for shown in found if known.get(uid_of(shown.object), ("",))[0] != _release(shown.object)]
        pods = await self._pods([shown for shown in fresh if needs_pods(shown)])
        moving: list[tuple[Shown, Sighting]] = []
        for shown in fresh:
            uid = uid_of(shown.object)
            shown = shown._replace(pods=pods.get((shown.sort.pod_label, name_of(shown.object)), ()))
            told = sighting(shown)
            known.pop(uid, None)
            if is_at_rest(shown, told) and len(known) < KEPT:
                known[uid] = (_release(shown.object), told)
            else:
                moving.append((shown, told))
        self._at_rest = known
        seen = [*(seen for _, seen in known.values()), *await self._progress.added(moving)]
        over = {one.id for one in seen if one.state is State.ENDED}
        self.ended = [(shown.sort, shown.object) for shown in found if uid_of(shown.object) in over]
        return seen

    async def _pods(self, of: Sequence[Shown]) -> dict[tuple[str, str], list[Json]]:
        """The pods of these objects, by label and name."""
        found: dict[tuple[str, str], list[Json]] = {}
        for pod_label in sorted({shown.sort.pod_label for shown in of}):
            names = sorted({name_of(shown.object) for shown in of if shown.sort.pod_label == pod_label})
            selector = pod_label if len(names) > PODS_AT_ONCE else f"{pod_label} in ({','.join(names)})"
            for pod in (await self.listed(POD, selector))[1]:
                found.setdefault((pod_label, label(pod, pod_label)), []).append(pod)
        return found

    async def pods_of(self, sort: Sort, name: str) -> list[Json]:
        """The pods of one object, those that began first first. Raises SchedulerUnavailable."""
        rows = (await self.listed(POD, f"{sort.pod_label}={name}"))[1]
        return sorted(rows, key=lambda pod: (str(dig(pod, "metadata", "creationTimestamp")), name_of(pod)))


def _marks(rows: Sequence[Json]) -> dict[str, tuple[str, frozenset[str]]]:
    return {uid_of(row): (_release(row), marks_of(row)) for row in rows}


def _release(object: Json) -> str:
    return str(dig(object, "metadata", "resourceVersion") or "")
