"""What Kubernetes says of an object, its pods and its Workload, read into a sighting.

One rule: reading is total, and "ended" is said only once no pod of the run is left alive. Preemption by Kueue is the
end of a run, never a failure: its Workload counts evictions for good, so runs are counted by them. Pure: tests feed it
with what a real API server and a real Kueue said.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from dispatch_core.adapters.contract import Job
from dispatch_core.adapters.kubernetes import causes, kinds
from dispatch_core.adapters.kubernetes.causes import time_of
from dispatch_core.adapters.kubernetes.kinds import (
    TRAINJOB,
    Json,
    Sort,
    annotation,
    condition,
    dig,
    is_true,
    number,
    part,
    rows_of,
)
from dispatch_core.adapters.kubernetes.patches import has_begun, is_kueue, is_suspended
from dispatch_core.evidence import Listing, Sighting
from dispatch_core.plan import Cause, End
from dispatch_core.record import State

COMPLETE = ("Complete", "Completed", "Succeeded")
"""Conditions that say that all went well: of Job and TrainJob, of JobSet, of PyTorchJob."""

EVICTIONS = {
    "Preempted": Cause.PREEMPTED,
    "ClusterQueueStopped": Cause.PREEMPTED,
    "LocalQueueStopped": Cause.PREEMPTED,
    "AdmissionCheck": Cause.PREEMPTED,
    "PodsReadyTimeout": Cause.CANNOT_START,
    "NodeFailures": Cause.NODE_FAILURE,
}
"""Evictions by Kueue that end a run. A hold of ours on a waiting Workload counts as one too, `Deactivated`: no run."""
DEACTIVATED_BY_KUEUE = "DeactivatedDueTo"
DEACTIVATIONS = {"MaximumExecutionTimeExceeded": Cause.TIME_LIMIT}

FAILURES = {"DeadlineExceeded": Cause.TIME_LIMIT}
"""Reasons of a failed Job that tell the cause without its pods."""


class Shown(NamedTuple):
    """All that was shown of one object."""

    sort: Sort
    object: Json
    pods: Sequence[Json] | None = None
    """None: they were not looked at."""
    workload: Json | None = None


def sighting(shown: Shown) -> Sighting:
    """What is shown of an object, as the supervisor takes it."""
    object, (state, end) = shown.object, _state(shown)
    run = run_of(shown)
    return Sighting(
        id=kinds.uid_of(object),
        name=kinds.name_of(object),
        key=annotation(object, kinds.KEY),
        state=state,
        run=run,
        hold=_is_held(shown) and state in (State.GATED, State.HELD),
        nodes=_nodes(shown.pods or ()) if state in (State.RUNNING, State.ENDING, State.ENDED) else (),
        end=end,
        earlier_ends=_earlier(shown, run),
    )


def needs_pods(shown: Shown) -> bool:
    """Whether pods tell more of an object: of one that was opened, and of a stopped one."""
    if is_true(shown.object, "Suspended") and is_suspended(shown.sort, shown.object) and not _active(shown):
        untold = shown.sort is not kinds.JOB or dig(shown.object, "status", "terminating") is None  # by an old server
        return annotation(shown.object, kinds.STOPPED) == kinds.YES and untold
    return not is_suspended(shown.sort, shown.object) or _active(shown) > 0


def is_at_rest(shown: Shown, seen: Sighting) -> bool:
    """Whether nothing else can be told of it before it changes itself: it has ended, or it is a Job whose status counts
    each of its pods as ready. Of a run whose progress is watched, the log tells more."""
    if seen.state is State.ENDED:
        return True
    if seen.state is not State.RUNNING or shown.sort is not kinds.JOB or is_watched(shown) or shown.workload:
        return False
    status = shown.object.get("status") or {}
    pods, ready, ending = (number(status.get(name)) for name in ("active", "ready", "terminating"))
    return 0 < pods == ready and not ending


def is_watched(shown: Shown) -> bool:
    """Whether a rule or an option asks whether the run gets on."""
    return bool(annotation(shown.object, kinds.PROGRESS))


# --- the state


def _state(shown: Shown) -> tuple[State, End | None]:
    object = shown.object
    finished = _finished(shown)
    if finished is not None:
        alive = any(causes.is_alive(pod) for pod in shown.pods or ())
        return (State.ENDING if alive else State.ENDED), finished
    suspended = is_suspended(shown.sort, object)
    if dig(object, "metadata", "deletionTimestamp") is not None:
        return State.ENDING, End(cause=Cause.STOPPED_OUTSIDE, message="Kubernetes: it is being deleted")
    if annotation(object, kinds.STOPPED) == kinds.YES and suspended:
        end = End(cause=Cause.STOPPED_OUTSIDE, message="Kubernetes: it was suspended for good by a Stop")
        return (State.ENDED if _is_quiet(shown) else State.ENDING), end
    if shown.workload is not None and is_kueue(object) and (told := _by_kueue(shown, shown.workload)):
        return told
    if decided := _decided(shown):
        return State.ENDING, decided
    if suspended and not _active(shown):
        return _waiting(shown), None
    if suspended:
        return State.ENDING, None
    return (State.RUNNING if _runs(shown) else State.PENDING), None


def _waiting(shown: Shown) -> State:
    gate = annotation(shown.object, kinds.GATE)
    if gate == kinds.CLOSED:
        return State.GATED
    if gate != kinds.OPEN:
        return State.UNRECOGNIZED
    return State.HELD if _is_held(shown) else State.PENDING


def _is_held(shown: Shown) -> bool:
    if is_kueue(shown.object):
        return shown.workload is not None and dig(shown.workload, "spec", "active") is False
    return annotation(shown.object, kinds.HOLD) not in ("", kinds.NO_HOLD)


def _runs(shown: Shown) -> bool:
    if shown.pods is not None and any(dig(pod, "status", "phase") == "Running" for pod in shown.pods):
        return True
    return has_begun(shown.object)


def _active(shown: Shown) -> int:
    """How many pods, or child jobs, the object itself shows that have not ended."""
    status = part(shown.object, "status")
    rows = [*rows_of(status, "jobsStatus"), *rows_of(status, "replicatedJobsStatus")]
    replicas = [row for row in part(status, "replicaStatuses").values() if isinstance(row, dict)]
    own = number(status.get("active")) + number(status.get("terminating"))
    return own + sum(number(row.get("active")) for row in (*rows, *replicas))


def _is_quiet(shown: Shown) -> bool:
    """Whether nothing of a suspended object runs, and its controller has seen that it must not."""
    if any(causes.is_alive(pod) for pod in shown.pods or ()) or _active(shown):
        return False
    if is_true(shown.object, "Suspended"):
        return shown.sort is not TRAINJOB or not has_begun(shown.object)
    return annotation(shown.object, kinds.GATE) == kinds.CLOSED and not dig(shown.object, "status", "startTime")


# --- the end


def _finished(shown: Shown) -> End | None:
    """How it ended, where the object says that it did."""
    object = shown.object
    done = next((name for name in COMPLETE if is_true(object, name)), None)
    if done is not None:
        if (short := causes.out_of_memory(shown.pods or ())) is not None:
            return msgspec.structs.replace(short, seconds=_seconds(shown, done))
        told = condition(object, done).get("reason") or done
        return End(cause=Cause.COMPLETED, exit_code=0, message=f"Kubernetes: {told}", seconds=_seconds(shown, done))
    return _failed(shown, "Failed") if is_true(object, "Failed") else None


def _decided(shown: Shown) -> End | None:
    """How it will have ended: it is decided, and pods still end."""
    if is_true(shown.object, "SuccessCriteriaMet"):
        return End(cause=Cause.COMPLETED, exit_code=0, message="Kubernetes: SuccessCriteriaMet")
    return _failed(shown, "FailureTarget") if is_true(shown.object, "FailureTarget") else None


def _failed(shown: Shown, name: str) -> End:
    told = condition(shown.object, name)
    reason, seconds = str(told.get("reason", "")), _seconds(shown, name)
    message = f"Kubernetes: {reason}: {told.get('message', '')}"
    if reason in FAILURES:
        why = causes.waits_for(shown.pods or ())
        return End(cause=FAILURES[reason], message=f"{message}; {why}" if why else message, seconds=seconds)
    if reason == "TrainingRuntimeNotSupported":
        return End(cause=Cause.CANNOT_START, message=message, seconds=seconds)
    by_pods = causes.end_by_pods(shown.pods or (), seconds)
    if by_pods is not None:
        return by_pods
    return End(cause=Cause.UNRECOGNIZED, message=f"{message}; no pod is left that tells why", seconds=seconds)


def _seconds(shown: Shown, name: str) -> float | None:
    """How long it ran, as far as it is told."""
    status = part(shown.object, "status")
    began = time_of(status.get("startTime"))
    ended = time_of(status.get("completionTime") or condition(shown.object, name).get("lastTransitionTime"))
    return None if began is None or ended is None else max(0.0, (ended - began).total_seconds())


def _nodes(pods: Sequence[Json]) -> tuple[str, ...]:
    return tuple(sorted({str(node) for pod in pods if (node := dig(pod, "spec", "nodeName"))}))


# --- Kueue


def _counted(workload: Json | None) -> list[tuple[Cause, int]]:
    """The evictions that ended a run, by their causes: counters that only grow."""
    rows = rows_of(workload or {}, "status", "schedulingStats", "evictions")
    told = [(str(row.get("reason", "")), number(row.get("count"))) for row in rows]
    return [(EVICTIONS[reason], count) for reason, count in told if reason in EVICTIONS]


def _is_evicting(shown: Shown) -> bool:
    """Whether an eviction that ends a run is under way: it is counted at once, and the pods end after that."""
    workload = shown.workload or {}
    told = condition(workload, "Evicted")
    if told.get("status") != "True" or str(told.get("reason")) not in EVICTIONS:
        return False
    return is_true(workload, "QuotaReserved") or _active(shown) > 0


def run_of(shown: Shown) -> int:
    """Which run the object is on: the first, and one more for each that Kueue evicted."""
    evictions = sum(count for _, count in _counted(shown.workload))
    return max(1, 1 + evictions - _is_evicting(shown))


def remembered(job: Job, listing: Listing) -> Listing:
    """A listing in which no object is on an earlier run than its record knows of: the counters go with the Workload,
    which Kueue may delete once it has finished, and makes anew where a person deletes it."""
    runs = dict(job.runs)
    if all(shown.run >= runs.get(shown.id, 1) for shown in listing.objects):
        return listing
    rows = (msgspec.structs.replace(shown, run=max(shown.run, runs.get(shown.id, 1))) for shown in listing.objects)
    return msgspec.structs.replace(listing, objects=tuple(rows))


def _earlier(shown: Shown, run: int) -> tuple[tuple[int, End], ...]:
    """How the runs before ended. The counters tell no order, so of several causes only that it was run again."""
    told = {cause for cause, _ in _counted(shown.workload)}
    cause = told.pop() if len(told) == 1 else Cause.RERUN
    end = End(cause=cause, message="Kueue evicted it and runs it again")
    return tuple((number, end) for number in range(max(1, run - LARGEST_EARLIER), run))


LARGEST_EARLIER = 100


def _by_kueue(shown: Shown, workload: Json) -> tuple[State, End | None] | None:
    """What only the Workload tells: an eviction under way, and that Kueue gave it up."""
    told = condition(workload, "Evicted")
    reason = str(told.get("reason", ""))
    if _is_evicting(shown):
        return State.ENDING, End(cause=EVICTIONS[reason], message=f"Kueue: {reason}: {told.get('message', '')}")
    if reason.startswith(DEACTIVATED_BY_KUEUE) and dig(workload, "spec", "active") is False:
        cause = DEACTIVATIONS.get(reason.removeprefix(DEACTIVATED_BY_KUEUE), Cause.CANNOT_START)
        end = End(cause=cause, message=f"Kueue: {reason}: {told.get('message', '')}")
        return (State.ENDED if _is_quiet(shown) else State.ENDING), end
    return None
