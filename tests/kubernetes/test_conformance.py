"""The adapter suite over real HTTP, on the API server of the tests: in every kind, with and without Kueue.

One rule: each check has clusters of its own, and what fails says which one it was. They mostly wait, so they run side
by side in a loop of their own, and each test waits for its part.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from dispatch_core.adapters.conformance import CHECKS, CLOSING, SHOWS, Check, listings
from tests.kubernetes.rig import MORE_WORLDS, PLAIN, WORLDS, World, kubernetes_rig

AT_ONCE = 12


async def conforms(check: Check, folder: Path, world: World) -> None:
    try:
        async with kubernetes_rig(folder, world) as rig:
            await check(rig)
    except Exception as error:
        error.add_note(f"on the cluster {world.name!r}")
        raise


class Runs:
    """Checks that run side by side."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._room = asyncio.Semaphore(AT_ONCE)
        self._begun: dict[tuple[str, str], Future[None]] = {}
        self._thread.start()

    def begin(self, check: Check, world: World) -> None:
        folder = self._folder / str(len(self._begun))
        folder.mkdir()
        work = self._in_turn(check, folder, world)
        self._begun[check.__name__, world.name] = asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _in_turn(self, check: Check, folder: Path, world: World) -> None:
        async with self._room:
            await conforms(check, folder, world)

    def expect(self, check: Check, worlds: tuple[World, ...]) -> None:
        found = [self._begun[check.__name__, world.name] for world in worlds]
        failures = [error for one in found if isinstance(error := one.exception(), Exception)]
        if failures:
            raise ExceptionGroup(f"{len(failures)} of {len(worlds)} clusters do not conform", failures)

    def close(self) -> None:
        async def end() -> None:
            rest = [one for one in asyncio.all_tasks() if one is not asyncio.current_task()]
            for one in rest:
                one.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def worlds_for(check: Check, *, more: bool) -> tuple[World, ...]:
    """Where only listings are looked at, one kind does for all."""
    if check.__module__ == listings.__name__:
        return (*WORLDS[1:], *MORE_WORLDS) if more else (PLAIN,)
    return MORE_WORLDS if more else WORLDS


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    found = Runs(tmp_path_factory.mktemp("conformance"))
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.path == request.path:
            more = item.get_closest_marker("long") is not None
            for world in worlds_for(item.callspec.params["check"], more=more):
                found.begin(item.callspec.params["check"], world)
    yield found
    found.close()


EVERY_CHECK = [
    pytest.param(check, id=check.__name__, marks=[pytest.mark.promise(number) for number in SHOWS[check.__name__]])
    for check in [*CHECKS, *CLOSING]
]


@pytest.mark.parametrize("check", EVERY_CHECK)
def test_conforms(check: Check, runs: Runs) -> None:
    runs.expect(check, worlds_for(check, more=False))


@pytest.mark.long
@pytest.mark.parametrize("check", EVERY_CHECK)
def test_conforms_in_more_worlds(check: Check, runs: Runs) -> None:
    runs.expect(check, worlds_for(check, more=True))
