"""Databases that break off in mid-commit, refuse, and come back: nothing is doubled, nothing lost, nothing assumed."""

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiosqlite
import pytest

from dispatch_core.errors import CommitUnknown, Conflict, StoreUnavailable
from dispatch_core.record import Record, encode
from dispatch_core.stores.contract import Lease
from dispatch_core.stores.sql import SqlStore
from tests.stores.databases import OnServer, OnSqlite, Refusal
from tests.stores.proxy import Moment
from tests.stores.records import commit_id, committed, created, fresh, held, keep_trying
from tests.stores.served import OnHttp

Breakable = OnSqlite | OnServer | OnHttp
MOMENTS = [Moment.BEFORE, Moment.AFTER]
REFUSALS = [Refusal("40001", 1213), Refusal("40P01", 1213), Refusal("55P03", 1205)]


async def commits(store: SqlStore, record: Record) -> list[str]:
    """The ids of all commits of a job, with the revisions they made checked."""
    changes = await store.history(record.key)
    assert [change.revision for change in changes] == list(range(1, len(changes) + 1))
    return [change.commit for change in changes]


@pytest.mark.promise("C5")
@pytest.mark.case("T50")
class TestUnknownCommit:
    """The line breaks on COMMIT, so that its result is unknown: it is read back."""

    @pytest.mark.parametrize("moment", MOMENTS)
    async def test_is_settled(self, breakable: Breakable, moment: Moment) -> None:
        store, other = await breakable.open_breakable(), await breakable.open()
        record = await created(store)
        breakable.break_commit(moment)
        written = await committed(store, held(record, "ada"), commit="once")
        assert breakable.broken == 1
        assert await other.read(record.key) == written
        assert await breakable.document(record.uid) == encode(written)
        assert await commits(other, record) == [record.commit, "once"]

    async def test_that_landed_is_known_though_others_committed_since(self, breakable: Breakable) -> None:
        store, other = await breakable.open_breakable(), await breakable.open()
        record = await created(store)

        async def another() -> None:
            for _ in range(2):
                await keep_trying(other, record.key, lambda read: held(read, "bob"))

        breakable.break_commit(Moment.AFTER, another)
        written = await committed(store, held(record, "ada"), commit="once")
        assert written.revision == 2
        last = await other.read(record.key)
        assert [hold.asked_by for hold in last.holds] == ["ada", "bob", "bob"]
        assert (await commits(other, record))[:2] == [record.commit, "once"]

    async def test_that_did_not_land_is_a_conflict_if_another_did(self, breakable: Breakable) -> None:
        store, other = await breakable.open_breakable(), await breakable.open()
        record = await created(store)

        async def another() -> None:
            await committed(other, held(record, "bob"), commit="bob's")

        breakable.break_commit(Moment.BEFORE, another)
        with pytest.raises(Conflict):
            await committed(store, held(record, "ada"), commit="once")
        assert await commits(other, record) == [record.commit, "bob's"]
        assert [hold.asked_by for hold in (await other.read(record.key)).holds] == ["bob"]

    async def test_that_landed_is_known_though_the_lease_is_another_s(self, breakable: Breakable) -> None:
        store, other = await breakable.open_breakable(), await breakable.open()
        record = await created(store)
        lease = await store.acquire(record, "one", 60)

        async def displace() -> None:
            await other.release(lease)
            await other.acquire(record, "two", 60)

        breakable.break_commit(Moment.AFTER, displace)
        written = await committed(store, held(record, "ada"), lease=lease)
        assert await other.read(record.key) == written

    async def test_that_lands_after_the_line_broke_is_waited_for(self, server: OnServer) -> None:
        """The old connection's transaction still holds the row: who looked past it would judge too early."""
        store, other = await server.open_breakable(), await server.open()
        record = await created(store)
        server.break_commit(Moment.LATER)
        written = await committed(store, held(record, "ada"), commit="once")
        assert server.broken == 1
        assert await other.read(record.key) == written
        assert await commits(other, record) == [record.commit, "once"]

    @pytest.mark.parametrize("moment", MOMENTS)
    async def test_that_cannot_be_read_back_is_not_guessed(self, breakable: Breakable, moment: Moment) -> None:
        store = await breakable.open_breakable()
        record = await created(store)
        breakable.break_commit(moment, breakable.cut_off)
        with pytest.raises(CommitUnknown, match="may have landed"):
            await committed(store, held(record, "ada"), commit="once")
        await breakable.restore()
        landed = await commits(store, record) == [record.commit, "once"]
        assert landed == (moment is Moment.AFTER)
        # Asked again with the same id, it is one commit either way.
        written = await committed(store, held(record, "ada"), commit="once")
        assert await store.read(record.key) == written
        assert await commits(store, record) == [record.commit, "once"]

    @pytest.mark.parametrize("moment", MOMENTS)
    @pytest.mark.parametrize("new", [False, True])
    async def test_of_a_create(self, breakable: Breakable, moment: Moment, new: bool) -> None:
        store, other = await breakable.open_breakable(), await breakable.open()
        asked = fresh()
        breakable.break_commit(moment)
        record = await store.create(asked, commit="once", actor="ada", new=new)
        assert breakable.broken == 1
        assert (record.uid, record.revision) == (asked.uid, 1)
        assert await other.read(record.key) == record
        assert await commits(other, record) == ["once"]
        assert len(await other.jobs()) == 1

    async def test_of_a_create_that_lands_later(self, server: OnServer) -> None:
        store, other = await server.open_breakable(), await server.open()
        asked = fresh()
        server.break_commit(Moment.LATER)
        record = await created(store, asked)
        assert record.uid == asked.uid
        assert await commits(other, record) == [record.commit]

    @pytest.mark.parametrize("moment", MOMENTS)
    async def test_of_a_create_that_cannot_be_read_back(self, breakable: Breakable, moment: Moment) -> None:
        store = await breakable.open_breakable()
        asked = fresh()
        await store.jobs()  # SQLAlchemy sends MySQL a COMMIT of its own on every new line
        breakable.break_commit(moment, breakable.cut_off)
        with pytest.raises(CommitUnknown):
            await created(store, asked)
        await breakable.restore()
        assert (await created(store, asked)).uid == asked.uid
        assert len(await store.history(asked.key)) == 1

    @pytest.mark.parametrize("moment", MOMENTS)
    async def test_of_a_lease(self, breakable: Breakable, moment: Moment) -> None:
        store = await breakable.open_breakable()
        record = await created(store)
        breakable.break_commit(moment)
        lease = await store.acquire(record, "one", 60)
        breakable.break_commit(moment)
        await store.renew(lease, 60)
        assert (await committed(store, held(record, "one"), lease=lease)).revision == 2
        breakable.break_commit(moment)
        await store.release(lease)
        assert breakable.broken == 3
        assert [row.owner for row in await store.jobs()] == [None]


