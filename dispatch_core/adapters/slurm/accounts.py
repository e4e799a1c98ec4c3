"""What accounting says of objects that the queue does not show, or shows in a later run: asked by id, many at a time.

One rule: accounting may be late, half filled or silent, so what it does not say proves nothing; but where it cannot be
asked at all, nothing that is missing may be called gone. A final end is asked for once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from dispatch_core.adapters.shared import Snapshots
from dispatch_core.adapters.slurm.guard import Object
from dispatch_core.adapters.slurm.reading import Account

KEPT = 20_000
AT_ONCE = 500
"""Job numbers in one question: a command line has its limits."""


class Accounts:
    """The accounts of objects, for any number of askers."""

    def __init__(self, ask: Callable[[list[str]], Awaitable[Mapping[Object, Account]]], seconds: float) -> None:
        self._ask = ask
        self._wanted: dict[Object, None] = {}
        self._final: dict[Object, Account] = {}
        self._answers: Snapshots[Mapping[Object, Account]] = Snapshots(self._take, seconds)

    async def of(self, objects: Iterable[Object]) -> Mapping[Object, Account]:
        """What accounting has of these; nothing for those that it does not know. Raises SchedulerUnavailable."""
        asked = list(objects)
        known = {object: self._final[object] for object in asked if object in self._final}
        open_questions = [object for object in asked if object not in known]
        if open_questions:
            self._wanted.update(dict.fromkeys(open_questions))
            told = await self._answers.next()
            known |= {object: told[object] for object in open_questions if object in told}
        return known

    async def _take(self) -> Mapping[Object, Account]:
        wanted, self._wanted = list(self._wanted), {}
        told: dict[Object, Account] = {}
        for begin in range(0, len(wanted), AT_ONCE):
            told.update(await self._ask(sorted({object.number for object in wanted[begin : begin + AT_ONCE]})))
        for object in wanted:  # an account that may still change is asked for again
            account = told.get(object)
            if account is not None and not account.alive and all(account.ends):
                self._final[object] = account
        while len(self._final) > KEPT:
            del self._final[next(iter(self._final))]
        return told

    async def close(self) -> None:
        await self._answers.close()
