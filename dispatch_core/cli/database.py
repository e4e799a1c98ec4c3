"""`db upgrade` and `db prune`: the commands for whoever keeps the database.

One rule: each is asked for by name and on one store; no other command changes tables, except those of the user's own
default file, and no other deletes a record.
"""

from __future__ import annotations

from dispatch_core.cli import exits
from dispatch_core.cli.screen import local_time, plural
from dispatch_core.cli.session import Detached, Session, make_folder, run


def upgrade_store(session: Session) -> int:
    from dispatch_core.errors import BadInput
    from dispatch_core.places import is_served
    from dispatch_core.stores.migrations import upgrade

    if is_served(session.url):
        raise BadInput("--store is a server's address: its tables are upgraded where its database is; nothing was done")
    if session.store is None:
        make_folder(session.url)
    revision = run(upgrade(session.url))
    session.screen.result({"revision": revision}, [f"the store's tables are at revision {revision}"])
    return exits.FINE


def prune_store(session: Session, when: str, dry_run: bool) -> int:
    from datetime import datetime

    from dispatch_core.amounts import read_moment
    from dispatch_core.errors import BadInput
    from dispatch_core.stores.contract import Pruned

    try:
        before = read_moment(when, datetime.now().astimezone())
    except BadInput as error:
        raise BadInput(f"--settled-before: {error}; nothing was deleted") from None

    async def work() -> Pruned:
        async with session.opened() as store:
            return await store.prune(before, trial=dry_run)

    try:
        done = run(work())
    except Detached as left:
        session.screen.say("left: what was deleted is deleted whole; the same command goes on with the rest")
        return exits.SIGNALLED + left.number
    count = plural(done.deleted, "record")
    verb = "would be deleted" if dry_run else "deleted"
    value = {"settled_before": before, "dry_run": dry_run, "deleted": done.deleted, "unreadable": done.unreadable}
    session.screen.result(value, [f"{count} {verb}: settled, and unchanged since {local_time(before)}"])
    if done.unreadable:
        one = "1 key has a settled record that this version cannot read; it was left"
        many = f"{done.unreadable} keys have settled records that this version cannot read; they were left"
        session.screen.say(one if done.unreadable == 1 else many)
    return exits.FINE
