"""The newest revisions of many records, asked one by one and answered together.

One rule: an answer is from a query that began after the question. Thousands of supervisors that wait ask all the time
whether anybody has committed; a query of its own for each would cost more than all else that they do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from dispatch_core.errors import StoreUnavailable

GATHER_SECONDS = 0.25
"""How long the first question waits for others; who asks is in no hurry."""


class Revisions:
    """Gathers questions of one event loop."""

    def __init__(self, ask: Callable[[list[str]], Awaitable[Mapping[str, int]]]) -> None:
        self._ask = ask
        self._asked: dict[str, asyncio.Future[int | None]] = {}
        self._work: set[asyncio.Task[None]] = set()

    async def of(self, uid: str) -> int | None:
        """The newest revision of the record with this uid; None: there is none. Raises what asking raised."""
        if not self._asked:
            work = asyncio.create_task(self._answer())
            self._work.add(work)
            work.add_done_callback(self._work.discard)
        if uid not in self._asked:
            self._asked[uid] = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._asked[uid])

    async def _answer(self) -> None:
        asked: dict[str, asyncio.Future[int | None]] = {}
        try:
            try:
                await asyncio.sleep(GATHER_SECONDS)
            finally:
                asked, self._asked = self._asked, {}
            told = await self._ask(list(asked))
        except asyncio.CancelledError:
            _fail(asked, closed())
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, everyone who asked is told
            _fail(asked, error)
        else:
            for uid, one in asked.items():
                one.set_result(told.get(uid))

    async def close(self) -> None:
        """End what is under way, and tell those who asked."""
        for work in tuple(self._work):
            work.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        asked, self._asked = self._asked, {}
        _fail(asked, closed())


def closed() -> StoreUnavailable:
    return StoreUnavailable("the store is closed; open another one")


def _fail(asked: Mapping[str, asyncio.Future[int | None]], error: Exception) -> None:
    for one in asked.values():
        one.set_exception(error)
        one.exception()  # who asked may have left: then nobody is to be warned of it
