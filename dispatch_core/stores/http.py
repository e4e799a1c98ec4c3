"""Records kept behind another program's HTTP server: `dispatch serve`, or the plugin in Airflow's API server.

One rule: a request whose reply is lost is sent again, and that is how it is read back: each commit is known by its own
id and each record by its uid, so that whatever landed is found and nothing lands twice. It decides nothing.

A store belongs to the event loop that first used it; open one for each loop, and close it in that loop.
"""

from __future__ import annotations

import asyncio
from datetime import datetime

from dispatch_core.record import Record
from dispatch_core.stores import messages, rules
from dispatch_core.stores.contract import Change, Lease, Listed, Pruned
from dispatch_core.stores.gathering import Gathered
from dispatch_core.stores.line import Credential, Line, Question, Token

PRUNE_SECONDS = 600.0
"""The longest for one try of a prune, which deletes batch after batch."""

DECODED_AT_ONCE = 200
"""Records read between two looks at the event loop: a long list must not keep every other job waiting."""


class HttpStore:
    """The contract over HTTP, in one event loop. Any method may raise StoreUnavailable where its server does not know
    who asks, or does not let them."""

    def __init__(self, url: str, credential: Credential | None = None) -> None:
        """`url` is where dispatch is served, like https://host/dispatch; nothing is connected yet. Raises BadInput."""
        self._line = Line(url, credential or Token(None))
        self._revisions = Gathered(self._revisions_of)

    def __repr__(self) -> str:
        return f"HttpStore({self._line.url!r})"

    async def create(self, record: Record, *, commit: str, actor: str, new: bool = False) -> Record:
        written, _ = rules.prepare(record, 1, commit)
        asked = messages.Creating(record=written, commit=commit, actor=actor, new=new)
        answer = await self._line.ask(Question("POST", "/record", asked), rules.unknown(record.key, commit))
        return messages.read(answer.content, record.key)

    async def read(self, key: str, uid: str | None = None) -> Record:
        answer = await self._line.ask(Question("GET", "/record", named=_named(key, uid)))
        return messages.read(answer.content, key)

    async def revision(self, key: str, uid: str) -> int:
        revision = await self._revisions.of((key, uid))
        if revision is None:
            raise rules.not_found(key, uid)
        return revision

    async def _revisions_of(self, records: list[tuple[str, str]]) -> dict[tuple[str, str], int]:
        asked = messages.Asking(records=tuple(records))
        told = await self._line.decoded(Question("POST", "/revisions", asked), dict[str, int])
        return {(key, uid): told[uid] for key, uid in records if uid in told}

    async def commit(
        self,
        record: Record,
        *,
        against: int,
        commit: str,
        actor: str,
        lines: tuple[str, ...],
        lease: Lease | None = None,
    ) -> Record:
        written, _ = rules.prepare(record, against + 1, commit)
        asked = messages.Committing(record=written, commit=commit, actor=actor, lines=lines, lease=lease)
        question = Question("PUT", "/record", asked, headers={"if-match": f'"{against}"'})
        await self._line.ask(question, rules.unknown(record.key, commit))
        return written

    async def jobs(
        self, *, settled: bool | None = None, key_prefix: str = "", uids: frozenset[str] | None = None
    ) -> list[Listed]:
        asked = messages.Finding(settled=settled, key_prefix=key_prefix, uids=uids)
        rows = await self._line.decoded(Question("POST", "/jobs", asked), list[messages.Found])
        listed: list[Listed] = []
        for start in range(0, len(rows), DECODED_AT_ONCE):
            listed += [row.listed() for row in rows[start : start + DECODED_AT_ONCE]]
            await asyncio.sleep(0)
        return listed

    async def history(self, key: str, uid: str | None = None) -> list[Change]:
        return await self._line.decoded(Question("GET", "/history", named=_named(key, uid)), list[Change])

    async def acquire(self, record: Record, owner: str, seconds: float) -> Lease:
        asked = messages.Claiming(key=record.key, uid=record.uid, owner=owner, seconds=seconds)
        return await self._line.decoded(Question("POST", "/lease", asked), Lease)

    async def renew(self, lease: Lease, seconds: float) -> None:
        await self._line.ask(Question("PUT", "/lease", messages.Renewing(lease=lease, seconds=seconds)))

    async def release(self, lease: Lease) -> None:
        await self._line.ask(Question("DELETE", "/lease", messages.Releasing(lease=lease)))

    async def prune(self, before: datetime, *, trial: bool = False) -> Pruned:
        asked = messages.Pruning(before=before, trial=trial)
        return await self._line.decoded(Question("POST", "/prune", asked, seconds=PRUNE_SECONDS), Pruned)

    async def close(self) -> None:
        await self._revisions.close()
        await self._line.close()


def _named(key: str, uid: str | None) -> dict[str, str]:
    return {"key": key} if uid is None else {"key": key, "uid": uid}
