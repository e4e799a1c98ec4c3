"""The janitor's supervisor in a simulated world: what it sweeps is told apart from what it supervises.

One rule: it does what any other does; but who looks and sweeps has another voice than who supervises, for both may be
about one job at once.
"""

from __future__ import annotations

from typing import Any

from dispatch_core.record import Record
from dispatch_core.simulator.database import Database
from dispatch_core.simulator.host import Connection
from dispatch_core.simulator.trace import SWEEPER, Hindered
from dispatch_core.simulator.world import Being, Voice, World
from dispatch_core.supervisor import Supervisor


class SweepingSupervisor(Supervisor):
    """As Supervisor; `how` is what both voices are made of."""

    def __init__(self, world: World, being: Being, sweeper: Voice, **how: Any) -> None:
        super().__init__(Database(world, being), Connection(world, being), **how)
        self._world = world
        self._sweeper = Supervisor(Database(world, being, sweeper), Connection(world, being, sweeper), **how)

    async def sweep(self, record: Record) -> None:
        try:
            await self._sweeper.sweep(record)
        finally:
            self._world.tell(Hindered(self._world.now, SWEEPER, "it has swept"))
