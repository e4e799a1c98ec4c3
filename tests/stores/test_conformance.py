"""What every store must do, shown on each of them by the same tests."""

import asyncio
from collections import Counter
from contextlib import suppress
from datetime import datetime, timedelta, timezone

import msgspec
import pytest

from dispatch_core.errors import (
    BadInput,
    Conflict,
    Displaced,
    KeyTaken,
    NotFound,
    Owned,
    UnreadableRecord,
)
from dispatch_core.plan import Action, Plan, Rule, When
from dispatch_core.record import KEY_LENGTH, Record, encode
from dispatch_core.stores.contract import Pruned, Store
from tests.stores.databases import Database
from tests.stores.records import commit_id, committed, created, fresh, held, keep_trying, settled

WRITERS = 20


class TestCommit:
    async def test_makes_the_next_revision(self, store: Store) -> None:
        first = await created(store)
        assert (first.revision, first.commit) != (0, "")
        second = await committed(store, held(first, "ada"), commit="the-second")
        assert (second.revision, second.commit) == (2, "the-second")
        assert (
            await store.read(first.key)
            == second
            == msgspec.structs.replace(held(first, "ada"), revision=2, commit="the-second")
        )

    async def test_writes_history(self, store: Store) -> None:
        record = await created(store)
        for name in ("two", "three"):
            record = await committed(store, held(record, name), commit=name)
        changes = await store.history(record.key)
        assert [(change.revision, change.commit) for change in changes[1:]] == [(2, "two"), (3, "three")]
        assert [change.revision for change in changes] == [1, 2, 3]
        assert (changes[0].actor, changes[1].actor) == ("person ada", "supervisor one")
        assert changes[2].lines == ("2 holds",)
        times = [change.at for change in changes]
        assert times == sorted(times)
        assert all(str(time.tzinfo) == "UTC" for time in times)

    @pytest.mark.promise("C1")
    @pytest.mark.case("T9")
    @pytest.mark.parametrize("behind", [1, 2])
    async def test_against_an_old_revision_changes_nothing(self, database: Database, store: Store, behind: int) -> None:
        old = await created(store)
        newest = old
        for _ in range(behind):
            newest = await committed(store, held(newest, "somebody"))
        before, history = await database.document(old.uid), await store.history(old.key)
        with pytest.raises(Conflict, match=old.key):
            await committed(store, held(old, "stale"))
        assert await database.document(old.uid) == before == encode(newest)
        assert await store.history(old.key) == history

    @pytest.mark.promise("C1")
    async def test_against_a_revision_to_come_changes_nothing(self, database: Database, store: Store) -> None:
        record = await created(store)
        before = await database.document(record.uid)
        with pytest.raises(Conflict):
            await committed(store, msgspec.structs.replace(record, revision=7))
        assert await database.document(record.uid) == before

    @pytest.mark.promise("C1")
    async def test_of_no_record(self, store: Store) -> None:
        with pytest.raises(NotFound, match="nightly"):
            await committed(store, fresh())

    @pytest.mark.promise("C5")
    async def test_repeated_after_it_landed_changes_nothing(self, database: Database, store: Store) -> None:
        first = await created(store)
        second = await committed(store, held(first, "ada"), commit="once")
        before, history = await database.document(first.uid), await store.history(first.key)
        assert await committed(store, held(first, "ada"), commit="once") == second
        assert await database.document(first.uid) == before
        assert await store.history(first.key) == history

    @pytest.mark.promise("C5")
    async def test_repeated_after_others_committed_is_known(self, database: Database, store: Store) -> None:
        first = await created(store)
        second = await committed(store, held(first, "ada"), commit="once")
        await committed(store, held(second, "bob"))
        before = await database.document(first.uid)
        assert await committed(store, held(first, "ada"), commit="once") == second
        assert await database.document(first.uid) == before
        assert len(await store.history(first.key)) == 3

    async def test_id_of_another_job_is_refused(self, store: Store) -> None:
        one, other = await created(store, fresh("one")), await created(store, fresh("other"))
        await committed(store, held(one, "ada"), commit="taken")
        with pytest.raises(BadInput):
            await committed(store, held(other, "ada"), commit="taken")
        assert (await store.read("other")).revision == 1

    async def test_that_could_not_be_read_back_is_not_written(self, database: Database, store: Store) -> None:
        record = await created(store)
        before = await database.document(record.uid)
        for name in (7, "half a character \udcff"):
            unreadable = msgspec.structs.replace(record, scheduler=name)
            with pytest.raises(BadInput, match="read back"):
                await committed(store, unreadable)
        assert await database.document(record.uid) == before


