"""What launches: `run`, `submit`, `supervise`, `check`.

One rule: a job file is read and judged whole before a store or a spool is touched. A supervisor that is told to leave
says what becomes of the job and how to go on.
"""

from __future__ import annotations

import logging
import sys
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path

from dispatch_core.adapters.contract import Adapter
from dispatch_core.cli import exits, looking, sources
from dispatch_core.cli.screen import Screen, clean, local_time, plural
from dispatch_core.cli.session import Detached, Session
from dispatch_core.cli.session import run as run_to_end
from dispatch_core.cli.told import Tell, Told
from dispatch_core.client import Client
from dispatch_core.clusters import LOCAL, UnknownCluster
from dispatch_core.errors import BadInput, NotFound
from dispatch_core.janitor import Janitor
from dispatch_core.jobfile import JobFile, read_job
from dispatch_core.places import problems_of
from dispatch_core.record import Record, Result
from dispatch_core.saying import rule_words
from dispatch_core.status import advice, attention, outcome_words, runs_of, state_of
from dispatch_core.stores.contract import Store
from dispatch_core.supervisor import Supervisor

LARGEST_FILE_BYTES = 1_000_000

EVERY_SECONDS, ONCE_SECONDS = 30.0, 5.0
"""How often `supervise` without a key looks for jobs that nobody supervises."""

CODES = {Result.SUCCEEDED: exits.FINE, Result.FAILED: exits.FAILED, Result.CANCELLED: exits.CANCELLED}


