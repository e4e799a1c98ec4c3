"""What a cluster's configuration means for jobs: each setting in one line that says what it costs.

One rule: a setting is bad only where something will be missing that a person can do something about; what is merely so
is a note. Pure: it is fed with what `scontrol show config` printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dispatch_core.adapters.contract import Finding
from dispatch_core.adapters.slurm.cluster import SlurmCluster
from dispatch_core.adapters.slurm.reading import Configuration
from dispatch_core.evidence import Bounds

LISTINGS_BEFORE_PURGE = 5
"""An ended job should be shown by so many listings at least before Slurm purges it."""


def of_configuration(cluster: SlurmCluster, found: Configuration, bounds: Bounds) -> Iterator[Finding]:
    """The findings in how a cluster is set up."""
    yield Finding(name="version", ok=True, text=f"Slurm {found.release or '?'}, cluster {found.cluster or '?'}")
    yield _min_job_age(cluster, found)
    yield _calls(found, bounds)
    yield _requeue(found)
    yield _priority(found)
    yield _private(found)
    yield _plugins(found)


def _min_job_age(cluster: SlurmCluster, found: Configuration) -> Finding:
    age = seconds_of(found, "MinJobAge")
    if age is None or age == 0:
        return Finding(name="MinJobAge", ok=True, text="ended jobs stay in the queue")
    lost = "accounting tells it then" if found.accounting else "is lost then, and its job waits for a person"
    least = LISTINGS_BEFORE_PURGE * cluster.poll_seconds
    text = f"an ended job is shown for {age:g} s; an end that nobody has looked at {lost}"
    if age < least:
        advice = f"raise MinJobAge, or lower poll_seconds ({cluster.poll_seconds:g}): the queue is listed too seldom"
        return Finding(name="MinJobAge", ok=None if found.accounting else False, text=f"{text}; {advice}")
    return Finding(name="MinJobAge", ok=True, text=text)


def _calls(found: Configuration, bounds: Bounds) -> Finding:
    seconds = bounds.window_seconds + bounds.call_seconds + bounds.landing_seconds
    ttl = (
        f"{found.credential:g} s" if found.credential is not None else f"{bounds.landing_seconds:g} s, as it is unsaid"
    )
    text = (
        f"a call without an answer is settled after {seconds:g} s at most: MessageTimeout"
        f" {found.message_timeout or 0:g} s, munge's ttl {ttl}"
    )
    return Finding(name="calls", ok=None if seconds > LONG_SECONDS else True, text=text)


LONG_SECONDS = 600.0


def _requeue(found: Configuration) -> Finding:
    default = found.told.get("JobRequeue", "?")
    text = f"JobRequeue={default} is the default only; each job says itself whether it may be requeued"
    return Finding(name="JobRequeue", ok=True, text=text)


def _priority(found: Configuration) -> Finding:
    kind = found.told.get("PriorityType", "?")
    if kind == "priority/basic":
        return Finding(name="PriorityType", ok=None, text=f"{kind}: whoever changes a gated job's nice value opens it")
    return Finding(name="PriorityType", ok=True, text=kind)


def _private(found: Configuration) -> Finding:
    hidden = re.split(r"[,\s]+", found.told.get("PrivateData", "none").lower())
    if "jobs" in hidden or "all" in hidden:
        text = "jobs are shown to their owner only: nobody else's supervisor or janitor sees them"
        return Finding(name="PrivateData", ok=None, text=text)
    return Finding(name="PrivateData", ok=True, text="every user sees every job")


def _plugins(found: Configuration) -> Finding:
    plugins = found.told.get("JobSubmitPlugins", "(null)")
    if plugins in ("", "(null)", "none"):
        return Finding(name="job_submit", ok=True, text="no plugin changes what is submitted")
    text = (
        f"{plugins} may change or refuse what is submitted; the gate of one job is looked at below, of that job alone"
    )
    return Finding(name="job_submit", ok=None, text=text)


def seconds_of(found: Configuration, name: str) -> float | None:
    """A time of the configuration: `300 sec`."""
    number = re.match(r"\d+", found.told.get(name, ""))
    return float(number[0]) if number else None
