"""Where things are by default, and which cluster a name means: the user's data directory, with store, spool, clusters.

One rule: whoever runs `dispatch` as the same user meets the same records and the same clusters, from the command line,
from Airflow and from Prefect, unless told otherwise. Naming a cluster reads a file; only opening it may connect.
"""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from dispatch_core.adapters.contract import Adapter, Finding
from dispatch_core.errors import BadInput
from dispatch_core.plan import Spec

if TYPE_CHECKING:
    from dispatch_core.clusters import Cluster, Clusters
    from dispatch_core.stores.contract import Store

LARGEST_TOKENS_BYTES = 65536
"""Of a file with tokens."""


def data_directory() -> Path:
    """`$DISPATCH_HOME`, else `dispatch` in the user's data directory (XDG)."""
    told = os.environ.get("DISPATCH_HOME")
    if told:
        return Path(told).absolute()
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data).absolute() / "dispatch"


def default_store() -> str:
    """The SQLAlchemy URL of the user's own SQLite file."""
    return f"sqlite:///{data_directory() / 'dispatch.db'}"


def is_served(url: str) -> bool:
    """Whether a store's URL is the address of a server, and not of a database."""
    return url.lower().startswith(("http://", "https://"))


def open_store(url: str, *, schema: str | None = None) -> Store:
    """The store at a SQLAlchemy URL, or at the address of a server; nothing is connected yet, and whoever opened it
    closes it. The token for a server is `$DISPATCH_TOKEN`, or in the file `$DISPATCH_TOKEN_FILE`. Raises BadInput."""
    if not is_served(url):
        from dispatch_core.stores import sql

        return sql.open_store(url, schema=schema)
    return open_served(url, _token())


def open_served(url: str, token: str | None) -> Store:
    """The store at the address of a server, which is shown this token; as `open_store`."""
    try:
        from dispatch_core.stores.http import HttpStore
        from dispatch_core.stores.line import Token
    except ModuleNotFoundError as error:
        raise BadInput(f"a store over HTTP needs {error.name}: pip install 'dispatch-supervisor[http]'") from error
    return HttpStore(url, Token(token))


def private_text(file: Path, what: str) -> str:
    """The text of a file that is the user's alone. Raises BadInput, which repeats nothing of it."""
    try:
        with file.open("rb") as opened:
            found = os.fstat(opened.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
                raise BadInput(f"{what} {file} is not yours alone: chmod 600 {file}; it was not read")
            data = opened.read(LARGEST_TOKENS_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{what} {file} cannot be read: {error.strerror or type(error).__name__}") from None
    if len(data) > LARGEST_TOKENS_BYTES:
        raise BadInput(f"{what} {file} is longer than {LARGEST_TOKENS_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BadInput(f"{what} {file} is not UTF-8 text") from None  # not chained: that error carries the bytes


def _token() -> str | None:
    """What a server is shown; None: nothing, which a server on this machine may do with."""
    token, file = os.environ.get("DISPATCH_TOKEN"), os.environ.get("DISPATCH_TOKEN_FILE")
    if token:
        return token
    return private_text(Path(file).expanduser(), "the token file").strip() if file else None


def default_spool() -> Path:
    """The spool of the user's own local scheduler."""
    return data_directory() / "spool"


def clusters(file: Path | None = None) -> Clusters:
    """What the clusters file says: the one that is given, else `$DISPATCH_CLUSTERS`, else the user's own, which need
    not be there. Raises BadInput."""
    from dispatch_core.clusters import load_clusters  # status and the like need no YAML

    told = file or (Path(os.environ["DISPATCH_CLUSTERS"]) if os.environ.get("DISPATCH_CLUSTERS") else None)
    return load_clusters((told or data_directory() / "clusters.yaml").expanduser(), needed=told is not None)


def find_cluster(name: str, *, spool: Path | None = None, file: Path | None = None) -> Cluster:
    """The cluster that a name means; `spool` is that of `local`, for which no file is read. Raises BadInput."""
    from dispatch_core.clusters import LOCAL, LocalCluster

    if name == LOCAL:
        return LocalCluster(name=LOCAL, spool=str((spool or default_spool()).absolute()))
    return clusters(file).find(name)


def open_cluster(cluster: Cluster) -> Adapter:
    """A connection to a cluster; who opens it closes it. Raises BadInput."""
    from dispatch_core.adapters.kubernetes.cluster import KubernetesCluster
    from dispatch_core.adapters.slurm.cluster import SlurmCluster

    if isinstance(cluster, SlurmCluster):
        from dispatch_core.adapters.slurm.scheduler import open_slurm

        opened: Adapter = open_slurm(cluster)
        return opened
    if isinstance(cluster, KubernetesCluster):
        from dispatch_core.adapters.kubernetes.scheduler import open_kubernetes

        opened = open_kubernetes(cluster)
        return opened
    from dispatch_core.adapters.local.scheduler import LocalScheduler  # most commands need no scheduler

    return LocalScheduler(Path(cluster.spool), slots=cluster.slots or os.cpu_count() or 1)


def open_scheduler(name: str, spool: Path | None = None, file: Path | None = None) -> Adapter:
    """A connection to the cluster that a job names; who opens it closes it. Raises BadInput for an unknown name."""
    return open_cluster(find_cluster(name, spool=spool, file=file))


def problems_on(name: str, spec: Spec, file: Path | None = None) -> list[tuple[tuple[str | int, ...], str]]:
    """What the cluster that a job names cannot launch, without connecting to it. Raises BadInput."""
    return problems_of(find_cluster(name, file=file), spec)


def problems_of(cluster: Cluster, spec: Spec) -> list[tuple[tuple[str | int, ...], str]]:
    """What a cluster cannot launch, without connecting to it or making anything that stays."""
    from dispatch_core.adapters.kubernetes.cluster import KubernetesCluster
    from dispatch_core.adapters.slurm.cluster import SlurmCluster

    if isinstance(cluster, SlurmCluster):
        from dispatch_core.adapters.slurm.script import problems

        found: list[tuple[tuple[str | int, ...], str]] = problems(spec)
        return found
    if isinstance(cluster, KubernetesCluster):
        from dispatch_core.adapters.kubernetes import checking

        return checking.problems(spec, cluster)
    from dispatch_core.adapters.local.scheduler import LocalScheduler

    with TemporaryDirectory(prefix="dispatch-check-") as scratch:
        return LocalScheduler(Path(scratch)).problems(spec)


async def examine(cluster: Cluster) -> AsyncIterator[Finding]:
    """What can be said of a cluster without submitting a job: whether dispatch can use it. A spool that is not there is
    made."""
    from dispatch_core.adapters.kubernetes.cluster import KubernetesCluster
    from dispatch_core.adapters.slurm.cluster import SlurmCluster

    if isinstance(cluster, SlurmCluster):
        from dispatch_core.adapters.slurm.doctor import examine

        async for finding in examine(cluster):
            yield finding
        return
    if isinstance(cluster, KubernetesCluster):
        from dispatch_core.adapters.kubernetes import doctor

        async for finding in doctor.examine(cluster):
            yield finding
        return
    try:
        await open_cluster(cluster).close()
    except BadInput as error:
        yield Finding(name="spool", ok=False, text=str(error))
    else:
        yield Finding(name="spool", ok=True, text=f"{cluster.spool} can be used")
