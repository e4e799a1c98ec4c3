"""Nothing is forgotten: takes on the jobs that nobody supervises, and sweeps what landed after its job was settled.

One rule: it is a supervisor like any other, safe to run anywhere, any number of times, beside any number of others. It
lists a cluster's objects by our tag, not by live record, so that a late one is found whatever the records say (S2). A
cluster that cannot be opened or does not answer is told of, and tried again; the others go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

from dispatch_core.adapters.contract import Adapter
from dispatch_core.errors import DispatchError, Displaced, Owned, StoreUnavailable
from dispatch_core.names import read_name
from dispatch_core.reasons import FOR_A_PERSON
from dispatch_core.record import Record, State
from dispatch_core.stores.contract import Listed, Store
from dispatch_core.supervisor import Secrets, Supervisor, no_secrets
from dispatch_core.surroundings import FreshId, Now, fresh_id, utc_now

log = logging.getLogger(__name__)

NAMED = 10
"""Objects named in one warning; a cluster that several stores share may show thousands."""


class Janitor:
    """Adopts every unattended record of a store whose cluster is among `adapters`, until it is cancelled.

    `opens` makes a connection to a cluster that a record names and `adapters` has not, and to those of `names`, which
    are swept whatever the records say; it raises DispatchError, and who gave it closes what it opened.
    `period_seconds`: how often it looks. `once` ends it when every record that it found is settled, attended to by
    another, or waits for what only a person can say.
    """

    def __init__(
        self,
        store: Store,
        adapters: Mapping[str, Adapter],
        *,
        opens: Callable[[str], Adapter] | None = None,
        names: tuple[str, ...] = (),
        secrets: Secrets = no_secrets,
        period_seconds: float = 30.0,
        lease_seconds: float | None = 30.0,
        now: Now = utc_now,
        fresh_id: FreshId = fresh_id,
    ) -> None:
        self.store = store
        self.adapters: dict[str, Adapter] = {}
        self.supervisors: dict[str, Supervisor] = {}
        self.period_seconds = period_seconds
        self._opens = opens
        self._names = names
        self._supervisor = partial(
            Supervisor, store, secrets=secrets, lease_seconds=lease_seconds, now=now, fresh_id=fresh_id
        )
        self._hindrances: dict[str, str] = {}
        for name, adapter in adapters.items():
            self._add(name, adapter)
        self._unsettled: set[str] = set()
        self._unreadable: set[tuple[str, int]] = set()
        self._without_record: set[tuple[str, str]] = set()

    async def run(self, *, once: bool = False) -> None:
        """Look, adopt and sweep, again and again; `once`: until nothing is left that it could do. An outage of the
        store is waited out, once it has answered."""
        adopted: dict[str, asyncio.Task[None]] = {}
        answered = False
        try:
            while True:
                adopted = {uid: work for uid, work in adopted.items() if not work.done()}
                try:
                    for record in await self.unattended():
                        if record.uid not in adopted:
                            adopted[record.uid] = asyncio.ensure_future(self._adopt(record))
                    answered = True
                    await self.sweep()
                except StoreUnavailable as outage:
                    if once or not answered:
                        raise
                    log.warning("%s; looking again in %g s", outage, self.period_seconds)
                if once and not adopted:
                    return
                if once:
                    await asyncio.wait(adopted.values(), timeout=self.period_seconds)
                    if await self._left_to_persons(frozenset(adopted)):
                        return
                else:
                    await asyncio.sleep(self.period_seconds)
        finally:
            for work in adopted.values():
                work.cancel()
            await asyncio.gather(*adopted.values(), return_exceptions=True)

    async def unattended(self) -> list[Record]:
        """Records that are not settled, on clusters that it knows, that nobody holds."""
        jobs = await self.store.jobs(settled=False)
        self._unsettled = {job.uid for job in jobs}
        self._tell_unreadable(jobs)
        free = [job.record for job in jobs if job.owner is None and job.record is not None]
        self._open({*self._names, *(record.scheduler for record in free)})
        return [record for record in free if record.scheduler in self.adapters]

    def _open(self, names: set[str]) -> None:
        """Connect to the clusters that are new here, as far as they can be opened."""
        if self._opens is None:
            return
        for name in sorted(names - self.adapters.keys()):
            try:
                self._add(name, self._opens(name))
            except DispatchError as error:
                self._hindered(name, f"cluster {name} cannot be opened, and its jobs are left alone: {error}")

    def _add(self, name: str, adapter: Adapter) -> None:
        self.adapters[name] = adapter
        self.supervisors[name] = self._supervisor(adapter)
        self._hindrances.pop(name, None)

    def _hindered(self, name: str, text: str) -> None:
        """Say what is wrong with a cluster, once for as long as it stays the same."""
        if self._hindrances.get(name) != text:
            log.warning("%s", text)
        self._hindrances[name] = text

    async def _left_to_persons(self, uids: frozenset[str]) -> bool:
        """Whether each of these jobs waits for what only a person can say."""
        waits = [job.record.wait for job in await self.store.jobs(settled=False, uids=uids) if job.record is not None]
        return bool(waits) and all(wait is not None and wait.reason in FOR_A_PERSON for wait in waits)

    async def sweep(self) -> None:
        """Retire and stop what is alive of settled records."""
        for name, adapter in self.adapters.items():
            try:
                listing, kept = await adapter.everything(), await adapter.kept()
            except DispatchError as error:
                self._hindered(name, f"cluster {name} is not swept: {error}")
                continue
            self._hindrances.pop(name, None)
            alive = [sighting.name for sighting in listing.objects if sighting.state is not State.ENDED]
            tags = {object: tag.uid for object in alive if (tag := read_name(object)) is not None}
            late = await self.store.jobs(settled=True, uids=frozenset(tags.values())) if tags else []
            self._tell_unreadable(late)
            rest = frozenset(tags.values()) - self._unsettled - {job.uid for job in late}
            strange = rest - {job.uid for job in (await self.store.jobs(uids=rest) if rest else [])}
            self._tell_without_record(name, {object for object, uid in tags.items() if uid in strange})
            for job in late:
                if job.record is not None and job.record.scheduler == name:
                    await self.supervisors[name].sweep(job.record)
            await self._tell_settled(name, kept)

    async def _tell_settled(self, name: str, kept: frozenset[str]) -> None:
        """Have a cluster give up what it keeps for records that are settled: nobody has told it, or not all of it."""
        for job in await self.store.jobs(settled=True, uids=kept) if kept else []:
            if job.record is not None and job.record.scheduler == name:
                await self.supervisors[name].tell_settled(job.record)

    def _tell_unreadable(self, jobs: list[Listed]) -> None:
        """Say once of each revision that cannot be read that it is left alone: its job needs a newer supervisor."""
        for job in jobs:
            if job.record is None and (job.uid, job.revision) not in self._unreadable:
                self._unreadable.add((job.uid, job.revision))
                log.warning("%s; nobody here supervises it, and every other job goes on", job.problem)

    def _tell_without_record(self, cluster: str, names: set[str]) -> None:
        """Say once of each object that no record of this store is its own. It is not stopped: a cluster may serve two
        stores, and its gate is opened by nobody but a supervisor that reads its record."""
        new = sorted(name for name in names if (cluster, name) not in self._without_record)
        self._without_record.update((cluster, name) for name in new)
        if new:
            more = f" and {len(new) - NAMED} more" if len(new) > NAMED else ""
            log.warning(
                "cluster %s has objects whose record is not in this store: %s%s; they were left as they are, and no"
                " supervisor of this store opens them; if no other store is theirs, their records were pruned: remove"
                " them on the cluster",
                cluster,
                ", ".join(new[:NAMED]),
                more,
            )

    async def _adopt(self, record: Record) -> None:
        try:
            await self.supervisors[record.scheduler].run(record.key, record.uid)
        except (Owned, Displaced):
            return
        except DispatchError as error:
            log.warning("job %s is left for the next round: %s", record.key, error)
