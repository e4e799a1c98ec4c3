"""The commands that ask nothing of a job: `clusters` and `doctor` tell of clusters, `serve` shows a store to others,
`simulate` and `demo` show what dispatch does in worlds of their own.

One rule: as in `app`, nothing slow is imported here.
"""

from __future__ import annotations

from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from dispatch_core.cli.app import ClustersOption, Output, OutputOption, SpoolOption, StoreOption, app
from dispatch_core.cli.screen import Screen
from dispatch_core.cli.session import Session
from dispatch_core.errors import BadInput

__all__ = ["app"]


class Engine(StrEnum):
    """What can be thrown away."""

    AIRFLOW = "airflow"
    PREFECT = "prefect"


@app.command(name="clusters")
def list_clusters(
    spool: SpoolOption = None, clusters: ClustersOption = None, output: OutputOption = Output.TEXT
) -> int:
    """List the clusters that a job may name; nothing is connected to."""
    from dispatch_core.cli import doctoring

    screen = Screen(as_json=output is Output.JSON)
    return doctoring.list_clusters(Session(store=None, spool=spool, screen=screen, clusters=clusters))


@app.command()
def doctor(
    cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help="The cluster's name; local is this machine.")],
    spool: SpoolOption = None,
    clusters: ClustersOption = None,
    output: OutputOption = Output.TEXT,
    policies: Annotated[
        bool,
        typer.Option(
            "--policies", help="Print what a Kubernetes administrator can apply, and ask the cluster nothing."
        ),
    ] = False,
) -> int:
    """Look at a cluster, and say what would keep dispatch from using it; no job is submitted.

    Exits with 1 if something is bad."""
    from dispatch_core.cli import doctoring

    screen = Screen(as_json=output is Output.JSON)
    if policies:
        session = Session(store=None, spool=spool, screen=screen, clusters=clusters)
        return doctoring.print_policies(session, cluster)
    return doctoring.doctor(Session(store=None, spool=spool, screen=screen, clusters=clusters), cluster)


@app.command()
def serve(
    bind: Annotated[
        str, typer.Option("--bind", metavar="HOST:PORT", help="Where to listen; port 0 takes a free one.")
    ] = "127.0.0.1:8642",
    token_file: Annotated[
        list[Path] | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="Lines of `read|act|store NAME TOKEN`, in a file of mode 600; may be given more than once.",
        ),
    ] = None,
    store: StoreOption = None,
    spool: SpoolOption = None,
    clusters: ClustersOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Serve the store over HTTP, and a page of its jobs, until Ctrl-C.

    Without --token-file only this machine is answered, and nothing can be changed. A token may read; act: cancel, hold
    and the like, on the pages; or store: all that a database's user may, as supervisors elsewhere need it."""
    from dispatch_core.cli import serving

    session = Session(store=store or None, spool=spool, screen=Screen(as_json=output is Output.JSON), clusters=clusters)
    return serving.serve(session, bind, token_file or [])


@app.command()
def simulate(
    seeds: Annotated[
        str | None, typer.Option("--seeds", metavar="A:B", help="From seed A to below B; default 0:1000.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="This one history.", min=0)] = None,
    lasting: Annotated[
        str | None, typer.Option("--for", metavar="DURATION", help="As many as fit into it: 10m.")
    ] = None,
    supervisors: Annotated[int, typer.Option("--supervisors", help="At most so many at once.", min=1, max=3)] = 3,
    faults: Annotated[str, typer.Option("--faults", metavar="all|none|NAME,...", help="What may go wrong.")] = "all",
    guard_off: Annotated[
        str, typer.Option("--guard-off", metavar="NAME,...", help="Take these conditions away, and nothing else.")
    ] = "",
    guards: Annotated[
        bool,
        typer.Option("--guards", help="Take each guard away in turn (or those of --guard-off), until it is missed."),
    ] = False,
    points: Annotated[
        bool, typer.Option("--points", help="A crash and a stall at every single point of each seed's plan.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", help="Programs side by side; default: one a core.", min=1)
    ] = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Run the real supervisor in a world in which everything goes wrong, and check every promise.

    Exits with 1 on a broken promise, on a kind of fault that never came, and on histories that are too tame."""
    from dispatch_core.cli import simulating

    screen = Screen(as_json=output is Output.JSON)
    if (guards or points) and (lasting is not None or (guards and (points or seed is not None))):
        raise BadInput("--guards and --points exclude each other and --for; --guards takes --seeds")
    if points and (faults != "all" or guard_off or workers is not None):
        raise BadInput("--points has no faults but its own, one worker, and every guard: give --seeds or --seed alone")
    if guards:
        return simulating.guards(
            screen, seeds=seeds, supervisors=supervisors, faults=faults, only=guard_off, workers=workers
        )
    if points:
        return simulating.points(screen, seeds=seeds, seed=seed, supervisors=supervisors)
    return simulating.simulate(
        screen,
        seeds=seeds,
        seed=seed,
        lasting=lasting,
        supervisors=supervisors,
        faults=faults,
        guard_off=guard_off,
        workers=workers,
    )


if find_spec("dispatch_core.demo") is not None:

    @app.command()
    def demo(
        engine: Annotated[Engine, typer.Option("--engine", help="In which engine.")] = Engine.AIRFLOW,
        keep: Annotated[bool, typer.Option("--keep", help="Leave the engine's page up, and say where.")] = False,
        output: OutputOption = Output.TEXT,
    ) -> int:
        """Show a job that outlives its supervisor, in a throwaway Airflow or Prefect."""
        return int(import_module("dispatch_core.demo").run(engine.value, keep, output is Output.JSON))
