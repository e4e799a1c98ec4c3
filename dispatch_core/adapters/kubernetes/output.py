"""What a run has written, read from its pod.

One rule: a run's log is that of its first pod, both streams in one, as the node keeps it: gone with the pod, and cut by
the node where it grows beyond what is kept there (10 MiB unless set otherwise).
"""

from __future__ import annotations

from dispatch_core.adapters.contract import Log, Piece, Target
from dispatch_core.adapters.kubernetes.kinds import POD, Json, Sort, dig, name_of
from dispatch_core.adapters.kubernetes.listing import Lister
from dispatch_core.adapters.kubernetes.transport import Api, Lost
from dispatch_core.errors import SchedulerUnavailable

LOG_SECONDS = 60.0
INDEX = "batch.kubernetes.io/job-completion-index"


async def read(api: Api, lister: Lister, sort: Sort, target: Target, stream: int, begin: int, length: int) -> Piece:
    """Some bytes of a run's log. The API serves no part of one, so it is read from its beginning, and cut here. Raises
    SchedulerUnavailable."""
    pods = await lister.pods_of(sort, target.name)
    if not pods:
        shown = await lister.asked(sort.path(lister.namespace, target.name), {})
        begun = not shown.well or dig(shown.body, "status", "startTime") is not None
        return Piece(log=Log.GONE if begun else Log.NOT_BEGUN, path=f"the log of a pod of {target.name}")
    if stream == 2:
        return Piece(log=Log.SHARED)
    pod = _first(pods)
    path = POD.path(lister.namespace, name_of(pod))
    container = str(dig(pod, "spec", "containers")[0]["name"])
    try:
        status, text = await api.read(f"{path}/log", {"container": container}, LOG_SECONDS)
    except Lost as error:
        raise SchedulerUnavailable(str(error)) from error
    where = f"pod {name_of(pod)}, container {container}"
    if status == 400:  # the container has not started, and may never
        return Piece(log=Log.NOT_BEGUN, path=where)
    if status != 200:
        return Piece(log=Log.GONE, path=where)
    return Piece(log=Log.THERE, data=text[begin : begin + length], size=len(text), path=where)


def _first(pods: list[Json]) -> Json:
    """The newest pod of the first rank."""
    ranks = [pod for pod in pods if str(dig(pod, "metadata", "annotations", INDEX) or "0") == "0"]
    return (ranks or pods)[-1]