@pytest.mark.case("T50")
class TestEveryStep:
    """The line breaks, or the database refuses, at each step in turn."""

    @pytest.mark.promise("C5")
    async def test_connection_reset_at_each_packet(self, server: OnServer) -> None:
        """Whatever was on the way, either way, a commit and a create land once, and a read reads."""
        other, proxy = await server.open(), server.proxy
        broken_at = 0
        while proxy.broken == broken_at:
            store = await server.open_breakable()
            proxy.packets_left = broken_at
            record = await created(store, fresh(f"job {broken_at}"))
            written = await committed(store, held(record, "ada"))
            assert await store.read(record.key) == written == await other.read(record.key)
            assert await commits(other, record) == [record.commit, written.commit]
            await store.close()
            broken_at += 1
        assert broken_at > 20

    @pytest.mark.parametrize("word", ["SQLITE_BUSY", "SQLITE_LOCKED_SHAREDCACHE", "SQLITE_BUSY_SNAPSHOT"])
    async def test_database_is_locked_at_each_statement(
        self, sqlite: OnSqlite, monkeypatch: pytest.MonkeyPatch, word: str
    ) -> None:
        execute, left, refused = aiosqlite.Cursor.execute, -1, 0

        async def refusing(cursor: aiosqlite.Cursor, *arguments: Any) -> aiosqlite.Cursor:
            nonlocal left, refused
            left -= 1
            if left == -1:
                refused += 1
                error = sqlite3.OperationalError("database is locked")
                error.sqlite_errorname = word
                raise error
            return await execute(cursor, *arguments)

        monkeypatch.setattr(aiosqlite.Cursor, "execute", refusing)
        step = 0
        while refused == step:
            store = await sqlite.open()
            left = step
            record = await created(store, fresh(f"job {step}"))
            written = await committed(store, held(record, "ada"))
            assert await store.read(record.key) == written
            assert await commits(store, record) == [record.commit, written.commit]
            await store.close()
            step += 1
        assert step > 8

    @pytest.mark.parametrize("refusal", REFUSALS, ids=["serialization failure", "deadlock", "row not free"])
    async def test_refused_at_each_statement(self, server: OnServer, refusal: Refusal) -> None:
        """Of a create, a claim, a commit under it, a read, a history, a list and a release, in turn."""
        step = 0
        while server.refused == step:
            store = await server.open()
            server.refuse_statement(step, refusal)
            record = await created(store, fresh(f"job {step}"))
            lease = await store.acquire(record, "one", 60)
            written = await committed(store, held(record, "ada"), lease=lease)
            assert await store.read(record.key) == written
            assert await commits(store, record) == [record.commit, written.commit]
            assert [row.owner for row in await store.jobs(key_prefix=record.key)] == ["one"]
            await store.release(lease)
            await store.close()
            step += 1
        assert step > 10

    @pytest.mark.parametrize("refusal", REFUSALS, ids=["serialization failure", "deadlock", "row not free"])
    @pytest.mark.parametrize("table", ["dispatch_job", "dispatch_history"])
    @pytest.mark.parametrize("when", ["INSERT", "UPDATE"])
    async def test_refused_for_the_sake_of_another(
        self, server: OnServer, refusal: Refusal, table: str, when: str
    ) -> None:
        """Two tries of every write of one kind are refused, and the third is not."""
        await server.refuse(table, when, refusal)
        store = await server.open()
        record = await created(store)
        lease = await store.acquire(record, "one", 60)
        written = await committed(store, held(record, "ada"), lease=lease)
        await store.renew(lease, 60)
        await store.release(lease)
        assert await store.read(record.key) == written
        assert await commits(store, record) == [record.commit, written.commit]
        assert [row.owner for row in await store.jobs()] == [None]
        assert (await store.acquire(record, "two", 60)).epoch == 2

    @pytest.mark.parametrize("table", ["dispatch_job", "dispatch_history"])
    async def test_refused_for_good(self, server: OnServer, table: str) -> None:
        store = await server.open()
        record = await store.read((await created(store)).key)
        before = await server.document(record.uid)
        await server.refuse(table, "UPDATE" if table == "dispatch_job" else "INSERT", REFUSALS[0], of=0)
        with pytest.raises(StoreUnavailable, match="not now"):
            await committed(store, held(record, "ada"))
        assert await server.document(record.uid) == before
        assert await commits(store, record) == [record.commit]

    async def test_row_kept_by_a_silent_client(self, server: OnServer, monkeypatch: pytest.MonkeyPatch) -> None:
        """A statement that waits for ever does not keep the caller for ever."""
        monkeypatch.setattr("dispatch_core.stores.engine.STATEMENT_SECONDS", 0.3)
        monkeypatch.setattr("dispatch_core.stores.sql.PAUSES", ())
        store = await server.open()
        record = await created(store)
        async with (await server.open())._engine.connect() as silent:
            await silent.exec_driver_sql("SELECT 1 FROM dispatch_job FOR UPDATE")
            with pytest.raises(StoreUnavailable, match=r"TimeoutError|Lock wait timeout"):
                await committed(store, held(record, "ada"))
        assert (await committed(store, held(record, "ada"))).revision == 2


