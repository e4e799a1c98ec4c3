"""What each call changes, as one JSON Patch on the object that was just read.

One rule: a patch tests the uid, the fence and each tag that it was decided on, and raises the fence. So of all copies
of all calls that were decided on one reading, the server carries out one; a copy that comes late is refused whatever
was decided since. No resourceVersion is tested: controllers write the status all the time. Pure.

| call    | needs                            | writes                                             |
|---------|----------------------------------|----------------------------------------------------|
| open    | not stopped, gate closed         | gate open, and suspend false unless held           |
| hold    | not stopped, not begun, no hold  | hold, suspend true; under Kueue `active` false     |
| release | not stopped                      | no hold, suspend as the gate; Kueue: `active` true |
| stop    | not ended                        | stopped, suspend true; under Kueue `active` false  |
"""

from __future__ import annotations

from typing import Any, NamedTuple

from dispatch_core.adapters.kubernetes import kinds
from dispatch_core.adapters.kubernetes.kinds import Json, Sort, annotation, dig, label

Operation = dict[str, Any]


class Patch(NamedTuple):
    """Operations that the server carries out all together, or none."""

    operations: list[Operation]


class Needless(NamedTuple):
    """It is so already."""

    text: str


class Refused(NamedTuple):
    """It must not be done."""

    text: str


Decided = Patch | Needless | Refused

FENCE_LIMIT = 2**31


def pointer(*path: str) -> str:
    """A path in a JSON Patch."""
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in path)


def is_kueue(object: Json) -> bool:
    """Whether Kueue, and not the suspend bit alone, starts it."""
    return bool(label(object, kinds.QUEUE_NAME))


def is_suspended(sort: Sort, object: Json) -> bool:
    return dig(object, *sort.suspend) is True


def is_finished(object: Json) -> bool:
    return any(kinds.is_true(object, name) for name in ("Complete", "Completed", "Succeeded", "Failed"))


def open_gate(sort: Sort, object: Json, deadline: str) -> Decided:
    if (wrong := _not_ours(object)) or (wrong := _stopped(object)):
        return wrong
    if annotation(object, kinds.GATE) == kinds.OPEN:
        return Needless("its gate is open already")
    if is_finished(object):
        return Refused("it has ended")
    held = annotation(object, kinds.HOLD) != kinds.NO_HOLD
    writes = [_tag(kinds.GATE, kinds.OPEN)]
    if is_kueue(object):
        writes += _kueue_opens(object)
    elif not held:
        writes.append(_suspends(sort, False))
    return _patch(object, deadline, writes)


def _kueue_opens(object: Json) -> list[Operation]:
    """Take our name off the admission gate, or move the object from the held queue to its own."""
    queue = annotation(object, kinds.QUEUE)
    if queue:
        at = pointer("metadata", "labels", kinds.QUEUE_NAME)
        return [_test(at, label(object, kinds.QUEUE_NAME)), {"op": "replace", "path": at, "value": queue}]
    at, shown = pointer("metadata", "annotations", kinds.GATED_BY), annotation(object, kinds.GATED_BY)
    left = [name for name in shown.split(",") if name.strip() and name.strip() != kinds.KUEUE_GATE]
    if not shown:
        return []
    if left:
        return [_test(at, shown), {"op": "replace", "path": at, "value": ",".join(left)}]
    return [_test(at, shown), {"op": "remove", "path": at}]


def hold(sort: Sort, object: Json, deadline: str) -> Decided:
    """Of an object that Kueue does not start; a hold on one that runs would end the run, so it is refused."""
    if (wrong := _not_ours(object)) or (wrong := _stopped(object)):
        return wrong
    if is_finished(object):
        return Refused("it has ended")
    if has_begun(object) and not is_suspended(sort, object):
        return Refused("it runs: on Kubernetes a hold would end the run")
    return _patch(object, deadline, [*_still(object, BEGINNINGS), _tag(kinds.HOLD, kinds.HELD), _suspends(sort, True)])


def release(sort: Sort, object: Json, deadline: str) -> Decided:
    """Of an object that Kueue does not start. What is released already is fenced once more: a late copy of an earlier
    hold must not come after this."""
    if (wrong := _not_ours(object)) or (wrong := _stopped(object)):
        return wrong
    if is_finished(object):
        return Refused("it has ended")
    closed = annotation(object, kinds.GATE) != kinds.OPEN
    return _patch(object, deadline, [_tag(kinds.HOLD, kinds.NO_HOLD), _suspends(sort, closed)])


