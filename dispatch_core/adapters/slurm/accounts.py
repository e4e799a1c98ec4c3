"""What accounting says of objects that the queue does not show, or shows in a later run: asked by id, many at a time.

One rule: accounting may be late, half filled or silent, so what it does not say proves nothing; but where it cannot be
asked at all, nothing that is missing may be called gone. A final end is asked for once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from dispatch_core.adapters.shared import Snapshots
from dispatch_core.adapters.slurm.guard import ENDED, Object
from dispatch_core.adapters.slurm.reading import GAP, end_of, nodes_of, states_of, time_of
from dispatch_core.evidence import Sighting
from dispatch_core.plan import End
from dispatch_core.record import State

ACCOUNTS_FIELDS = ("JobIDRaw", "State", "ExitCode", "ElapsedRaw", "End", "NodeList", "Reason", "JobName")

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

    def listed(self, object: Object) -> None:
        """It is in the queue: what was final may have gone on."""
        self._final.pop(object, None)

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


# --- reading what sacct printed


class Account(NamedTuple):
    """What accounting has of one job number and name: one entry for each run, in their order."""

    ends: tuple[End | None, ...]
    """None: a run that has not ended, or of which only that it was requeued is known."""
    nodes: tuple[tuple[str, ...], ...]
    """Of each run."""
    alive: bool
    """The latest run has not ended."""

    def sighting(self, object: Object, silent: frozenset[str]) -> Sighting | None:
        """An object that the queue does not show any more; None where accounting knows of no end."""
        run = len(self.ends)
        ends = dict(self.earlier(run + 1, silent))
        if self.alive or run not in ends:
            return None
        return Sighting(
            id=object.id,
            name=object.name,
            key="",
            state=State.ENDED,
            run=run,
            nodes=self.nodes[-1],
            end=ends.pop(run),
            earlier_ends=tuple(ends.items()),
        )

    def earlier(self, run: int, silent: frozenset[str]) -> tuple[tuple[int, End], ...]:
        """The ends of the runs before this one, lost where a node of theirs does not answer."""
        return tuple(
            (number, end if not silent.isdisjoint(nodes) else msgspec.structs.replace(end, lost_since=None))
            for number, (end, nodes) in enumerate(zip(self.ends, self.nodes, strict=True), start=1)
            if end is not None and number < run
        )


def accounts(text: str) -> dict[Object, Account]:
    """What `sacct -D -X -P` printed. Its first seconds show half a row; such a name is nobody's."""
    rows: dict[Object, list[tuple[str, End | None, tuple[str, ...]]]] = {}
    for line in text.split("\n"):
        parts = line.split(GAP, len(ACCOUNTS_FIELDS) - 1)
        if len(parts) != len(ACCOUNTS_FIELDS):
            continue
        number, state, code, ran, ended, nodes, reason, name = parts
        word = states_of(state)[0] if states_of(state) else ""
        rows.setdefault(Object(number, name), []).append(
            (word, _account_end(word, code, reason, ran, ended), nodes_of(nodes))
        )
    return {object: _account(told) for object, told in rows.items()}


def _account(told: list[tuple[str, End | None, tuple[str, ...]]]) -> Account:
    return Account(
        ends=tuple(end for _, end, _ in told),
        nodes=tuple(nodes for _, _, nodes in told),
        alive=told[-1][0] not in ENDED,
    )


def _account_end(word: str, code: str, reason: str, ran: str, ended: str) -> End | None:
    exit_code, _, signal = code.partition(":")
    raw = int(exit_code) * 256 + int(signal) if exit_code.isdecimal() and signal.isdecimal() else 0
    seconds = float(ran) if ran.isdecimal() else None
    if word in ENDED:
        return end_of(word, raw, reason, seconds, time_of(ended))
    if word == "REQUEUED" and raw:
        # Its reason is the one that it waits for now, and its end is when it was requeued.
        return end_of("FAILED", raw, "None", None)
    return None
