"""The blocks: where the records of jobs are kept and the local scheduler has its spool, and how a cluster is reached.

One rule: a block is configuration and opens nothing. Pydantic is used here because Prefect's blocks demand it, and no
further in.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect.blocks.core import Block
from pydantic import ConfigDict, Field, SecretStr, model_validator

from dispatch_core.adapters.kubernetes import cluster as kubernetes
from dispatch_core.adapters.slurm import cluster as slurm
from dispatch_core.clusters import LOCAL, Cluster, read_kubernetes, read_slurm
from dispatch_core.errors import BadInput
from dispatch_core.places import is_served

SERVER_SCHEMA = "dispatch"
"""The PostgreSQL schema that holds our tables in Prefect's own database: a reset of that database leaves it alone."""


class DispatchStore(Block):
    """The store of a job's record: the Prefect server's own database, one of your own, a server of dispatch, or the
    user's own SQLite file.

    Attributes:
        url: A SQLAlchemy URL, `sqlite:////path/jobs.db` or `postgresql://user@host/name`; or the address of a server of
            dispatch, `https://host/dispatch`.
        token: What that server is shown. Without one: `$DISPATCH_TOKEN`, or the file `$DISPATCH_TOKEN_FILE`.
        server: Use the database of the Prefect server itself, after `python -m prefect_collection.setup`.
        database_schema: The PostgreSQL schema that holds the tables.
        spool: The directory of the local scheduler.

    Example:
        ```python
        from prefect_collection.blocks import DispatchStore

        await DispatchStore(url="https://jobs.example/dispatch", token="...").save("jobs")
        store = DispatchStore.load("BLOCK_NAME")
        ```
    """

    _block_type_name = "Dispatch Store"
    _block_type_slug = "dispatch-store"
    _description = "Where dispatch keeps the record of every job."

    url: SecretStr | None = Field(
        default=None,
        title="URL",
        description="A SQLAlchemy URL, or the address of a server of dispatch. "
        "Without one: the SQLite file of the user who runs the flow.",
    )
    token: SecretStr | None = Field(
        default=None,
        title="Token",
        description="For a server of dispatch. Without one: $DISPATCH_TOKEN where the flow runs, if it is set there.",
    )
    server: bool = Field(
        default=False,
        title="The Prefect server's own database",
        description="Needs the server's database settings where the flow runs; refused where they lead elsewhere.",
    )
    database_schema: str | None = Field(
        default=None,
        title="Schema",
        description=f"PostgreSQL only. In the server's own database it is {SERVER_SCHEMA!r} unless told otherwise.",
    )
    spool: Path | None = Field(
        default=None,
        title="Spool directory",
        description="Of the local scheduler. Without one: in the data directory of the user who runs the flow.",
    )

    @classmethod
    def of_server(cls, **options: Any) -> DispatchStore:
        """The store in the Prefect server's own database; `options` are the other fields."""
        return cls(server=True, **options)

    @model_validator(mode="after")
    def _one_store(self) -> DispatchStore:
        if self.server and self.url is not None:
            raise ValueError("give a URL, or server=True for the Prefect server's own database, not both")
        served = self.url is not None and is_served(self.url.get_secret_value())
        if self.token is not None and not served:
            raise ValueError("a token is for the address of a server of dispatch, like https://host/dispatch")
        if self.database_schema is not None and served:
            raise ValueError("a schema is chosen where the database is served, not by who asks that server")
        return self


