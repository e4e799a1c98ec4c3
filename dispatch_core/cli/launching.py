"""What launches: `run`, `submit`, `supervise`, `check`.

One rule: a job file is read and judged whole before a store or a spool is touched. A supervisor that is told to leave
says what becomes of the job and how to go on.
"""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

from dispatch_core.cli import attending, exits, looking, sources
from dispatch_core.cli.attending import logged
from dispatch_core.cli.screen import Screen, local_time, plural
from dispatch_core.cli.session import Detached, Session
from dispatch_core.cli.session import run as run_to_end
from dispatch_core.cli.told import Tell, Told
from dispatch_core.client import Client
from dispatch_core.clusters import UnknownCluster
from dispatch_core.errors import BadInput, NotFound
from dispatch_core.jobfile import JobFile, read_job
from dispatch_core.places import problems_of
from dispatch_core.record import Record, Result
from dispatch_core.saying import rule_words
from dispatch_core.status import advice, outcome_words, runs_of, state_of
from dispatch_core.stores.contract import Store
from dispatch_core.supervisor import Supervisor

LARGEST_FILE_BYTES = 1_000_000

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


def supervise(session: Session, key: str | None, once: bool, engine: str = "") -> int:
    for option, given in (("--once", once), (f"--{engine}", bool(engine))):
        if key is not None and given:
            raise BadInput(f"{option} is for supervise without a key; with a key it leaves when the job is settled")
    if key is None:
        return attending.supervise_all(session, once, engine)

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
