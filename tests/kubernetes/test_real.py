"""The adapter suite on a real cluster, `DISPATCH_TEST_KUBECONFIG`; without one, whether it would run.

It makes a namespace of its own and removes it. `DISPATCH_TEST_IMAGE` has Python (python:3.12-slim); with
`DISPATCH_TEST_KIND` payloads run in another kind than Job, and with `DISPATCH_TEST_CLUSTER_QUEUE` through that
ClusterQueue of Kueue.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatch_core.adapters.conformance import CHECKS, CLOSING, Check
from tests.kubernetes.board import BoardRig, Place
from tests.kubernetes.rig import kubeconfig
from tests.kubernetes.server import ApiServer
from tests.kubernetes.test_conformance import EVERY_CHECK

TRIED = ("an_opened_object_runs_once", "ends_are_told_with_their_cause", "values_arrive_whole")


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.mark.long
async def test_the_suite_for_a_real_cluster_runs(tmp_path: Path) -> None:
    async with ApiServer() as server:
        place = Place(str(kubeconfig(server.url, tmp_path)), "any:1", port=free_port())
        await place.make()
        for check in (*CHECKS, *CLOSING):
            if check.__name__ in TRIED:
                rig = BoardRig(place)
                rig.quiet_seconds = 0.5
                try:
                    await check(rig)
                finally:
                    await rig.close()
        await place.remove()


if "DISPATCH_TEST_KUBECONFIG" in os.environ:  # else there is nothing to collect, and nothing that is skipped

    @pytest.fixture(scope="module")
    def place() -> Iterator[Place]:
        told = os.environ
        found = Place(
            told["DISPATCH_TEST_KUBECONFIG"],
            told.get("DISPATCH_TEST_IMAGE", "python:3.12-slim"),
            kind=told.get("DISPATCH_TEST_KIND", "Job"),
            queue=told.get("DISPATCH_TEST_CLUSTER_QUEUE", ""),
            port=int(told.get("DISPATCH_TEST_PORT", "8000")),
        )
        asyncio.run(found.make())
        yield found
        asyncio.run(found.remove())

    @pytest.mark.parametrize("check", EVERY_CHECK)
    async def test_a_real_cluster_conforms(check: Check, place: Place) -> None:
        rig = BoardRig(place)
        try:
            await check(rig)
        finally:
            await rig.close()