class SlurmCluster(Block):
    """A cluster with Slurm, as a clusters file describes one. It holds no secret: a private key is named by its path.

    Attributes:
        name: What records call the cluster by. Without it: the name that the block is saved under.
        host: The submission host. Without one, Slurm's commands run where the flow runs.
        port: Of the host's SSH server.
        user: Who logs in there.
        key_file: The path of a private key where the flow runs.
        known_hosts: The path of the file that the host's key must be in.
        directory: A folder on the cluster that every node sees.
        bin: The folder with Slurm's commands there.
        slurm_conf: The path of slurm.conf there.
        poll: The shortest time between two listings, like "3s".
        absence: What listings must span before a job that is missing from them is gone.
        submits_per_second: At most so many.
        live_jobs: At most so many in the queue.
        keep: How long logs and notes of jobs that left the queue are kept, like "30d".
        keep_secrets: How long their secrets are, like "1h".

    Example:
        ```python
        from prefect_collection.blocks import SlurmCluster

        await SlurmCluster(host="login.alps.example", user="ann", key_file="~/.ssh/id_ed25519").save("alps")
        cluster = SlurmCluster.load("BLOCK_NAME")
        ```
    """

    _block_type_name = "Dispatch Slurm Cluster"
    _block_type_slug = "dispatch-slurm-cluster"
    _description = "How dispatch reaches a cluster with Slurm."

    # What is wrong may be a key in place of its path: it is not shown.
    model_config = ConfigDict(hide_input_in_errors=True)

    name: str | None = Field(
        default=None,
        title="Name",
        description="What records call the cluster by. Without it: the name that the block is saved under.",
    )
    host: str | None = Field(
        default=None,
        title="Submission host",
        description="Without one, Slurm's commands run where the flow runs.",
    )
    port: int | None = Field(default=None, title="Port", description="Of that host's SSH server; 22 without it.")
    user: str | None = Field(default=None, title="User", description="Who logs in there.")
    key_file: str | None = Field(
        default=None,
        title="Private key",
        description="Its path where the flow runs, never the key itself. Without one: the agent's and the user's own.",
    )
    known_hosts: str | None = Field(
        default=None, title="Known hosts", description="The file that the host's key must be in."
    )
    directory: str | None = Field(
        default=None, title="Directory", description="A folder on the cluster that every node sees."
    )
    bin: str | None = Field(default=None, title="Slurm's commands", description="Their folder on the cluster.")
    slurm_conf: str | None = Field(default=None, title="slurm.conf", description="Its path on the cluster.")
    poll: float | str | None = Field(
        default=None, title="Poll", description="The shortest time between two listings, like 3s."
    )
    absence: float | str | None = Field(
        default=None,
        title="Absence",
        description="What listings must span before a job that is missing from them is gone, like 60s.",
    )
    submits_per_second: float | None = Field(default=None, title="Submits a second", description="At most so many.")
    live_jobs: int | None = Field(default=None, title="Live jobs", description="At most so many in the queue.")
    keep: float | str | None = Field(
        default=None,
        title="Keep",
        description="How long logs and notes of jobs that left the queue are kept, like 30d.",
    )
    keep_secrets: float | str | None = Field(
        default=None, title="Keep secrets", description="How long their secrets are, like 1h."
    )

    def described(self) -> slurm.SlurmCluster:
        """The cluster that the block means. Raises BadInput where it has no name yet."""
        return read_slurm(*_given(self))

    @model_validator(mode="after")
    def _can_be_read(self) -> SlurmCluster:
        _check(self, read_slurm)
        return self


