"""The adapter suite over real HTTP, on the API server of the tests: in every kind, with and without Kueue.

One rule: each check is made of every cluster by itself, all at the same time, as they mostly wait; what fails says
which cluster it was.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dispatch_core.adapters.conformance import CHECKS, CLOSING, SHOWS, Check, listings
from tests.kubernetes.rig import MORE_WORLDS, PLAIN, WORLDS, World, kubernetes_rig


async def conforms(check: Check, folder: Path, world: World) -> None:
    try:
        async with kubernetes_rig(folder, world) as rig:
            await check(rig)
    except Exception as error:
        error.add_note(f"on the cluster {world.name!r}")
        raise


async def all_conform(check: Check, folder: Path, worlds: tuple[World, ...]) -> None:
    folders = [folder / str(number) for number, _ in enumerate(worlds)]
    for each in folders:
        each.mkdir()
    work = (conforms(check, folder, world) for folder, world in zip(folders, worlds, strict=True))
    found = await asyncio.gather(*work, return_exceptions=True)
    failures = [error for error in found if isinstance(error, Exception)]
    if failures:
        raise ExceptionGroup(f"{len(failures)} of {len(worlds)} clusters do not conform", failures)


EVERY_CHECK = [
    pytest.param(check, id=check.__name__, marks=[pytest.mark.promise(number) for number in SHOWS[check.__name__]])
    for check in [*CHECKS, *CLOSING]
]


def is_of_listings(check: Check) -> bool:
    return check.__module__ == listings.__name__


@pytest.mark.parametrize("check", EVERY_CHECK)
async def test_conforms(check: Check, tmp_path: Path) -> None:
    """Where only listings are looked at, one kind does for all."""
    await all_conform(check, tmp_path, (PLAIN,) if is_of_listings(check) else WORLDS)


@pytest.mark.long
@pytest.mark.parametrize("check", EVERY_CHECK)
async def test_conforms_in_more_worlds(check: Check, tmp_path: Path) -> None:
    await all_conform(check, tmp_path, (*WORLDS, *MORE_WORLDS) if is_of_listings(check) else MORE_WORLDS)
