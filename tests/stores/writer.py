"""A writer in a process of its own, for the tests in which two write to one file: `python -m tests.stores.writer`."""

import asyncio
import sys

from dispatch_core.record import Record
from dispatch_core.stores.migrations import upgrade
from dispatch_core.stores.sql import open_store
from tests.stores.records import created, fresh, held, keep_trying


async def write(url: str, name: str, commits: int) -> None:
    await upgrade(url)
    store = open_store(url)

    def change(record: Record) -> Record:
        return held(record, name)

    await created(store, fresh("shared"))
    await created(store, fresh(f"{name}'s own"))
    conflicts = 0
    for _ in range(commits):
        conflicts += await keep_trying(store, "shared", change)
        await keep_trying(store, f"{name}'s own", change)
    await store.close()
    sys.stdout.write(f"{conflicts}\n")


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], sys.argv[2], int(sys.argv[3])))
