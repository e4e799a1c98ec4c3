"""`db upgrade`: the one command that changes a database's tables.

One rule: it is asked for by name and on one store; no other command changes tables, except those of the user's own
default file.
"""

from __future__ import annotations

from dispatch_core.cli import exits
from dispatch_core.cli.session import Session, make_folder, run


def upgrade_store(session: Session) -> int:
    from dispatch_core.stores.migrations import upgrade

    if session.store is None:
        make_folder(session.url)
    revision = run(upgrade(session.url))
    session.screen.result({"revision": revision}, [f"the store's tables are at revision {revision}"])
    return exits.FINE