def read_file(session: Session, file: str, *, supervised_here: bool) -> JobFile:
    """A job file, judged whole; `supervised_here`: its secrets are read by this very command."""
    name = "standard input" if file == "-" else file
    try:
        if file == "-":
            data = sys.stdin.buffer.read(LARGEST_FILE_BYTES + 1)
        else:
            with Path(file).open("rb") as opened:
                data = opened.read(LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{name}: it cannot be read: {error.strerror or error}; check the path") from None
    if len(data) > LARGEST_FILE_BYTES:
        raise BadInput(f"{name}: it is longer than {LARGEST_FILE_BYTES} bytes; this is no job file")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadInput(f"{name}:{line}: it is not UTF-8 text; save it as UTF-8") from None
    job = read_job(text, name)
    try:
        cluster = session.cluster(job.scheduler)
    except UnknownCluster as unknown:
        raise job.refuse(("scheduler",), str(unknown)) from None
    for path, problem in [*problems_of(cluster, job.spec), *sources.problems(job.spec, read=supervised_here)]:
        raise job.refuse(path, problem)
    return job


def check(session: Session, file: str) -> int:
    job = read_file(session, file, supervised_here=False)
    value = {"key": job.key, "scheduler": job.scheduler, "spec": job.spec, "plan": job.plan}
    rules = [f"  {rule.name}: {rule_words(rule)}" for rule in job.plan.rules]
    head = f"{file}: job {job.key!r} on {job.scheduler} is fine; {plural(len(rules), 'rule')}"
    session.screen.result(value, [head, *rules])
    return exits.FINE


async def _submit(store: Store, job: JobFile, new: bool) -> tuple[Record, bool]:
    """The job's record, and whether it was made just now."""
    try:
        before: str | None = (await store.read(job.key)).uid
    except NotFound:
        before = None
    record = await Client(store).submit(job.key, job.spec, job.plan, scheduler=job.scheduler, new=new)
    return record, record.uid != before


def submit(session: Session, file: str, new: bool) -> int:
    job = read_file(session, file, supervised_here=False)

    async def work() -> int:
        async with session.opened() as store:
            record, made = await _submit(store, job, new)
            shown = await looking.read_status(store, record.key, record.uid)
        if made:
            line = f"job {job.key!r} is submitted (record {record.uid})"
        else:
            line = f"job {job.key!r} has its record already (record {record.uid}): {shown.state}"
        session.screen.result(shown, [line])
        if shown.unattended:
            session.screen.say(f"nobody supervises it yet: {session.command('supervise', job.key)}")
        return exits.FINE

    return run_to_end(work())


def run(session: Session, file: str, new: bool) -> int:
    job = read_file(session, file, supervised_here=True)
    screen = session.screen

    async def work() -> int:
        async with session.opened() as plain:
            store = Told(plain, teller(screen, session))
            record, made = await _submit(store, job, new)
            if record.settled and record.outcome is not None:
                screen.say(
                    f"job {job.key!r} is settled since {local_time(record.outcome.at)}; nothing was launched; --new"
                    " makes the next record under its key"
                )
                return await _finished(session, plain, record)
            if not made:
                screen.say(f"job {job.key!r} is under way ({state_of(record)}): attached at revision {record.revision}")
                _advise(screen, session, record)
                owner = (await looking.read_status(plain, record.key, record.uid)).supervisor
                if owner is not None:
                    screen.say(f"{owner} supervises it: this follows, and takes over when that one leaves")
            return await _attend(session, store, record)

    return until_left(session, job.key, work)


def supervise(session: Session, key: str | None, once: bool) -> int:
    if key is not None and once:
        raise BadInput("--once is for supervise without a key; with a key it leaves when the job is settled")
    if key is None:
        return _janitor(session, once)

    async def work() -> int:
        async with session.opened() as plain:
            store = Told(plain, teller(session.screen, session))
            return await _attend(session, store, await store.read(key), if_free=True)

    return until_left(session, key, work)


async def _attend(session: Session, store: Store, record: Record, *, if_free: bool = False) -> int:
    """Supervise a job until it is settled; `if_free`: leave it to another who has it already."""
    async with session.scheduler(record.scheduler) as adapter:
        supervisor = Supervisor(store, adapter, secrets=sources.read_secret)
        with logged(session.screen):
            settled = await supervisor.attend(record.key, record.uid, if_free=if_free)
    return await _finished(session, store, settled)


async def _finished(session: Session, store: Store, record: Record) -> int:
    """Print how a settled job came out; returns the code of its outcome."""
    assert record.outcome is not None  # noqa: S101 - it is settled
    shown = await looking.read_status(store, record.key, record.uid)
    words = f"job {record.key!r} has {outcome_words(record.outcome)}: {plural(len(record.submissions), 'submission')}"
    session.screen.result(shown, [f"{words}, {plural(runs_of(record), 'run')}"])
    return CODES[record.outcome.result]


def _janitor(session: Session, once: bool) -> int:
    screen = session.screen

    async def work() -> int:
        adopted: set[str] = set()

        def tell(record: Record, at: datetime, line: str) -> None:
            adopted.add(record.key)
            screen.say(f"{local_time(at, date=False)}  {clean(record.key)}: {line}")

        async with session.opened() as plain, AsyncExitStack() as stack:

            def opens(name: str) -> Adapter:
                adapter = session.open(name)
                stack.push_async_callback(adapter.close)
                return adapter

            # The machine's own spool may not be one, as on a shared home directory; where it is all there is, it must.
            names = session.cluster_names()
            adapters = {} if len(names) > 1 else {LOCAL: opens(LOCAL)}
            screen.say("supervising every job that nobody supervises" + ("" if once else "; Ctrl-C leaves"))
            period = ONCE_SECONDS if once else EVERY_SECONDS
            janitor = Janitor(
                Told(plain, tell),
                adapters,
                opens=opens,
                names=names,
                secrets=sources.read_secret,
                period_seconds=period,
            )
            with logged(screen):
                await janitor.run(once=once)
            unsettled = await plain.jobs(settled=False)
        done = f"{plural(len(adopted), 'job')} supervised"
        others = f"{plural(len(unsettled), 'job')} not settled, which others have or a person must decide"
        screen.result(
            {"supervised": sorted(adopted), "unsettled": sorted(row.key for row in unsettled)},
            [f"{done}; {others}" if unsettled else f"nothing is left to do: {done}"],
        )
        left = sum(bool(attention(row)) for row in unsettled)
        if left:
            screen.say(f"{plural(left, 'job needs', 'jobs need')} attention: {session.command('ls', '--attention')}")
        return exits.FINE

    try:
        return run_to_end(work())
    except Detached as left:
        screen.say("left: what is open on the scheduler runs on; nothing new starts until somebody supervises")
        return exits.SIGNALLED + left.number


def until_left(session: Session, key: str, work: looking.Work) -> int:
    """Do this until it is done or a signal comes; then say what becomes of the job."""
    try:
        return run_to_end(work())
    except Detached as left:
        say = session.screen.say
        say(f"detached from job {key!r}: what is open on the scheduler runs on, and nothing else happens")
        say(f"  to go on:   {session.command('supervise', key)}")
        say(f"  to end it:  {session.command('cancel', key, '--wait')}")
        return exits.SIGNALLED + left.number


def teller(screen: Screen, session: Session) -> Tell:
    def tell(record: Record, at: datetime, line: str) -> None:
        screen.say(f"{local_time(at, date=False)}  {line}")
        if line.startswith("waits: "):
            _advise(screen, session, record)
        elif record.outcome is not None and not record.settled and line.startswith("the job has "):
            screen.say("          settled as soon as every launch is accounted for")

    return tell


def _advise(screen: Screen, session: Session, record: Record) -> None:
    told = advice(record)
    if told:
        screen.say(f"          you can: {told}")
        screen.say(f"          look at it first: {session.command('explain', record.key)}")


class _Lines(logging.Handler):
    """Warnings of the supervisor as lines; its story is told from the store."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(logging.WARNING)
        self.screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        self.screen.say(f"dispatch: {record.getMessage()}")


class logged:
    """While it lasts, what the supervisor warns of is said on standard error."""

    def __init__(self, screen: Screen) -> None:
        self.lines = _Lines(screen)

    def __enter__(self) -> None:
        logging.getLogger("dispatch_core").addHandler(self.lines)

    def __exit__(self, *raised: object) -> None:
        logging.getLogger("dispatch_core").removeHandler(self.lines)
