"""The role that the README gives Airflow's workers: it keeps records, and may do nothing else."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dispatch_core.errors import Conflict, Owned, StoreUnavailable
from dispatch_core.stores.migrations import current, newest
from dispatch_core.stores.sql import SqlStore, open_store
from tests.stores.databases import OnPostgres
from tests.stores.records import committed, created, fresh, held, settled

README = Path(__file__).parents[2] / "README.md"
ROLE = "dispatch_app"


@pytest.fixture
async def limited(postgresql: OnPostgres) -> AsyncIterator[SqlStore]:
    """A store as the role with these grants, in a database that others have tables in."""
    grants = re.findall(rf"^GRANT .* TO {ROLE};$", README.read_text(), re.MULTILINE)
    assert len(grants) == 3
    await postgresql.alter("CREATE TABLE connection (password text)", f"CREATE ROLE {ROLE} LOGIN", *grants)
    url = postgresql.url.replace("//dispatch@", f"//{ROLE}@")
    assert ROLE in url
    store = open_store(url)
    yield store
    assert await current(url) == newest()
    await store.close()
    await postgresql.alter(f"DROP OWNED BY {ROLE}", f"DROP ROLE {ROLE}")


async def test_it_is_enough_for_a_job(limited: SqlStore) -> None:
    record = await created(limited, fresh("job"))
    lease = await limited.acquire(record, "one", 60)
    with pytest.raises(Owned):
        await limited.acquire(record, "two", 60)
    await limited.renew(lease, 60)
    later = await committed(limited, held(record, "ada"), lease=lease)
    with pytest.raises(Conflict):
        await committed(limited, held(record, "stale"))
    assert await committed(limited, held(record, "ada"), lease=lease, commit=later.commit) == later
    assert await limited.revision("job", record.uid) == 2
    last = await committed(limited, settled(later), lease=lease)
    await limited.release(lease)
    again = await limited.create(fresh("job"), commit="again", actor="x", new=True)
    assert [row.record for row in await limited.jobs()] == [again]
    assert await limited.read("job", record.uid) == last
    assert len(await limited.history("job", record.uid)) == 3


async def test_it_deletes_nothing_and_sees_nothing_else(limited: SqlStore, postgresql: OnPostgres) -> None:
    record = await committed(limited, settled(await created(limited)))
    await postgresql.wait(100)
    await created(limited, fresh("young"))
    moment = (await limited.jobs(key_prefix="young"))[0].created
    with pytest.raises(StoreUnavailable, match="permission denied"):
        await limited.prune(moment)
    assert await limited.read(record.key) == record
    async with limited._engine.connect() as connection:
        with pytest.raises(Exception, match="permission denied for table connection"):
            await connection.exec_driver_sql("SELECT * FROM connection")
