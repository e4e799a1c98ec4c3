"""Why an opened object does not begin, in one line: from its pods, Kueue's Workload, and the events of either.

One rule: it is for a person to read, and decides nothing. The most telling is said: what a container waits for, then
what the scheduler says of a pod, then what Kueue says, then the last warning.
"""

from __future__ import annotations

from collections.abc import Sequence

from dispatch_core.adapters.kubernetes import causes, kinds
from dispatch_core.adapters.kubernetes.kinds import EVENT, WORKLOAD, Json, condition, name_of
from dispatch_core.adapters.kubernetes.listing import Lister
from dispatch_core.adapters.kubernetes.patches import is_kueue

EVENTS = 100
"""Of one object, the first that the server has."""


async def why(lister: Lister, object: Json, pods: Sequence[Json]) -> str:
    """Why it has not begun; "" where nothing tells. Raises SchedulerUnavailable."""
    told = causes.waits_for(pods)
    if not told and not pods and is_kueue(object):
        told = await _queued(lister, object)
    for about in (*pods, *([object] if object else [])):
        told = told or causes.waits_for((), await _events(lister, about))
    return told


async def _queued(lister: Lister, object: Json) -> str:
    """What keeps it in Kueue's queue."""
    rows = (await lister.listed(WORKLOAD, f"{kinds.JOB_UID}={kinds.uid_of(object)}"))[1]
    told = condition(rows[0], "QuotaReserved") if rows else {}
    if told.get("status") != "False":
        return ""
    return " ".join(f"Kueue: {told.get('reason', '')}: {told.get('message', '')}".split())


async def _events(lister: Lister, about: Json) -> list[Json]:
    """What the cluster has noted about an object. Where dispatch may not read events, nothing."""
    query = {"fieldSelector": f"involvedObject.uid={kinds.uid_of(about)}", "limit": str(EVENTS)}
    answered = await lister.asked(EVENT.path(lister.namespace), query)
    rows = answered.body.get("items") if answered.well else None
    return [row for row in rows or () if row.get("type") == "Warning" and name_of(row)]
