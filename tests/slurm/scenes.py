"""Scenes side by side: each is a coroutine, and a test of its own that tells how it came out."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

import pytest
from _pytest.mark import ParameterSet

from tests.slurm.cluster import Cluster, Options, running
from tests.slurm.stage import Stage, stage_on

Scene = Callable[[Stage], Awaitable[None]]
SHOWS: dict[str, list[pytest.MarkDecorator]] = {}
TABLE: list[str] = []
"""One row for each job that was in a scene of this program."""


def scene(*numbers: str) -> Callable[[Scene], Scene]:
    """A scene, with the cases and promises that it shows."""

    def noted(play: Scene) -> Scene:
        marks = [pytest.mark.case(n) if n.startswith("T") else pytest.mark.promise(n) for n in numbers]
        SHOWS[play.__name__] = marks
        return play

    return noted


def marked(play: Scene) -> ParameterSet:
    return pytest.param(play, id=play.__name__, marks=SHOWS[play.__name__])


class Outcomes:
    """How the scenes came out."""

    def __init__(self) -> None:
        self.told: dict[str, BaseException | None] = {}

    def tell(self, play: Scene) -> None:
        """Raise what the scene raised."""
        error = self.told[play.__name__]
        if error is not None:
            raise error


async def played(stage: Stage, plays: Iterable[Scene], outcomes: Outcomes) -> None:
    """These scenes, side by side, on one stage."""
    scenes = list(plays)
    told = await asyncio.gather(*(play(stage) for play in scenes), return_exceptions=True)
    outcomes.told |= {play.__name__: error for play, error in zip(scenes, told, strict=True)}
    TABLE.extend([await stage.report(actor) for actor in stage.actors.values()])


@contextlib.asynccontextmanager
async def own_cluster(options: Options) -> AsyncIterator[Cluster]:
    """A cluster for scenes that break its controller, so that they need not wait for each other."""
    held = contextlib.ExitStack()
    try:
        yield await asyncio.to_thread(held.enter_context, running(options))
    finally:
        await asyncio.to_thread(held.close)


async def alone(options: Options, play: Scene, outcomes: Outcomes) -> None:
    """One scene on a cluster of its own."""
    async with own_cluster(options) as cluster:
        try:
            async with stage_on(cluster) as stage:
                await played(stage, [play], outcomes)
        finally:
            if outcomes.told.get(play.__name__) is not None:
                outcomes.told[play.__name__] = AssertionError(f"{outcomes.told[play.__name__]}\n{cluster.tails(60)}")


async def quiet_for(seconds: float, holds: Callable[[], Awaitable[object]]) -> None:
    """Something is so, and stays so."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert await holds()
        await asyncio.sleep(0.3)