class TestRaces:
    @pytest.mark.promise("C1")
    @pytest.mark.case("T50")
    async def test_twenty_writers_on_one_record(self, database: Database, store: Store) -> None:
        await self.one_record(database, store, 2)

    @pytest.mark.long
    @pytest.mark.promise("C1")
    async def test_twenty_writers_on_one_record_for_long(self, database: Database, store: Store) -> None:
        await self.one_record(database, store, 20)

    async def one_record(self, database: Database, store: Store, commits: int) -> None:
        """Every one of the writers commits so many times; what none of them lost is all that they wrote."""
        record = await created(store)
        stores = [store, await database.open()]

        async def write(number: int) -> int:
            conflicts = 0
            for _ in range(commits):
                conflicts += await keep_trying(
                    stores[number % 2], record.key, lambda read: held(read, f"writer {number}")
                )
            return conflicts

        conflicts = sum(await asyncio.gather(*(write(number) for number in range(WRITERS))))
        assert conflicts > 0, "no two writers met"
        last, changes = await store.read(record.key), await store.history(record.key)
        assert last.revision == 1 + WRITERS * commits == len(changes)
        assert Counter(hold.asked_by for hold in last.holds) == {f"writer {n}": commits for n in range(WRITERS)}
        assert [change.revision for change in changes] == list(range(1, last.revision + 1))
        assert len({change.commit for change in changes}) == len(changes)

    @pytest.mark.promise("C1")
    async def test_twenty_writers_on_sixty_records(self, store: Store) -> None:
        await self.many_records(store, 60)

    @pytest.mark.long
    @pytest.mark.promise("C1")
    async def test_twenty_writers_on_a_thousand_records(self, store: Store) -> None:
        await self.many_records(store, 1000)

    async def many_records(self, store: Store, count: int) -> None:
        """Every record is written by two of the twenty, who meet or do not."""
        keys = [f"job {number:04}" for number in range(count)]

        async def write(number: int) -> None:
            for key in keys[number % 10 :: 10]:
                await created(store, fresh(key))
                await keep_trying(store, key, lambda read: held(read, f"writer {number}"))

        await asyncio.gather(*(write(number) for number in range(WRITERS)))
        listed = await store.jobs()
        assert sorted(row.key for row in listed) == keys
        for row in listed:
            assert row.record is not None
            assert row.record.revision == 3
            assert len({hold.asked_by for hold in row.record.holds}) == 2

    async def test_creates_of_one_key_make_one_record(self, database: Database) -> None:
        stores = [await database.open(), await database.open()]
        records = await asyncio.gather(*(created(stores[n % 2], fresh()) for n in range(WRITERS)))
        assert len({record.uid for record in records}) == 1
        assert len(await stores[0].history(records[0].key)) == 1
        assert len(await stores[0].jobs(uids=frozenset(record.uid for record in records))) == 1

    async def test_creates_of_one_key_with_other_specs(self, store: Store) -> None:
        asked = [created(store, fresh(command=f"train {number}")) for number in range(WRITERS)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert Counter(type(answer) for answer in answers) == {type(await store.read("nightly/train")): 1, KeyTaken: 19}

    async def test_creates_under_a_settled_key_make_one_more(self, store: Store) -> None:
        old = await created(store)
        await committed(store, settled(old))
        asked = [store.create(fresh(), commit=commit_id(), actor="x", new=True) for _ in range(WRITERS)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        newest = await store.read(old.key)
        assert newest.uid != old.uid
        assert [answer for answer in answers if not isinstance(answer, KeyTaken)] == [newest]

    @pytest.mark.promise("O1")
    async def test_one_of_twenty_supervisors_gets_the_lease(self, database: Database, store: Store) -> None:
        record = await created(store)
        stores = [store, await database.open()]
        asked = [stores[n % 2].acquire(record, f"supervisor {n}", 60) for n in range(WRITERS)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        leases = [answer for answer in answers if not isinstance(answer, Owned)]
        assert [lease.epoch for lease in leases] == [1]


class TestCreate:
    async def test_again_returns_what_is_there(self, database: Database, store: Store) -> None:
        first = await created(store)
        second = await committed(store, held(first, "ada"))
        before = await database.document(first.uid)
        assert await created(store, fresh()) == second
        last = await committed(store, settled(second))
        assert await created(store, fresh()) == last
        assert before != await database.document(first.uid) == encode(last)
        assert len(await store.history(first.key)) == 3

    async def test_compares_what_was_asked_for_as_it_is_stored(self, store: Store) -> None:
        """An int for a float and a list for a tuple are the same request, read back or not."""
        asked = fresh()
        as_given = msgspec.structs.replace(
            asked, spec=msgspec.structs.replace(asked.spec, time_limit_seconds=60, options={"features": ["gpu"]})
        )
        record = await created(store, as_given)
        assert record.spec.options == {"features": ("gpu",)}
        assert await created(store, msgspec.structs.replace(as_given, uid="another0")) == record

    @pytest.mark.parametrize(
        ("other", "word"),
        [
            (fresh(command="evaluate"), "spec"),
            (fresh(scheduler="cluster"), "scheduler"),
            (fresh(plan=Plan(rules=(Rule(name="all", when=When(), do=Action.FAIL),))), "plan"),
        ],
        ids=["spec", "scheduler", "plan"],
    )
    async def test_of_another_job_under_a_taken_key(
        self, database: Database, store: Store, other: Record, word: str
    ) -> None:
        record = await created(store)
        before = await database.document(record.uid)
        with pytest.raises(KeyTaken, match=word):
            await created(store, other)
        assert await database.document(record.uid) == before
        with pytest.raises(NotFound):
            await store.read(other.key, other.uid)

    async def test_new_under_a_key_that_is_not_settled(self, store: Store) -> None:
        await created(store)
        with pytest.raises(KeyTaken, match="not settled"):
            await store.create(fresh(), commit=commit_id(), actor="x", new=True)

    async def test_new_under_a_settled_key(self, store: Store) -> None:
        old = await committed(store, settled(await created(store)))
        new = await store.create(fresh(command="evaluate"), commit=commit_id(), actor="x", new=True)
        assert new.revision == 1
        assert await store.read(old.key) == new
        assert await store.read(old.key, old.uid) == old
        assert [change.revision for change in await store.history(old.key, old.uid)] == [1, 2]
        assert [row.record for row in await store.jobs()] == [new]
        assert {row.uid for row in await store.jobs(uids=frozenset({old.uid, new.uid}))} == {old.uid, new.uid}

    async def test_new_repeated_is_the_same_job(self, store: Store) -> None:
        """The reply was lost and the caller asks again: not a third record, and not refused."""
        await committed(store, settled(await created(store)))
        asked = fresh()
        new = await store.create(asked, commit="again", actor="x", new=True)
        assert await store.create(asked, commit="again", actor="x", new=True) == new

    async def test_new_without_an_old_one(self, store: Store) -> None:
        record = await store.create(fresh(), commit=commit_id(), actor="x", new=True)
        assert await store.read(record.key) == record

    async def test_uid_of_another_job_is_refused(self, store: Store) -> None:
        record = await created(store)
        with pytest.raises(BadInput):
            await created(store, msgspec.structs.replace(record, key="another"))

    @pytest.mark.parametrize(
        "key",
        [
            "it's",
            'a "b" c',
            "50%_off\\",
            "größe/试验",
            "a:b -- ; DROP TABLE",
            "x" * KEY_LENGTH,
            "\N{ROCKET}" * 250,
        ],
    )
    async def test_keys_are_taken_as_they_are(self, store: Store, key: str) -> None:
        record = await created(store, fresh(key))
        assert await store.read(key) == record
        assert [row.key for row in await store.jobs(key_prefix=key[:9])] == [key]

    async def test_keys_that_differ_in_case_are_two_jobs(self, store: Store) -> None:
        small, large = await created(store, fresh("job")), await created(store, fresh("JOB"))
        assert small.uid != large.uid
        assert [row.uid for row in await store.jobs(key_prefix="J")] == [large.uid]

    async def test_keys_that_differ_in_a_space_at_the_end(self, store: Store) -> None:
        """Two jobs, or the second is refused: MySQL takes the two keys for one. Neither is ever read as the other."""
        plain = await created(store, fresh("job"))
        with pytest.raises(NotFound):
            await store.read("job ")
        with pytest.raises(NotFound):
            await store.history("job ")
        plain = await committed(store, settled(plain))
        for new in (False, True):
            with suppress(KeyTaken):
                spaced = await store.create(fresh("job "), commit=commit_id(), actor="x", new=new)
                assert await store.read("job ") == spaced
        assert await store.read("job") == plain
        assert [row.key for row in await store.jobs() if row.key == "job"] == ["job"]


class TestRead:
    async def test_nothing(self, store: Store) -> None:
        with pytest.raises(NotFound, match="nope"):
            await store.read("nope")
        with pytest.raises(NotFound, match="nope"):
            await store.history("nope")

    async def test_uid_under_another_key(self, store: Store) -> None:
        record = await created(store)
        with pytest.raises(NotFound):
            await store.read("another", record.uid)

    @pytest.mark.parametrize(
        "document",
        [
            "",
            "{",
            "null",
            "[]",
            '{"key": "nightly/train"}',
            "BEHIND",
            "NEWER",
            "ANOTHER",
        ],
    )
    async def test_what_cannot_be_read(self, database: Database, store: Store, document: str) -> None:
        record = await committed(store, held(await created(store), "ada"))
        healthy = await created(store, fresh("healthy"))
        match document:
            case "BEHIND":
                document = encode(msgspec.structs.replace(record, revision=1)).decode()
            case "NEWER":
                document = encode(record).decode().replace('"format":1', '"format":99')
            case "ANOTHER":
                document = encode(healthy).decode()
        await database.overwrite(record.uid, document)
        with pytest.raises(UnreadableRecord, match="'nightly/train'"):
            await store.read(record.key)
        with pytest.raises(UnreadableRecord, match="'nightly/train'"):
            await created(store, fresh())
        assert await store.read("healthy") == healthy
        assert len(await store.history(record.key)) == 2
        rows = {row.key: row for row in await store.jobs()}
        assert rows["healthy"].record == healthy
        assert rows["healthy"].problem == ""
        assert rows[record.key].record is None
        assert "nightly/train" in rows[record.key].problem
        assert (rows[record.key].uid, rows[record.key].revision) == (record.uid, 2)


class TestJobs:
    async def test_none(self, store: Store) -> None:
        assert await store.jobs() == []
        assert await store.jobs(uids=frozenset()) == []

    async def test_newest_change_first(self, database: Database, store: Store) -> None:
        records = {}
        for key in ("a", "b", "c"):
            records[key] = await created(store, fresh(key))
            await database.wait(0.01)
        await committed(store, held(records["a"], "ada"))
        assert [row.key for row in await store.jobs()] == ["a", "c", "b"]
        row = (await store.jobs(key_prefix="a"))[0]
        changes = await store.history("a")
        assert (row.created, row.updated) <= (changes[0].at, changes[1].at)
        assert row.created < row.updated

    async def test_filters(self, store: Store) -> None:
        open_, over = await created(store, fresh("run/1")), await created(store, fresh("run/2"))
        await created(store, fresh("ran/3"))
        await committed(store, settled(over))
        assert [row.key for row in await store.jobs(settled=True)] == ["run/2"]
        assert sorted(row.key for row in await store.jobs(settled=False)) == ["ran/3", "run/1"]
        assert sorted(row.key for row in await store.jobs(key_prefix="run/")) == ["run/1", "run/2"]
        assert [row.uid for row in await store.jobs(key_prefix="run/", settled=False)] == [open_.uid]
        assert [row.key for row in await store.jobs(key_prefix="r_n")] == []
        both = frozenset({open_.uid, over.uid})
        assert [row.key for row in await store.jobs(uids=both, settled=True)] == ["run/2"]

    @pytest.mark.parametrize(
        "prefix",
        [
            "a",
            "A",
            "ab",
            "a%",
            "a_",
            "a/",
            "a\\",
            "a ",
            "a\t",
            "é",
            "\ud7ff",
            "\N{ROCKET}",
            "\U0010ffff",
            "a\U0010ffff",
        ],
    )
    async def test_key_prefix_is_exact(self, store: Store, prefix: str) -> None:
        keys = ["a", "A", "ab", "aB", "Ab", "a%b", "a_b", "a/b", "a\\b", "a b", "a\tb", "e", "é", "éa", "b", "\ud7ffx"]
        keys += [*(f"a\N{ROCKET}{number}" for number in range(30)), "a\x1fx", "a\x1f\N{ROCKET}"]
        keys += ["\ue000", "\N{ROCKET}", "\N{ROCKET}x", "\U0010ffffx", "a\U0010ffffx"]
        for key in keys:
            await created(store, fresh(key))
        listed = sorted(row.key for row in await store.jobs(key_prefix=prefix))
        assert listed == sorted(key for key in keys if key.startswith(prefix))

    async def test_thousands_of_uids(self, store: Store) -> None:
        record = await created(store)
        uids = frozenset({record.uid, *(f"{number:08}" for number in range(2500))})
        assert [row.record for row in await store.jobs(uids=uids)] == [record]


class TestLease:
    @pytest.mark.promise("C2")
    @pytest.mark.promise("O1")
    async def test_taken_between_read_and_commit(self, database: Database, store: Store) -> None:
        record = await created(store)
        mine = await store.acquire(record, "supervisor one", 60)
        record = await committed(store, held(record, "one"), lease=mine)
        await database.wait(61)
        theirs = await store.acquire(record, "supervisor two", 60)
        before, history = await database.document(record.uid), await store.history(record.key)
        with pytest.raises(Displaced, match=record.key):
            await committed(store, held(record, "one"), lease=mine)
        assert await database.document(record.uid) == before
        assert await store.history(record.key) == history
        record = await committed(store, held(record, "two"), lease=theirs)
        assert record.revision == 3

    @pytest.mark.promise("C2")
    async def test_evidence_needs_none(self, store: Store) -> None:
        record = await created(store)
        await store.acquire(record, "supervisor two", 60)
        assert (await committed(store, held(record, "evidence"))).revision == 2

    @pytest.mark.promise("C2")
    async def test_older_epoch_of_the_same_owner(self, store: Store) -> None:
        record = await created(store)
        old, new = await store.acquire(record, "one", 60), await store.acquire(record, "one", 60)
        assert (old.epoch, new.epoch) == (1, 2)
        with pytest.raises(Displaced):
            await committed(store, held(record, "one"), lease=old)
        assert (await committed(store, held(record, "one"), lease=new)).revision == 2

    @pytest.mark.promise("C2")
    async def test_of_another_job(self, store: Store) -> None:
        one, other = await created(store, fresh("one")), await created(store, fresh("other"))
        lease = await store.acquire(one, "supervisor", 60)
        await store.acquire(other, "supervisor", 60)
        with pytest.raises(Displaced):
            await committed(store, held(other, "one"), lease=lease)

    async def test_displaced_is_told_before_conflict(self, store: Store) -> None:
        """Who reads again must not decide again: the job is another's now."""
        record = await created(store)
        mine = await store.acquire(record, "one", 60)
        await store.release(mine)
        await store.acquire(record, "two", 60)
        await committed(store, held(record, "two"))
        with pytest.raises(Displaced):
            await committed(store, held(record, "one"), lease=mine)

    async def test_that_ran_out_untaken_still_counts(self, database: Database, store: Store) -> None:
        record = await created(store)
        lease = await store.acquire(record, "one", 60)
        await database.wait(61)
        assert (await committed(store, held(record, "one"), lease=lease)).revision == 2
        await store.renew(lease, 60)
        with pytest.raises(Owned):
            await store.acquire(record, "two", 60)

    @pytest.mark.promise("O1")
    async def test_is_one_supervisor_s(self, database: Database, store: Store) -> None:
        record = await created(store)
        mine = await store.acquire(record, "one", 60)
        with pytest.raises(Owned, match="one"):
            await store.acquire(record, "two", 60)
        await store.renew(mine, 200)
        await database.wait(100)
        with pytest.raises(Owned):
            await store.acquire(record, "two", 60)
        await database.wait(101)
        theirs = await store.acquire(record, "two", 60)
        assert theirs.epoch == mine.epoch + 1
        with pytest.raises(Displaced, match=record.key):
            await store.renew(mine, 60)
        await store.release(mine)
        with pytest.raises(Owned, match="two"):
            await store.acquire(record, "one", 60)

    @pytest.mark.promise("O1")
    async def test_released(self, store: Store) -> None:
        record = await created(store)
        lease = await store.acquire(record, "one", 60)
        await store.release(lease)
        await store.release(lease)
        for use in (store.renew(lease, 60), committed(store, held(record, "one"), lease=lease)):
            with pytest.raises(Displaced):
                await use
        assert (await store.acquire(record, "two", 60)).epoch == 2

    async def test_is_no_commit(self, database: Database, store: Store) -> None:
        record = await created(store)
        before, rows = await database.document(record.uid), await store.jobs()
        lease = await store.acquire(record, "one", 60)
        await store.renew(lease, 60)
        assert (await store.jobs())[0] == msgspec.structs.replace(rows[0], owner="one")
        await store.release(lease)
        assert await store.jobs() == rows
        assert await database.document(record.uid) == before
        assert len(await store.history(record.key)) == 1

    async def test_is_listed_while_it_lasts(self, database: Database, store: Store) -> None:
        record = await created(store)
        await store.acquire(record, "one", 60)
        assert [row.owner for row in await store.jobs()] == ["one"]
        await database.wait(61)
        assert [row.owner for row in await store.jobs()] == [None]

    async def test_of_no_record(self, store: Store) -> None:
        record = await created(store)
        lease = await store.acquire(record, "one", 60)
        with pytest.raises(NotFound):
            await store.acquire(fresh(), "one", 60)
        with pytest.raises(NotFound):
            await store.renew(msgspec.structs.replace(lease, uid="0" * 8), 60)
        await store.release(msgspec.structs.replace(lease, uid="0" * 8))


async def over(store: Store, key: str, *, new: bool = False) -> Record:
    """A job that is settled, in two commits."""
    record = await store.create(fresh(key), commit=commit_id(), actor="x", new=new)
    return await committed(store, settled(record))


async def newest_moment(store: Store) -> datetime:
    """The store's clock at the newest change of all."""
    return max(row.updated for row in await store.jobs())


class TestPrune:
    async def left(self, store: Store, records: list[Record]) -> set[str]:
        """The uids that are still there, each with its whole history; what is gone is gone whole."""
        there = {row.uid for row in await store.jobs(uids=frozenset(record.uid for record in records))}
        for record in records:
            if record.uid in there:
                assert len(await store.history(record.key, record.uid)) == record.revision
                assert await store.read(record.key, record.uid) == record
            else:
                for gone in (store.read(record.key, record.uid), store.history(record.key, record.uid)):
                    with pytest.raises(NotFound):
                        await gone
        return there

    async def test_deletes_what_is_settled_and_old(self, database: Database, store: Store) -> None:
        old, alive = await over(store, "old"), await committed(store, held(await created(store, fresh("alive")), "ada"))
        await database.wait(100)
        young = await over(store, "young")
        await database.wait(10)
        before = (await store.jobs(key_prefix="young"))[0].created
        assert await store.prune(before) == Pruned(deleted=1, unreadable=0)
        assert await self.left(store, [old, alive, young]) == {alive.uid, young.uid}
        assert await store.prune(before) == Pruned(deleted=0, unreadable=0)

    async def test_a_trial_deletes_nothing(self, database: Database, store: Store) -> None:
        records = [await over(store, f"job {number}") for number in range(3)]
        await database.wait(100)
        alive = await created(store, fresh("alive"))
        assert await store.prune(await newest_moment(store), trial=True) == Pruned(deleted=3, unreadable=0)
        assert len(await self.left(store, [*records, alive])) == 4

    async def test_the_moment_itself_is_not_before(self, store: Store) -> None:
        record = await over(store, "job")
        at = (await store.jobs())[0].updated
        assert (await store.prune(at)).deleted == 0
        assert await store.read("job") == record

    @pytest.mark.parametrize("hours", [-12, 12])
    async def test_a_moment_in_any_zone(self, database: Database, store: Store, hours: int) -> None:
        old = await over(store, "old")
        await database.wait(3600)
        young = await over(store, "young")
        before = (await store.jobs(key_prefix="young"))[0].created.astimezone(timezone(timedelta(hours=hours)))
        assert (await store.prune(before)).deleted == 1
        assert await self.left(store, [old, young]) == {young.uid}

    async def test_in_batches(self, database: Database, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("dispatch_core.stores.prune.BATCH", 3)
        settled_ones = [await over(store, f"job {number % 4}", new=True) for number in range(10)]
        alive = [await created(store, fresh(f"job {number} alive")) for number in range(4)]
        await database.wait(100)
        await over(store, "young")
        assert (await store.prune((await store.jobs(key_prefix="young"))[0].created)).deleted == 10
        assert await self.left(store, [*settled_ones, *alive]) == {record.uid for record in alive}

    async def test_what_is_left_under_a_key_is_its_newest(self, database: Database, store: Store) -> None:
        """An older record that was changed since keeps the newer ones: else it would stand for the job again."""
        first, second = await over(store, "job"), await over(store, "job", new=True)
        await database.wait(100)
        first = await committed(store, first)  # as the janitor does for what lands late
        await database.wait(10)
        third = await store.create(fresh("job"), commit=commit_id(), actor="x", new=True)
        between = (await store.jobs(uids=frozenset({first.uid})))[0].updated
        assert (await store.prune(between)).deleted == 0
        assert await self.left(store, [first, second, third]) == {first.uid, second.uid, third.uid}
        assert (await store.prune((await store.jobs())[0].created)).deleted == 2
        assert await self.left(store, [first, second, third]) == {third.uid}
        assert await store.read("job") == third

    async def test_leaves_what_it_cannot_read(self, database: Database, store: Store) -> None:
        """A newer format may mean more by a settled record than this version knows."""
        strange, newer = await over(store, "job"), await over(store, "job", new=True)
        other = await over(store, "other")
        document = encode(strange).decode().replace('"format":1', '"format":2')
        await database.overwrite(strange.uid, document)
        await database.wait(100)
        await created(store, fresh("young"))
        before = await newest_moment(store)
        for trial in (True, False):
            assert await store.prune(before, trial=trial) == Pruned(deleted=1, unreadable=1)
        assert await database.document(strange.uid) == document.encode()
        assert await self.left(store, [newer, other]) == {newer.uid}

    async def test_the_key_is_free_again(self, database: Database, store: Store) -> None:
        old = await over(store, "job")
        await database.wait(100)
        await created(store, fresh("young"))
        await store.prune(await newest_moment(store))
        again = await store.create(fresh("job", command="another"), commit=old.commit, actor="x")
        assert (again.revision, await store.read("job")) == (1, again)
        assert again.uid != old.uid

    async def test_beside_commits_and_other_prunes(self, database: Database, store: Store) -> None:
        """Two at once delete each record once; what is committed to meanwhile stays whole or goes whole."""
        records = [await over(store, f"job {number:02}") for number in range(20)]
        await database.wait(100)
        await created(store, fresh("young"))
        before = await newest_moment(store)
        other = await database.open()
        work = [store.prune(before), other.prune(before)]
        tried = await asyncio.gather(*work, *(committed(other, record) for record in records), return_exceptions=True)
        changed = [answer for answer in tried[2:] if isinstance(answer, Record)]
        assert all(isinstance(answer, Record | NotFound) for answer in tried[2:])
        pruned = [answer.deleted for answer in tried[:2] if isinstance(answer, Pruned)]
        assert sum(pruned) + len(changed) == len(records)
        assert await self.left(store, changed) == {record.uid for record in changed}


class TestRevision:
    @pytest.mark.case("T52")
    async def test_is_the_newest_for_each_of_many_who_ask(self, store: Store) -> None:
        records = [await created(store, fresh(f"job {number}")) for number in range(30)]
        records[7] = await committed(store, held(records[7], "ada"))
        told = await asyncio.gather(*(store.revision(record.key, record.uid) for record in records))
        assert told == [record.revision for record in records]
        assert told[7] == 2

    async def test_is_one_that_was_there_when_it_was_asked_for(self, store: Store) -> None:
        record = await created(store)
        for name in ("one", "two", "three"):
            record = await committed(store, held(record, name))
            assert await store.revision(record.key, record.uid) == record.revision

    async def test_of_no_record(self, store: Store) -> None:
        with pytest.raises(NotFound, match="nobody"):
            await store.revision("nobody", "0123456789abcdef")

    async def test_is_of_the_key_that_is_asked_about(self, store: Store) -> None:
        record = await created(store)
        with pytest.raises(NotFound, match="another"):
            await store.revision("another", record.uid)
