"""What the cluster keeps for a job until it is settled: the owner of all that its Starts make, and their secrets.

One rule: the owner goes last, so for as long as anything is left there is one to find it by. It goes by its uid, and
leaves what it owns: ended objects and their logs stay, and only what is created from then on is collected.
"""

from __future__ import annotations

from dispatch_core.adapters.kubernetes import manifest
from dispatch_core.adapters.kubernetes.calls import REQUEST_SECONDS
from dispatch_core.adapters.kubernetes.cluster import KubernetesCluster
from dispatch_core.adapters.kubernetes.kinds import OWNER, SECRET, UID, Json, Sort, dig, label, uid_of
from dispatch_core.adapters.kubernetes.listing import Lister
from dispatch_core.adapters.kubernetes.transport import Api, Lost, NotSent
from dispatch_core.errors import SchedulerUnavailable


async def settled(api: Api, cluster: KubernetesCluster, uid: str, names: tuple[str, ...]) -> None:
    """Delete a settled job's secrets, then its owner. Raises SchedulerUnavailable."""
    try:
        path = OWNER.path(cluster.namespace, manifest.owner_name(uid))
        there = await api.request("GET", path, seconds=REQUEST_SECONDS)
        if there.status == 404:
            return
        if not there.well:
            raise SchedulerUnavailable(f"{path}: {there.message}")
        if dig(there.body, "data", manifest.WITH_SECRETS):
            for name in names:
                await _delete(api, cluster, SECRET, name, {})
        leaving = {"propagationPolicy": "Orphan", "preconditions": {"uid": uid_of(there.body)}}
        await _delete(api, cluster, OWNER, manifest.owner_name(uid), leaving)
    except (NotSent, Lost) as error:
        raise SchedulerUnavailable(str(error)) from error


async def _delete(api: Api, cluster: KubernetesCluster, sort: Sort, name: str, options: Json) -> None:
    """Have something gone; what is gone already, or is another by now, is none of ours."""
    body = {"apiVersion": "v1", "kind": "DeleteOptions", **options}
    answered = await api.request("DELETE", sort.path(cluster.namespace, name), None, body, seconds=REQUEST_SECONDS)
    if not answered.well and answered.status not in (404, 409):
        raise SchedulerUnavailable(f"{sort.kind} {name} cannot be deleted: {answered.message}")


async def kept(lister: Lister) -> frozenset[str]:
    """The uids of all jobs that have an owner. Raises SchedulerUnavailable."""
    return frozenset(label(row, UID) for row in (await lister.listed(OWNER, UID))[1])
