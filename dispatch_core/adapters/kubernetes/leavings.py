"""Pods whose object is gone: a delete in the background takes the object at once, and its pods when they have ended.

One rule: while one of them may still run, nobody can say that the object is gone; the job's listing is not complete.
They are listed once for all jobs that ask, after the objects and as a part of the same listing: one of its own for each
job would take longer than a step may, where a thousand have lost an object at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dispatch_core.adapters.contract import Job
from dispatch_core.adapters.kubernetes.causes import is_alive
from dispatch_core.adapters.kubernetes.kinds import POD, UID, Json, label
from dispatch_core.adapters.kubernetes.listing import Lister
from dispatch_core.evidence import Listing
from dispatch_core.names import read_name

Left = Mapping[str, Sequence[Json]]
"""Pods that may run, by the uid of their job."""


def lacks(job: Job, ids: frozenset[str]) -> bool:
    """Whether an object that the job's record knows is not among those that are listed."""
    return not ids.issuperset(job.known)


async def pods(lister: Lister) -> Left:
    """By our own label, and by that of their kind where pods do not carry ours. Raises SchedulerUnavailable."""
    bare = sorted({sort.pod_label for sort in lister.sorts if not sort.pods_are_tagged})
    found: dict[str, list[Json]] = {}
    for selector in (UID, *bare):
        for pod in (await lister.listed(POD, selector))[1]:
            if is_alive(pod):
                found.setdefault(_uid_of(lister, pod), []).append(pod)
    return found


def _uid_of(lister: Lister, pod: Json) -> str:
    """The uid of a pod's job: by the name of the object that made it, else by our label."""
    for sort in lister.sorts:
        tags = read_name(label(pod, sort.pod_label))
        if tags is not None:
            return tags.uid
    return label(pod, UID)


def are_left(lister: Lister, job: Job, listing: Listing, left: Left | None) -> bool:
    """Whether a pod of a job may run whose object this listing does not show. `left`: None, where it was not asked."""
    ids = frozenset(sighting.id for sighting in listing.objects)
    if not lacks(job, ids):
        return False
    names = {sighting.name for sighting in listing.objects}
    return left is None or any(_is_left(lister, pod, names, ids) for pod in left.get(job.uid, ()))


def _is_left(lister: Lister, pod: Json, names: set[str], ids: frozenset[str]) -> bool:
    """Whether it is of an object that is not listed."""
    for sort in lister.sorts:
        if read_name(name := label(pod, sort.pod_label)) is not None:
            uid = label(pod, sort.uid_label) if sort.uid_label else ""
            return name not in names or bool(uid and uid not in ids)  # a name can be taken again, a uid cannot
    return True