class TestCancelled:
    """A pass that is abandoned in mid-commit leaves a whole commit or none, and a store that works."""

    @pytest.mark.promise("C5")
    async def test_commit_cancelled_at_any_moment(self, transactional: OnSqlite | OnServer) -> None:
        store = await transactional.open()
        record = await created(store)
        began = time.perf_counter()
        for _ in range(5):
            record = await committed(store, held(record, "ada"))
        usual = (time.perf_counter() - began) / 5
        abandoned = 0
        for number in range(30):
            call = asyncio.create_task(committed(store, held(record, "ada"), commit=f"c{number}"))
            await asyncio.sleep(usual * number / 20)
            call.cancel()
            cancelled = isinstance((await asyncio.gather(call, return_exceptions=True))[0], asyncio.CancelledError)
            newest = await store.read(record.key)
            landed = f"c{number}" in await commits(store, record)
            assert newest.revision == record.revision + landed
            assert landed or cancelled
            abandoned += cancelled
            record = newest
        assert abandoned > 0
        assert (await committed(store, held(record, "ada"))).revision == record.revision + 1


async def _acquire(store: SqlStore, record: Record, lease: Lease) -> object:
    return await store.acquire(record, "one", 60)


async def _release(store: SqlStore, record: Record, lease: Lease) -> object:
    return await store.release(lease)


