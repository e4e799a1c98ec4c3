"""Long lists, a page at a time, on each database."""

import pytest
from msgspec.structs import replace

from dispatch_core.stores.contract import Listed, Place
from dispatch_core.stores.sql import SqlStore
from tests.stores.databases import OnServer, OnSqlite
from tests.stores.records import commit_id, committed, created, fresh, held, settled


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def shelf(request: pytest.FixtureRequest) -> OnSqlite | OnServer:
    """One database of each kind, empty."""
    return request.getfixturevalue(request.param)


async def walk(store: SqlStore, limit: int, **asked: object) -> list[str]:
    """The keys of every page, each page within its limit."""
    keys: list[str] = []
    after: Place | None = None
    while rows := await store.page(limit, after=after, **asked):  # type: ignore[arg-type]
        assert len(rows) <= limit
        keys += [row.key for row in rows]
        after = behind(rows[-1])
    return keys


def behind(row: Listed) -> Place:
    return Place(updated=row.updated, uid=row.uid)


async def test_pages_show_what_the_whole_list_shows(shelf: OnSqlite | OnServer) -> None:
    store = await shelf.open()
    records = [await created(store, fresh(f"run/{number}")) for number in range(7)]
    await created(store, fresh("Run/8"))
    for number in (1, 4):
        records[number] = await committed(store, settled(records[number]))
    await committed(store, held(records[0], "ada"))
    await store.create(replace(fresh("run/1"), plan=records[1].plan), commit=commit_id(), actor="ada", new=True)
    await store.acquire(records[2], "somebody", 600)
    for limit in (1, 2, 3, 100):
        whole = [row.key for row in await store.jobs()]
        assert sorted(await walk(store, limit)) == sorted(whole), limit
        assert (await walk(store, limit))[:2] == ["run/1", "run/0"], limit
        assert await walk(store, limit, settled=True) == ["run/4"]
        assert sorted(await walk(store, limit, settled=False)) == sorted(set(whole) - {"run/4"})
        assert sorted(await walk(store, limit, unattended=True)) == sorted(set(whole) - {"run/4", "run/2"})
        assert sorted(await walk(store, limit, key_prefix="run/")) == sorted(set(whole) - {"Run/8"})
        assert await walk(store, limit, key_prefix="r_n") == []


async def test_a_job_that_changes_meanwhile_is_shown_once_more_and_hides_none(shelf: OnSqlite | OnServer) -> None:
    store = await shelf.open()
    records = [await created(store, fresh(f"run/{number}")) for number in range(4)]
    first = await store.page(2)
    assert [row.key for row in first] == ["run/3", "run/2"]
    await committed(store, held(records[0], "ada"))
    assert [row.key for row in await store.page(2, after=behind(first[-1]))] == ["run/1"]
    assert [row.key for row in await store.page(1)] == ["run/0"]


async def test_a_page_holds_what_cannot_be_read(shelf: OnSqlite | OnServer) -> None:
    store = await shelf.open()
    record = await created(store)
    await shelf.overwrite(record.uid, "{}")
    (row,) = await store.page(5, settled=False)
    assert (row.uid, row.record) == (record.uid, None)
    assert "cannot be read" in row.problem


async def test_a_prefix_is_taken_as_it_is(shelf: OnSqlite | OnServer) -> None:
    store = await shelf.open()
    for key in ("a", "a b", "a\U0001f600b", "%x", "\\x", "ab"):
        await created(store, fresh(key))
    for prefix in ("a ", "a\U0001f600", "%", "\\"):
        whole = [row.key for row in await store.jobs(key_prefix=prefix)]
        assert await walk(store, 2, key_prefix=prefix) == whole != [], prefix
