"""What people ask of a job: `cancel`, `hold`, `release`, `resolve`, `dispose`.

One rule: each commits what was asked and says so, whoever supervises the job; where nobody does, it says that nothing
will come of it until somebody does, and the command for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from dispatch_core.ask import Receipt
from dispatch_core.cli import exits, looking, sources
from dispatch_core.cli.attending import logged
from dispatch_core.cli.launching import teller, until_left
from dispatch_core.cli.screen import local_time
from dispatch_core.cli.session import Session
from dispatch_core.cli.session import run as run_to_end
from dispatch_core.cli.told import Told
from dispatch_core.client import Client
from dispatch_core.record import Record, Result
from dispatch_core.supervisor import Supervisor


def cancel(session: Session, key: str, wait: bool, reason: str) -> int:
    async def work() -> int:
        async with session.opened() as plain:
            store = Told(plain, teller(session.screen, session)) if wait else plain
            client = Client(store)
            got = await client.cancel(key, reason=reason)
            if wait and not got.clean:
                record = await store.read(key, got.uid)
                async with session.scheduler(record.scheduler) as adapter:
                    with logged(session.screen):
                        await Supervisor(store, adapter, secrets=sources.read_secret).attend(key, got.uid)
                got = await client.cancel(key, uid=got.uid)
            shown = await looking.read_status(plain, key, got.uid)
        session.screen.result(got, receipt_lines(got))
        if shown.unattended:
            session.screen.say("it is committed and final, but nobody supervises the job to stop what is alive: run")
            session.screen.say(session.command("cancel", key, "--wait"))
        return exits.FINE

    return until_left(session, key, work)


def receipt_lines(got: Receipt) -> list[str]:
    """A cancel's receipt for people."""
    when = local_time(got.at)
    if got.result is Result.CANCELLED:
        lines = [f"job {got.key!r} is cancelled since {when} (record {got.uid}, revision {got.revision})"]
    else:
        lines = [f"job {got.key!r} was over before: it has {got.result} since {when}, and that stands"]
    return [*lines, "clean-up is complete" if got.clean else f"clean-up waits for: {got.waits_for}"]


def hold(session: Session, key: str, reason: str) -> int:
    return _ask(session, key, lambda client: client.hold(key, reason=reason), lambda record: f"hold: {reason}")


def release(session: Session, key: str, revision: int | None) -> int:
    return _ask(session, key, lambda client: client.release(key, revision=revision), lambda record: "released")


def resolve(session: Session, key: str, result: str, reason: str, revision: int | None) -> int:
    def ask(client: Client) -> Awaitable[Record]:
        return client.resolve(key, Result(result), reason=reason, revision=revision)

    return _ask(session, key, ask, lambda record: f"resolved: it has {result}")


def dispose(session: Session, key: str, what: str, revision: int | None) -> int:
    return _ask(
        session, key, lambda client: client.dispose(key, what, revision=revision), lambda record: f"disposed: {what}"
    )


def _ask(session: Session, key: str, ask: Callable[[Client], Awaitable[Record]], done: Callable[[Record], str]) -> int:
    """Commit what is asked for, and print what has become of the job."""

    async def work() -> int:
        async with session.opened() as store:
            record = await ask(Client(store))
            shown = await looking.read_status(store, key, record.uid)
        line = f"job {key!r}: {done(record)} (revision {record.revision}); it is {shown.state}"
        session.screen.result(shown, [line])
        if shown.unattended:
            session.screen.say(f"nobody supervises it: {session.command('supervise', key)}")
        return exits.FINE

    return run_to_end(work())
