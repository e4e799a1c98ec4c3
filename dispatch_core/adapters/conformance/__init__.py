"""The suite that any adapter is run against: asynchronous checks of what `contract` asks for, for any test runner.

One rule: a check judges by what the payloads wrote and by what listings show, never by a reply alone. An adapter's
author writes a `Rig` once and runs every check of `CHECKS` with one, in any order, and then each of `CLOSING` with one
of its own, since those close the connection. A check that fails raises `NotConforming` with one sentence; `SHOWS` has
the promises that it stands for. Nothing here knows any scheduler.
"""

from dispatch_core.adapters.conformance import gates, listings, payloads, runs
from dispatch_core.adapters.conformance.rig import CHECKS, CLOSING, SHOWS, Check, NotConforming, Rig

__all__ = ["CHECKS", "CLOSING", "SHOWS", "Check", "NotConforming", "Rig", "gates", "listings", "payloads", "runs"]
