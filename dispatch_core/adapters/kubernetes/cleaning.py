"""What is deleted of a namespace: objects that ended long ago, of jobs that are settled.

One rule: an object goes only if the listing that has just succeeded showed it ended, its owner is gone, which is so
once its job is settled, and nothing of it has changed for as long as is agreed; and only as it was shown, by its uid
and its resourceVersion. Its pods and logs go with it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from dispatch_core.adapters.kubernetes import causes, kinds
from dispatch_core.adapters.kubernetes.kinds import Json, Sort, dig, name_of, uid_of
from dispatch_core.adapters.kubernetes.transport import Api
from dispatch_core.errors import DispatchError

log = logging.getLogger(__name__)

MOST = 50
"""Objects that are deleted at once; the rest goes the next time."""
MOST_SECONDS = 5.0
"""No listing waits longer for it."""
AGAIN_SECONDS = 600.0

Old = tuple[Sort, Json]


def old(ended: Iterable[Old], before: datetime) -> Iterator[Old]:
    """Those of the ended objects that nobody needs any more."""
    for sort, object in ended:
        if not dig(object, "metadata", "ownerReferences") and (at := last_change(object)) is not None and at < before:
            yield sort, object


def last_change(object: Json) -> datetime | None:
    """When it was made, or a condition of it changed last, or a call on it was made; None: it does not tell."""
    told = [row.get("lastTransitionTime") for row in kinds.rows_of(object, "status", "conditions")]
    told += [dig(object, "metadata", "creationTimestamp"), kinds.annotation(object, kinds.DEADLINE)]
    return max((at for at in map(causes.time_of, told) if at is not None), default=None)


async def clean(api: Api, namespace: str, ended: Iterable[Old], now: datetime, keep_seconds: float) -> None:
    """Delete some of what is old; what cannot be deleted is left for another time."""
    until = time.monotonic() + MOST_SECONDS
    for _, (sort, object) in zip(range(MOST), old(ended, now - timedelta(seconds=keep_seconds)), strict=False):
        if (left := until - time.monotonic()) <= 0:
            return
        shown = {"uid": uid_of(object), "resourceVersion": str(dig(object, "metadata", "resourceVersion"))}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background", "preconditions": shown}
        path = sort.path(namespace, name_of(object))
        try:
            answered = await api.request("DELETE", path, None, body, seconds=left)
        except DispatchError as error:
            log.info("what is old in %s stays for now: %s", namespace, error)
            return
        if not answered.well and answered.status not in (404, 409):
            log.info("what is old in %s stays for now: %s", namespace, answered.message)
            return