def stop(sort: Sort, object: Json, deadline: str) -> Decided:
    """The object stays, suspended and marked, so that listings show its end; nothing opens it any more."""
    if wrong := _not_ours(object):
        return wrong
    if is_finished(object):
        return Needless("it has ended")
    if annotation(object, kinds.STOPPED) == kinds.YES and is_suspended(sort, object):
        return Needless("it was stopped already")
    return _patch(object, deadline, [_tag(kinds.STOPPED, kinds.YES), _suspends(sort, True)])


BEGINNINGS = ("ready", "replicatedJobsStatus", "jobsStatus", "conditions")
"""Where a status shows that a run has begun."""


def _still(object: Json, names: tuple[str, ...]) -> list[Operation]:
    """Tests that these parts of a status, or all of it where there is none yet, are as they were shown."""
    status = object.get("status")
    if not isinstance(status, dict):
        return [_test(pointer("status"), None)]
    return [_test(pointer("status", name), status.get(name)) for name in names]


def has_begun(object: Json) -> bool:
    """Whether a pod of it is ready, as far as the object itself tells."""
    status = kinds.part(object, "status")
    if kinds.number(status.get("ready")) > 0 or kinds.is_true(object, "Running"):
        return True
    children = [*kinds.rows_of(status, "replicatedJobsStatus"), *kinds.rows_of(status, "jobsStatus")]
    return any(kinds.number(row.get("ready")) > 0 for row in children)


# --- Kueue's Workload


def set_active(workload: Json, active: bool, deadline: str, *, holds: bool = False) -> Decided:
    """Hold, release or stop under Kueue. The eviction counters are tested, so that no other run is meant; for a hold
    all that Kueue says of it, so that it was not admitted meanwhile."""
    if kinds.is_true(workload, "Finished"):
        return Refused("Kueue shows its Workload finished")
    at = pointer("spec", "active")
    tests = [_test(pointer("metadata", "uid"), kinds.uid_of(workload)), _test(at, dig(workload, "spec", "active"))]
    tests += _still(workload, ("schedulingStats", "conditions") if holds else ("schedulingStats",))
    shown = annotation(workload, kinds.FENCE)
    told = {kinds.FENCE: _raised(shown), kinds.DEADLINE: deadline}
    if dig(workload, "metadata", "annotations") is None:
        root = pointer("metadata", "annotations")
        return Patch([*tests, _test(root, None), _add(root, told), _add(at, active)])
    tests.append(_test(pointer("metadata", "annotations", kinds.FENCE), shown or None))
    writes = [_add(pointer("metadata", "annotations", name), value) for name, value in told.items()]
    return Patch([*tests, *writes, _add(at, active)])


# --- one operation


def _not_ours(object: Json) -> Refused | None:
    if annotation(object, kinds.FENCE) and annotation(object, kinds.GATE):
        return None
    return Refused("it lacks dispatch's annotations, so it is none that dispatch made")


def _stopped(object: Json) -> Refused | None:
    return Refused("it was stopped for good") if annotation(object, kinds.STOPPED) == kinds.YES else None


def _patch(object: Json, deadline: str, writes: list[Operation]) -> Patch:
    tests = [
        _test(pointer("metadata", *path), dig(object, "metadata", *path))
        for path in (
            ("uid",),
            *(("annotations", name) for name in (kinds.FENCE, kinds.GATE, kinds.HOLD, kinds.STOPPED)),
        )
    ]
    fence = _tag(kinds.FENCE, _raised(annotation(object, kinds.FENCE)))
    return Patch([*tests, fence, _tag(kinds.DEADLINE, deadline), *writes])


def _raised(fence: str) -> str:
    return str((int(fence) % FENCE_LIMIT if fence.isdecimal() else 0) + 1)


def _test(path: str, value: Any) -> Operation:
    return {"op": "test", "path": path, "value": value}


def _add(path: str, value: Any) -> Operation:
    return {"op": "add", "path": path, "value": value}


def _tag(name: str, value: str) -> Operation:
    return _add(pointer("metadata", "annotations", name), value)


def _suspends(sort: Sort, suspended: bool) -> Operation:
    return _add(pointer(*sort.suspend), suspended)
