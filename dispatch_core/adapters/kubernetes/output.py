"""What a run has written, read from its pod.

One rule: a run's log is that of its first pod, both streams in one, as the node keeps it: gone with the pod, and cut by
the node where it grows beyond what is kept there (10 MiB unless set otherwise).
"""

from __future__ import annotations

from collections.abc import Sequence

from dispatch_core.adapters.contract import Log, Piece, Target
from dispatch_core.adapters.kubernetes import hindrance, kinds
from dispatch_core.adapters.kubernetes.causes import first_of
from dispatch_core.adapters.kubernetes.kinds import POD, Json, Sort, annotation, dig, name_of, uid_of
from dispatch_core.adapters.kubernetes.listing import Lister
from dispatch_core.adapters.kubernetes.patches import has_begun, is_finished, is_suspended
from dispatch_core.adapters.kubernetes.transport import Api, Lost, NotSent
from dispatch_core.errors import SchedulerUnavailable

LOG_SECONDS = 60.0


async def read(api: Api, lister: Lister, target: Target, stream: int, begin: int, length: int) -> Piece:
    """Some bytes of a run's log. The API serves no part of one, so it is read from its beginning, and cut here. Raises
    SchedulerUnavailable."""
    sort = await _sort_of(lister, target)
    pods = await lister.pods_of(sort, target.name)
    pod = first_of(pods)
    if pod is None:
        shown = await lister.asked(sort.path(lister.namespace, target.name), {})
        if not shown.well or _has_run(shown.body):
            return Piece(log=Log.GONE, path=f"the log of a pod of {target.name}")
        return Piece(log=Log.NOT_BEGUN, why=await _why(lister, sort, shown.body, pods))
    if stream == 2:
        return Piece(log=Log.SHARED)
    container = str(dig(pod, "spec", "containers")[0]["name"])
    where = f"pod {name_of(pod)}, container {container}"
    path = f"{POD.path(lister.namespace, name_of(pod))}/log"
    try:
        status, text = await api.read(path, {"container": container}, LOG_SECONDS)
    except (NotSent, Lost) as error:
        raise SchedulerUnavailable(str(error)) from error
    if status in (401, 429) or status >= 500:  # of the log itself this tells nothing
        raise SchedulerUnavailable(f"the log of {where} cannot be read now: HTTP {status}")
    if status == 400 or (not text and dig(pod, "status", "phase") == "Pending"):  # no container of it has started
        return Piece(log=Log.NOT_BEGUN, path=where, why=await _why(lister, sort, {}, pods))
    if status != 200:
        return Piece(log=Log.GONE, path=where)
    return Piece(log=Log.THERE, data=text[begin : begin + length], size=len(text), path=where)


async def _sort_of(lister: Lister, target: Target) -> Sort:
    """Its kind, though nothing was listed yet; of what is gone, the first. Raises SchedulerUnavailable."""
    if (known := lister.sort_of.get(target.id)) is not None:
        return known
    for sort in lister.sorts[1:]:
        shown = await lister.asked(sort.path(lister.namespace, target.name), {})
        if shown.well and uid_of(shown.body) == target.id:
            return sort
    return lister.sorts[0]


def _has_run(object: Json) -> bool:
    """Whether an object that has no pods had some: it has ended, has begun, or was opened before it was stopped."""
    stopped = annotation(object, kinds.STOPPED) == kinds.YES and annotation(object, kinds.GATE) == kinds.OPEN
    return is_finished(object) or has_begun(object) or stopped


async def _why(lister: Lister, sort: Sort, object: Json, pods: Sequence[Json]) -> str:
    """Why an opened object does not begin; of one that has ended, or is not to begin yet, that is no question."""
    shut = is_suspended(sort, object) and annotation(object, kinds.GATE) != kinds.OPEN
    if object and (shut or annotation(object, kinds.STOPPED) == kinds.YES):
        return ""
    return await hindrance.why(lister, object, pods)
