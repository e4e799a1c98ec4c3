"""Why a run ended, or cannot start, read from its pods: what the object itself does not tell.

One rule: an exit code is the weakest evidence. A pod that the cluster took away, and a container that ran out of
memory, stand before it, in whichever of a job's pods they are seen. What nothing tells is `unrecognized`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from dispatch_core.adapters.kubernetes.kinds import (
    Json,
    annotation,
    condition,
    dig,
    label,
    name_of,
    number,
    part,
    rows_of,
)
from dispatch_core.plan import Cause, End

DISRUPTIONS = {
    "PreemptionByScheduler": Cause.PREEMPTED,
    "EvictionByEvictionAPI": Cause.PREEMPTED,
    "TerminationByKubelet": Cause.PREEMPTED,
    "DeletionByTaintManager": Cause.NODE_FAILURE,
    "DeletionByPodGC": Cause.NODE_FAILURE,
}
"""Reasons of a pod's condition DisruptionTarget. An eviction is the node's or an administrator's doing, like
preemption; the taint manager and the pod collector act when a node does not answer."""
NEVER_STARTED = ("StartError", "ContainerCannotRun", "RunContainerError", "CreateContainerError")
WAITING = (
    *("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"),
    *("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "ImageInspectError"),
)
"""Reasons for which a container waits, and will not start as it is."""
INDEX = "batch.kubernetes.io/job-completion-index"
ROLE = "training.kubeflow.org/job-role"
SIGNAL_EXIT = 128
LARGEST_SIGNAL = 64


def time_of(told: object) -> datetime | None:
    """A time as the API writes it; None where it is none."""
    try:
        found = datetime.fromisoformat(str(told))
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


class Fault(NamedTuple):
    """One thing that went wrong in one pod."""

    definite: bool
    """More than an exit code."""
    at: str
    """When, as the API writes it, which sorts."""
    pod: str
    end: End


def is_alive(pod: Json) -> bool:
    """Whether a pod may still run: a phase that is not known counts as alive."""
    return dig(pod, "status", "phase") not in ("Succeeded", "Failed")


def first_of(pods: Sequence[Json]) -> Json | None:
    """The newest pod of the first rank."""
    leaders = [pod for pod in pods if label(pod, ROLE) == "master"]
    ranks = leaders or [pod for pod in pods if (annotation(pod, INDEX) or "0") == "0"]
    rows = ranks or list(pods)
    return max(rows, key=lambda pod: str(dig(pod, "metadata", "creationTimestamp"))) if rows else None


def end_by_pods(pods: Sequence[Json], seconds: float | None) -> End | None:
    """How a failed run ended, by all of its pods; None where none of them tells."""
    faults = sorted((fault for pod in pods for fault in _faults(pod)), key=lambda each: (not each.definite, each.at))
    if not faults:
        return None
    end = faults[0].end
    told = f"pod {faults[0].pod}: {end.message}"
    return End(
        cause=end.cause,
        exit_code=end.exit_code,
        signal=end.signal,
        message=told,
        seconds=seconds,
        lost_since=end.lost_since,
    )


def out_of_memory(pods: Sequence[Json]) -> End | None:
    """Whether a run that the cluster calls complete has run out of memory: a container lost a part of itself to it, and
    its first program ended with 0 all the same. What was started again after that has done its work."""
    for pod in pods:
        for container in _containers(part(pod, "status")):
            ended = dig(container, "state", "terminated")
            if isinstance(ended, dict) and ended.get("reason") == "OOMKilled" and number(ended.get("exitCode")) == 0:
                fault = _of_container(name_of(pod), str(container.get("name")), ended)
                return fault.end if fault else None
    return None


def _faults(pod: Json) -> Iterator[Fault]:
    name, status = name_of(pod), part(pod, "status")
    told = condition(pod, "DisruptionTarget")
    reason = str(told.get("reason", ""))
    if told.get("status") == "True" and reason in DISRUPTIONS:
        at = str(told.get("lastTransitionTime", ""))
        cause = DISRUPTIONS[reason]
        lost = time_of(at) if cause is Cause.NODE_FAILURE and not _reported(pod) else None
        message = f"{reason}: {status.get('message') or told.get('message', '')}"
        yield Fault(True, at, name, End(cause=cause, message=message, lost_since=lost))
    elif status.get("reason") in ("Evicted", "Preempting", "NodeShutdown", "Terminated"):
        message = f"{status['reason']}: {status.get('message', '')}"
        yield Fault(True, "", name, End(cause=Cause.PREEMPTED, message=message))
    elif status.get("reason") == "NodeLost":
        yield Fault(True, "", name, End(cause=Cause.NODE_FAILURE, message=str(status.get("message", ""))))
    for container in _containers(status):
        for ended in (dig(container, "state", "terminated"), dig(container, "lastState", "terminated")):
            if isinstance(ended, dict) and (fault := _of_container(name, str(container.get("name")), ended)):
                yield fault


def _containers(status: Json) -> list[Json]:
    return [*rows_of(status, "initContainerStatuses"), *rows_of(status, "containerStatuses")]


def _reported(pod: Json) -> bool:
    """Whether the node has told that every container ended: then nothing of it runs any more."""
    rows = _containers(part(pod, "status"))
    return bool(rows) and all(dig(row, "state", "terminated") is not None for row in rows)


def _of_container(pod: str, name: str, ended: Json) -> Fault | None:
    code, reason = number(ended.get("exitCode")), str(ended.get("reason", ""))
    at = str(ended.get("finishedAt") or "~")
    said = " ".join(str(ended.get("message") or "").split())[:300]
    message = f"container {name}: {reason or 'ended'}, exit code {code}" + (f": {said}" if said else "")
    if reason == "OOMKilled":
        return Fault(True, at, pod, End(cause=Cause.OUT_OF_MEMORY, exit_code=code, message=message))
    if reason in NEVER_STARTED:
        return Fault(True, at, pod, End(cause=Cause.CANNOT_START, exit_code=code, message=message))
    signal = number(ended.get("signal")) or (code - SIGNAL_EXIT if 0 < code - SIGNAL_EXIT <= LARGEST_SIGNAL else 0)
    if signal:
        return Fault(False, at, pod, End(cause=Cause.SIGNAL, signal=signal, exit_code=code, message=message))
    if code:
        return Fault(False, at, pod, End(cause=Cause.EXIT, exit_code=code, message=message))
    return None


def waits_for(pods: Sequence[Json], events: Sequence[Json] = ()) -> str:
    """Why no pod of a run starts, in one line; "" where nothing tells."""
    for pod in pods:
        for container in _containers(part(pod, "status")):
            waiting = dig(container, "state", "waiting")
            if isinstance(waiting, dict) and waiting.get("reason") in WAITING:
                return _line(f"{waiting['reason']}: {waiting.get('message', '')}")
        told = condition(pod, "PodScheduled")
        if told.get("status") == "False":
            return _line(f"{told.get('reason', '')}: {told.get('message', '')}")
    warnings = [event for event in events if event.get("type") == "Warning"]
    if not warnings:
        return ""
    last = max(warnings, key=lambda event: str(event.get("eventTime") or event.get("lastTimestamp") or ""))
    return _line(f"{last.get('reason', '')}: {last.get('message') or last.get('note') or ''}")


def _line(text: str) -> str:
    return " ".join(text.split())[:500].removesuffix(":")
