"""What an engine adds to `supervise`: its own store, its secrets, and a watch on what its runs are asked.

One rule: the command knows an engine by the name of an entry point and nothing else; what it adds is loaded when it is
asked for, and supervising stays the janitor's.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Protocol

from dispatch_core.errors import BadInput
from dispatch_core.record import Record
from dispatch_core.stores.contract import Store
from dispatch_core.supervisor import Secrets

GROUP = "dispatch.services"


class Beside(Protocol):
    """What runs beside the janitor, in the same event loop."""

    secrets: Secrets
    period_seconds: float
    """How often the janitor looks."""

    async def open_store(self) -> Store:
        """The engine's own store; who opened it closes it. Raises StoreUnavailable."""

    def heard(self, record: Record) -> None:
        """Called after each commit that was met, with the newest record."""

    async def look(self, store: Store) -> None:
        """Carry out, once, what the engine's runs were asked; raises nothing for an engine that does not answer."""

    async def run(self, store: Store) -> None:
        """The same for good, until it is cancelled."""


def load(engine: str) -> Beside:
    """What this engine adds, made in the running loop. Raises BadInput where it is not installed."""
    found = [point for point in entry_points(group=GROUP) if point.name == engine]
    try:
        made: Beside = found[0].load()()
    except (IndexError, ModuleNotFoundError) as error:
        raise BadInput(
            f"--{engine} needs {engine} beside dispatch: pip install 'dispatch-supervisor[{engine}]'"
        ) from error
    return made
