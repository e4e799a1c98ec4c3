"""Pods whose object is gone: a delete in the background takes the object at once, and its pods when they have ended.

One rule: while one of them may still run, nobody can say that the object is gone; the job's listing is not complete.
"""

from __future__ import annotations

from dispatch_core.adapters.contract import Job
from dispatch_core.adapters.kubernetes.causes import is_alive
from dispatch_core.adapters.kubernetes.kinds import POD, UID, Json, label
from dispatch_core.adapters.kubernetes.listing import Lister
from dispatch_core.evidence import Listing
from dispatch_core.names import read_name


async def are_left(lister: Lister, job: Job, listing: Listing) -> bool:
    """Whether a pod of a job may run whose object this listing does not show. Only a job with a recorded object that is
    not listed is looked at. Raises SchedulerUnavailable."""
    shown = {sighting.id for sighting in listing.objects}
    if not set(job.known) - shown:
        return False
    names = {sighting.name for sighting in listing.objects}
    return any(_is_left(lister, job, pod, names, shown) for pod in await _pods(lister, job))


async def _pods(lister: Lister, job: Job) -> list[Json]:
    """The pods that may be the job's: by our own label, and by that of its kind where pods do not carry ours."""
    bare = sorted({sort.pod_label for sort in lister.sorts if not sort.pods_are_tagged})
    return [pod for selector in (f"{UID}={job.uid}", *bare) for pod in (await lister.listed(POD, selector))[1]]


def _is_left(lister: Lister, job: Job, pod: Json, names: set[str], ids: set[str]) -> bool:
    """Whether it may run, and is of an object of this job, and of none that is listed."""
    if not is_alive(pod):
        return False
    for sort in lister.sorts:
        tags = read_name(name := label(pod, sort.pod_label))
        if tags is not None and tags.uid == job.uid:
            uid = label(pod, sort.uid_label) if sort.uid_label else ""
            return name not in names or bool(uid and uid not in ids)  # a name can be taken again, a uid cannot
    return label(pod, UID) == job.uid
