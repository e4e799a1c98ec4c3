"""Whole lives of Jobs as watches recorded them.

One rule: what is compared is the order of what a client can decide on: suspend, conditions, and the counts of pods.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

LIVES = (
    *("life-11-complete-watch-job", "life-16-failed-watch-job", "life-21-failuretarget-watch-job"),
    *("life-24-successcriteria-watch-job", "life-42-podfailurepolicy-failjob-watch-job", "life-48-backoff-watch-job"),
    *("life-52-deadline-watch-job", "life-60-suspend-watch-job", "life-67-ttl-watch-job"),
)
KUEUE_LIVES = (
    *("kueue-28-gated-watch-workload", "kueue-51-hold-watch-workload"),
    *("kueue-62-preemption-watch-workloads", "kueue-68-parked-watch-workload"),
)
Step = tuple[Any, ...]


def conditions(found: dict[str, Any]) -> tuple[str, ...]:
    known = (found.get("status") or {}).get("conditions") or ()
    return tuple(f"{each['type']}={each['status']}/{each['reason']}" for each in known if each["type"] != "PodsReady")


def step(event: dict[str, Any]) -> Step:
    """One line of a Job's watch."""
    status = event["object"].get("status") or {}
    counts = tuple(status.get(name, 0) for name in ("active", "terminating", "failed", "succeeded"))
    return event["object"]["spec"].get("suspend"), conditions(event["object"]), counts, "startTime" in status


def workload_step(event: dict[str, Any]) -> Step:
    """One line of a Workload's watch."""
    status = event["object"].get("status") or {}
    rows = (status.get("schedulingStats") or {}).get("evictions") or ()
    evictions = tuple((row["reason"], row["count"]) for row in rows)
    return event["object"]["spec"]["active"], frozenset(conditions(event["object"])), "admission" in status, evictions


def steps(events: Any, read: Callable[[dict[str, Any]], Step]) -> list[Step]:
    """The lines without those that say the same as the line before."""
    made: list[Step] = []
    for event in events:
        now = read(event)
        if not made or made[-1] != now:
            made.append(now)
    return made
