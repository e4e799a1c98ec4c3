"""Start: one object, its owner, and its secrets.

One rule: an attempt's object has one name, so that a create that is carried out again meets the one before; what is met
there is looked at, and taken for ours only by its tags and what it was made from. Only what is certain is told as such:
where something was found that is not ours, whether ours was there before is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from dispatch_core.adapters.contract import Launch
from dispatch_core.adapters.kubernetes import kinds, manifest
from dispatch_core.adapters.kubernetes.calls import Calls, Late, reply_of
from dispatch_core.adapters.kubernetes.cluster import KubernetesCluster
from dispatch_core.adapters.kubernetes.kinds import OWNER, SECRET, Json, annotation, label, uid_of
from dispatch_core.adapters.kubernetes.transport import Answered, NotSent
from dispatch_core.record import Answer, Reply


async def start(
    calls: Calls,
    cluster: KubernetesCluster,
    launch: Launch,
    secrets: Mapping[str, str],
    deadline: datetime,
    parked: bool,
) -> Reply:
    """Create an attempt's object, gated. Raises Late, Lost and NotSent."""
    await calls.in_time(deadline)
    owner = await _owner(calls, cluster, launch, bool(secrets), deadline)
    if isinstance(owner, Reply):
        return owner
    if secrets:
        path = SECRET.path(cluster.namespace)
        answered = await calls.send("POST", path, deadline, manifest.secret_body(launch, secrets, owner))
        if not answered.well and answered.status != 409:
            return _refused(answered)
    sort, body = manifest.body_of(launch, cluster, owner, parked=parked)
    body["metadata"]["annotations"][kinds.DEADLINE] = calls.told(deadline)
    answered = await calls.send("POST", sort.path(cluster.namespace), deadline, body)
    if answered.well:
        return Reply(answer=Answer.DONE, text=uid_of(answered.body))
    if answered.status != 409:
        return _refused(answered)
    try:
        there = await calls.get(sort, launch.name, deadline)
    except (Late, NotSent) as error:
        return Reply(answer=Answer.UNKNOWN, text=f"{launch.name} is there already, and cannot be looked at: {error}")
    if there.well and _is_it(there.body, body):
        return Reply(answer=Answer.DONE, text=uid_of(there.body))
    text = f"{launch.name} is there already, and is being deleted, or is none that this Start makes"
    return Reply(answer=Answer.UNKNOWN, text=text)


async def _owner(
    calls: Calls, cluster: KubernetesCluster, launch: Launch, secrets: bool, deadline: datetime
) -> Json | Reply:
    """The job's owner object, made by whoever comes first."""
    name = manifest.owner_name(launch.uid)
    there = await calls.get(OWNER, name, deadline)
    if there.status == 404:
        body = manifest.owner_body(launch.uid, launch.key, secrets)
        there = await calls.send("POST", OWNER.path(cluster.namespace), deadline, body)
        if there.status == 409:
            there = await calls.get(OWNER, name, deadline)
    if not there.well:
        return _refused(there)
    return there.body


def _refused(answered: Answered) -> Reply:
    """A create that was not carried out, or may have been."""
    reply = reply_of(answered)
    return reply or Reply(answer=Answer.REFUSED, text=f"{answered.message}; nothing was done")


def _is_it(there: Json, wanted: Json) -> bool:
    """Whether an object is the one that a create would have made."""
    if (there.get("metadata") or {}).get("deletionTimestamp"):
        return False
    tags = all(label(there, name) == label(wanted, name) for name in (kinds.UID, kinds.SUBMISSION, kinds.ATTEMPT))
    return tags and annotation(there, kinds.MADE_FROM) == annotation(wanted, kinds.MADE_FROM)