class KubernetesCluster(Block):
    """A namespace of a cluster with Kubernetes, as a clusters file describes one. It holds no secret: a kubeconfig is
    named by its path.

    Attributes:
        name: What records call the cluster by. Without it: the name that the block is saved under.
        namespace: Where the objects are made.
        kubeconfig: Its path where the flow runs. Without one: the pod's own service account, or the user's own file.
        context: Of the kubeconfig.
        kinds: The kinds of objects that are listed and may be launched, like ["Job", "JobSet"].
        kueue: Jobs go through Kueue.
        queue: The LocalQueue of jobs that name none.
        held_queue: A LocalQueue that is held, for a Kueue without the admission gate.
        image: The image of jobs that name none.
        poll: The shortest time between two listings, like "3s".
        absence: What listings must span before a job that is missing from them is gone.
        keep: How old an ended object of a settled job gets before it is deleted, like "30d".
        proxy: How long a proxy before the API server may keep a request; "0s": there is none.

    Example:
        ```python
        from prefect_collection.blocks import KubernetesCluster

        await KubernetesCluster(namespace="training", kinds=["Job", "JobSet"]).save("alps")
        cluster = KubernetesCluster.load("BLOCK_NAME")
        ```
    """

    _block_type_name = "Dispatch Kubernetes Cluster"
    _block_type_slug = "dispatch-kubernetes-cluster"
    _description = "How dispatch reaches a cluster with Kubernetes."

    # What is wrong may be a kubeconfig in place of its path: it is not shown.
    model_config = ConfigDict(hide_input_in_errors=True)

    name: str | None = Field(
        default=None,
        title="Name",
        description="What records call the cluster by. Without it: the name that the block is saved under.",
    )
    namespace: str | None = Field(default=None, title="Namespace", description="Where the objects are made.")
    kubeconfig: str | None = Field(
        default=None,
        title="kubeconfig",
        description="Its path where the flow runs. Without one: the pod's own service account, or the user's own file.",
    )
    context: str | None = Field(default=None, title="Context", description="Of the kubeconfig.")
    kinds: list[str] | None = Field(
        default=None, title="Kinds", description="Of objects that are listed and may be launched; only Job without it."
    )
    kueue: bool = Field(default=False, title="Kueue", description="Jobs go through Kueue.")
    queue: str | None = Field(default=None, title="Queue", description="The LocalQueue of jobs that name none.")
    held_queue: str | None = Field(
        default=None,
        title="Held queue",
        description="A LocalQueue that is held, for a Kueue without the admission gate.",
    )
    image: str | None = Field(default=None, title="Image", description="Of jobs that name none.")
    poll: float | str | None = Field(
        default=None, title="Poll", description="The shortest time between two listings, like 3s."
    )
    absence: float | str | None = Field(
        default=None,
        title="Absence",
        description="What listings must span before a job that is missing from them is gone, like 60s.",
    )
    keep: float | str | None = Field(
        default=None,
        title="Keep",
        description="How old an ended object of a settled job gets before it is deleted, like 30d.",
    )
    proxy: float | str | None = Field(
        default=None,
        title="Proxy",
        description="How long a proxy before the API server may keep a request; 0s: there is none.",
    )

    def described(self) -> kubernetes.KubernetesCluster:
        """The cluster that the block means. Raises BadInput where it has no name yet."""
        return read_kubernetes(*_given(self))

    @model_validator(mode="after")
    def _can_be_read(self) -> KubernetesCluster:
        _check(self, read_kubernetes)
        return self


ClusterBlock = SlurmCluster | KubernetesCluster


def _given(block: ClusterBlock, name: str = "") -> tuple[str, dict[str, object], str]:
    """What a reader of clusters takes: the name, the fields, and what to call the block by. Raises BadInput."""
    name = name or block.name or block._block_document_name or ""
    if not name:
        raise BadInput(
            f"a {type(block).__name__} block has no name, which records call the cluster by; give it one, or save it"
        )
    given = {field: getattr(block, field) for field in type(block).model_fields if field != "name"}
    fields = {field: value for field, value in given.items() if value is not False and value not in (None, "")}
    return name, fields, f"the block {name!r}"


def _check(block: ClusterBlock, read: Callable[[str, dict[str, object], str], Cluster]) -> None:
    """Raises ValueError for what makes no cluster."""
    strange = [name for name in block.model_extra or {} if not name.startswith(("_", "block_"))]
    if strange:
        raise ValueError(f"there is no field {strange[0]!r}; there are {', '.join(type(block).model_fields)}")
    if block.name == LOCAL:
        raise ValueError(f"the name {LOCAL!r} is built in for the machine of the flow; choose another one")
    try:
        read(*_given(block, block.name or "that is read"))
    except BadInput as wrong:
        raise ValueError(str(wrong)) from None
