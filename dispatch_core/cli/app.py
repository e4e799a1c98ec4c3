"""The commands and their options; what each does is in the rooms beside this one.

One rule: nothing slow is imported here. Each command makes a session of its options, calls one function, and returns
what to exit with.
"""

from __future__ import annotations

from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from dispatch_core.cli.exits import TABLE
from dispatch_core.cli.screen import Screen
from dispatch_core.cli.session import Session
from dispatch_core.errors import BadInput

ABOUT = """Launches long jobs on a scheduler, never twice, and keeps one durable record of each.

A job is a file (key, spec, plan). 'run' writes its record and supervises it; every other command reads that record, or
commits to it what you ask for.
"""

app = typer.Typer(
    name="dispatch",
    help=ABOUT,
    epilog=TABLE,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 120, "help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
database = typer.Typer(help="The store's tables.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(database, name="db")


class Output(StrEnum):
    """How the answer is printed."""

    TEXT = "text"
    JSON = "json"


class Came(StrEnum):
    """How a person says that a job came out."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"


def _text(argument: str | None) -> str | None:
    """An argument as it was given, where it is text. Raises BadInput."""
    try:
        (argument or "").encode()
    except UnicodeEncodeError:
        raise BadInput(f"{argument!r} is not UTF-8 text, and nothing here has such a name") from None
    return argument


StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        envvar="DISPATCH_STORE",
        metavar="URL",
        help="Where the records are: sqlite:///jobs.db, postgresql://user@host/name, or a server's https://host/dispatch"
        " with its token in DISPATCH_TOKEN. Default: a SQLite file in your data directory.",
        show_default=False,
        callback=_text,
    ),
]
SpoolOption = Annotated[
    Path | None,
    typer.Option(
        "--spool",
        envvar="DISPATCH_SPOOL",
        metavar="DIR",
        help="Directory of the local scheduler. Default: one in your data directory.",
        show_default=False,
    ),
]
ClustersOption = Annotated[
    Path | None,
    typer.Option(
        "--clusters",
        envvar="DISPATCH_CLUSTERS",
        metavar="FILE",
        help="What the clusters are, by name. Default: clusters.yaml in your data directory.",
        show_default=False,
    ),
]
OutputOption = Annotated[Output, typer.Option("-o", "--output", help="json: JSON alone on standard output.")]
FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="The job file; - reads standard input.")]

KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The job's key.", callback=_text)]
NewOption = Annotated[bool, typer.Option("--new", help="Make the next record under the key of a settled job.")]
RevisionOption = Annotated[
    int | None,
    typer.Option("--revision", metavar="N", help="Refuse if the record is no longer at this revision.", min=1),
]


def _session(store: str | None, spool: Path | None, clusters: Path | None, output: Output) -> Session:
    return Session(store=store or None, spool=spool, screen=Screen(as_json=output is Output.JSON), clusters=clusters)


def _release(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dispatch {metadata.version('dispatch-supervisor')}")
        raise typer.Exit


@app.callback(help=ABOUT)
def root(
    release: Annotated[
        bool, typer.Option("--version", callback=_release, is_eager=True, help="Print the release and leave.")
    ] = False,
) -> None:
    del release  # its callback has answered


@app.command()
def run(
    file: FileArgument,
    new: NewOption = False,
    store: StoreOption = None,
    spool: SpoolOption = None,
    clusters: ClustersOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Submit a job and supervise it until it is settled.

    On a key whose job is under way it attaches; on a settled one it says so. Exits with the job's outcome. Ctrl-C
    detaches: the job runs on.
    """
    from dispatch_core.cli import launching

    return launching.run(_session(store, spool, clusters, output), file, new)


@app.command()
def submit(
    file: FileArgument,
    new: NewOption = False,
    store: StoreOption = None,
    spool: SpoolOption = None,
    clusters: ClustersOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Write a job's record; whoever supervises launches it."""
    from dispatch_core.cli import launching

    return launching.submit(_session(store, spool, clusters, output), file, new)


@app.command()
def supervise(
    key: Annotated[
        str | None,
        typer.Argument(metavar="[KEY]", help="One job; without it, every unattended one.", callback=_text),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Without KEY: leave when nothing is left to be done.")] = False,
    prefect: Annotated[
        bool,
        typer.Option(
            "--prefect",
            help="Also cancel the jobs of cancelled Prefect flow runs, and resume those that wait suspended. Default"
            " store: in the Prefect server's own database.",
        ),
    ] = False,
    store: StoreOption = None,
    spool: SpoolOption = None,
    clusters: ClustersOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Supervise one job, or every job that nobody supervises.

    With KEY, until that job is settled; exits with its outcome, or at once where another supervisor has the job. An
    outage of the store is waited out. Without KEY, until Ctrl-C."""
    from dispatch_core.cli import launching

    engine = "prefect" if prefect else ""
    return launching.supervise(_session(store, spool, clusters, output), key, once, engine)


@app.command()
def check(
    file: FileArgument,
    store: StoreOption = None,
    spool: SpoolOption = None,
    clusters: ClustersOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Read a job file and say what is wrong; nothing is written."""
    from dispatch_core.cli import launching

    return launching.check(_session(store, spool, clusters, output), file)


@app.command(name="ls")
def list_jobs(
    attention: Annotated[
        bool,
        typer.Option(
            "--attention",
            help="Only jobs that somebody should look at: held, gone, foreign, unmatched, unattended, unsettled,"
            " unreadable. Exits with 3 if there are any.",
        ),
    ] = False,
    store: StoreOption = None,
    spool: SpoolOption = None,
    clusters: ClustersOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """List the jobs, the newest change first."""
    from dispatch_core.cli import looking

    return looking.list_jobs(_session(store, spool, clusters, output), attention)


@app.command()
def status(
    key: KeyArgument,
    store: StoreOption = None,
    spool: SpoolOption = None,
    clusters: ClustersOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Show one job: state, what it waits for, who supervises."""
    from dispatch_core.cli import looking

    return looking.status(_session(store, spool, clusters, output), key)


@app.command()
def explain(
    key: KeyArgument,
    store: StoreOption = None,
    spool: SpoolOption = None,
    clusters: ClustersOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Say what the next pass would do, and why; changes nothing."""
    from dispatch_core.cli import looking

    return looking.explain(_session(store, spool, clusters, output), key)


@app.command()
def history(
    key: KeyArgument,
    store: StoreOption = None,
    spool: SpoolOption = None,
    clusters: ClustersOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Tell every commit of a job, the oldest first."""
    from dispatch_core.cli import looking

    return looking.history(_session(store, spool, clusters, output), key)


@app.command()
def logs(
    key: KeyArgument,
    submission: Annotated[
        int | None, typer.Option("--submission", metavar="N", help="Of this submission; default: the newest.", min=1)
    ] = None,
    number: Annotated[
        int | None, typer.Option("--run", metavar="N", help="Of this run of its object; default: the newest.", min=1)
    ] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", metavar="N", help="Only the last N lines; of each stream.", min=0)
    ] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="And what it writes until it has ended.")] = False,
    store: StoreOption = None,
    spool: SpoolOption = None,
    clusters: ClustersOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Print what a run has written so far, as it wrote it."""
    from dispatch_core.cli import logs

    return logs.logs(_session(store, spool, clusters, output), key, logs.Wanted(submission, number, tail, follow))


@app.command()
def cancel(
    key: KeyArgument,
    wait: Annotated[bool, typer.Option("--wait", help="Supervise until clean-up is complete.")] = False,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Kept in the record.")] = "",
    store: StoreOption = None,
    spool: SpoolOption = None,
    clusters: ClustersOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Cancel a job for good, and stop what is alive of it."""
    from dispatch_core.cli import asking

    return asking.cancel(_session(store, spool, clusters, output), key, wait, reason)


@app.command()
def hold(
    key: KeyArgument,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; shown to whoever looks.")],
    store: StoreOption = None,
    spool: SpoolOption = None,
    clusters: ClustersOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Ask that a job does not start.

    During a run it counts for the next start."""
    from dispatch_core.cli import asking

    return asking.hold(_session(store, spool, clusters, output), key, reason)


@app.command()
def release(
    key: KeyArgument,
    revision: RevisionOption = None,
    store: StoreOption = None,
    spool: SpoolOption = None,
    clusters: ClustersOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Lift every hold; launch again a job that waits for a person."""
    from dispatch_core.cli import asking

    return asking.release(_session(store, spool, clusters, output), key, revision)


@app.command()
def resolve(
    key: KeyArgument,
    result: Annotated[Came, typer.Argument(metavar="succeeded|failed", help="How it came out.")],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Kept in the record.")] = "",
    revision: RevisionOption = None,
    store: StoreOption = None,
    spool: SpoolOption = None,
    clusters: ClustersOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Say how a job came out that waits for a person."""
    from dispatch_core.cli import asking

    return asking.resolve(_session(store, spool, clusters, output), key, result.value, reason, revision)


@app.command()
def dispose(
    key: KeyArgument,
    what: Annotated[
        str, typer.Argument(metavar="WHAT", help="A foreign object's id, or an attempt that made nothing: 2.1")
    ],
    revision: RevisionOption = None,
    store: StoreOption = None,
    spool: SpoolOption = None,
    clusters: ClustersOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Say that a stray object or attempt does not matter.

    A foreign object, by its id; or an attempt that made no object, as SUBMISSION.ATTEMPT."""
    from dispatch_core.cli import asking

    return asking.dispose(_session(store, spool, clusters, output), key, what, revision)


@database.command()
def upgrade(store: StoreOption = None, output: OutputOption = Output.TEXT) -> int:
    """Make the store's tables, or bring them to this release."""
    from dispatch_core.cli import database as tables

    return tables.upgrade_store(_session(store, None, None, output))


@database.command()
def prune(
    settled_before: Annotated[
        str,
        typer.Option("--settled-before", metavar="WHEN", help="2026-01-31, 2026-01-31T18:00:00Z, or 30d: so long ago."),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Delete nothing; say how many it would be.")] = False,
    store: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Delete the records of jobs that were settled long ago, with their histories.

    A record goes if it is settled and nothing has changed it since WHEN; one that is not settled never does. Its key
    can then be submitted as if for the first time."""
    from dispatch_core.cli import database as tables

    return tables.prune_store(_session(store, None, None, output), settled_before, dry_run)