async def _read(store: SqlStore, record: Record, lease: Lease) -> object:
    return await store.read(record.key)


async def _commit(store: SqlStore, record: Record, lease: Lease) -> object:
    return await committed(store, held(record, "ada"), lease=lease)


async def _create(store: SqlStore, record: Record, lease: Lease) -> object:
    return await store.create(fresh("other"), commit=commit_id(), actor="ada")


async def _jobs(store: SqlStore, record: Record, lease: Lease) -> object:
    return await store.jobs()


@pytest.mark.parametrize("use", [_acquire, _release, _read, _commit, _create, _jobs], ids=lambda use: use.__name__[1:])
async def test_a_database_that_is_away(
    breakable: Breakable, use: Callable[[SqlStore, Record, Lease], Awaitable[object]]
) -> None:
    """Nothing was sent, so nothing is in doubt: the store is unavailable, and back when its database is."""
    store = await breakable.open_breakable()
    record = await created(store)
    lease = await store.acquire(record, "one", 60)
    await store.close()
    await breakable.cut_off()
    with pytest.raises(StoreUnavailable) as caught:
        await use(store, record, lease)
    assert "\n" not in str(caught.value)
    await breakable.restore()
    assert await store.read(record.key) == record
    await use(store, record, lease)


@pytest.mark.promise("C5")
async def test_a_database_that_falls_silent_in_mid_commit(server: OnServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """No line breaks and nothing ever answers: the call ends all the same, and says that it does not know."""
    store = await server.open_breakable()
    record = await created(store)
    monkeypatch.setattr("dispatch_core.stores.sql.TRANSACTION_SECONDS", 0.2)

    async def silence() -> None:
        server.proxy.refuses = True
        await asyncio.sleep(30)

    server.break_commit(Moment.AFTER, silence)
    with pytest.raises(CommitUnknown):
        await committed(store, held(record, "ada"), commit="once")
    await server.restore()
    monkeypatch.undo()
    assert (await committed(store, held(record, "ada"), commit="once")).revision == 2
    assert await commits(store, record) == [record.commit, "once"]
