"""What many supervisors of one process ask a store, asked one by one and answered together.

One rule: an answer is from a statement that began after the question. Thousands of supervisors that wait ask all the
time whether anybody has committed, and hold their leases; a statement of its own for each would cost more than all else
that they do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Generic, TypeVar

from dispatch_core.errors import StoreUnavailable

GATHER_SECONDS = 0.25
"""How long the first question waits for others; who asks is in no hurry."""


Asked = TypeVar("Asked", bound=Hashable)
Told = TypeVar("Told")


class Gathered(Generic[Asked, Told]):
    """Gathers questions of one event loop, for `ask` to answer."""

    def __init__(self, ask: Callable[[list[Asked]], Awaitable[Mapping[Asked, Told]]]) -> None:
        self._ask = ask
        self._asked: dict[Asked, asyncio.Future[Told | None]] = {}
        self._work: set[asyncio.Task[None]] = set()

    async def of(self, one: Asked) -> Told | None:
        """The answer; None: there is none. Raises what asking raised."""
        if not self._asked:
            work = asyncio.create_task(self._answer())
            self._work.add(work)
            work.add_done_callback(self._work.discard)
        if one not in self._asked:
            self._asked[one] = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._asked[one])

    async def _answer(self) -> None:
        asked: dict[Asked, asyncio.Future[Told | None]] = {}
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
            for one, answer in asked.items():
                answer.set_result(told.get(one))

    async def close(self) -> None:
        """End what is under way, and tell those who asked."""
        for work in tuple(self._work):
            work.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        asked, self._asked = self._asked, {}
        _fail(asked, closed())


def closed() -> StoreUnavailable:
    return StoreUnavailable("the store is closed; open another one")


def _fail(asked: Mapping[Asked, asyncio.Future[Told | None]], error: Exception) -> None:
    for answer in asked.values():
        answer.set_exception(error)
        answer.exception()  # who asked may have left: then nobody is to be warned of it
