"""The targeted mode: one supervisor ends, or stands still, at every single point of an otherwise undisturbed history.

One rule: the points are counted, not chosen: every exchange of the supervisor with the store and the scheduler, on each
of its sides. What the swarm finds by chance this mode finds by going through all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dispatch_core.simulator.campaign import Counted
from dispatch_core.simulator.faults import STEPS, Fault
from dispatch_core.simulator.history import Asked, History
from dispatch_core.simulator.world import Point


def every_point(
    seeds: range, asked: Asked, progress: Callable[[Counted, int], None] = lambda counted, points: None
) -> tuple[Counted, int]:
    """For the plan of each seed: a crash and a stall on each side of each exchange of supervisor `a`.

    Returns what was counted, and how many points there were.
    """
    counted, points = Counted(), 0
    for seed in seeds:
        undisturbed = replace(asked, faults=())
        for number in range(1, History(seed, undisturbed).run().exchanges + 1):
            points += 1
            for what in (Fault.CRASH, Fault.STALL):
                for side in STEPS[what]:
                    told = History(seed, replace(undisturbed, target=Point(number, what, side))).run()
                    counted.add(told)
        progress(counted, points)
    return counted, points
