"""Which cluster a task's job runs on: a name of the clusters file, or a connection of the type `slurm_ssh` or, as
Airflow's own Kubernetes provider has it, `kubernetes`.

One rule: a connection says how a cluster is reached and holds no secret: a private key or a kubeconfig is named by its
path on the host of the triggerer, and what a record or a trigger holds of all this is the connection's id. A connection
is looked up once in a process, for the reason that `hook` gives.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider.hook import read_extra
from dispatch_core.clusters import LOCAL, Cluster, read_kubernetes, read_slurm
from dispatch_core.errors import BadInput, DispatchError
from dispatch_core.places import examine, find_cluster

if TYPE_CHECKING:
    from airflow.sdk import Connection

TYPE = "slurm_ssh"
KUBERNETES = "kubernetes"

FIELDS = (
    *("key_file", "known_hosts", "directory", "bin", "slurm_conf"),
    *("poll", "absence", "submits_per_second", "live_jobs", "keep", "keep_secrets"),
)
NUMBERS = ("submits_per_second", "live_jobs")
"""What a form gives as text."""

AIRFLOWS_FIELDS = {"kube_config_path": "kubeconfig", "cluster_context": "context", "namespace": "namespace"}
"""What a connection of Airflow's Kubernetes provider says, by the names of a clusters file."""
REFUSED = {
    "kube_config": "has a kubeconfig in it; dispatch takes a file: give kube_config_path, or in_cluster",
    "disable_verify_ssl": "does not verify the API server; dispatch always does: leave disable_verify_ssl out",
}
"""And what of that dispatch does not do."""
WITHOUT_MEANING = ("disable_tcp_keepalive", "xcom_sidecar_container_image", "xcom_sidecar_container_resources")
"""What is for Airflow's own operators."""
IN_CLUSTER = "in_cluster"
OUR_FIELDS = ("kinds", "kueue", "queue", "held_queue", "image", "poll", "absence", "keep", "proxy")

_found: dict[str, Cluster] = {}
"""What was looked up in this process."""


def cluster(scheduler: str, conn_id: str | None, spool: Path | None = None) -> Cluster:
    """The cluster that a record names, in a worker: by the connection of a task that has this very name, else by the
    clusters file. Raises BadInput."""
    if conn_id is None or scheduler != conn_id:
        return find_cluster(scheduler, spool=spool)
    if conn_id not in _found:
        try:
            connection = BaseHook.get_connection(conn_id)
        except AirflowNotFoundException:
            raise _undefined(conn_id) from None
        _found[conn_id] = read_connection(connection)
    return _found[conn_id]


async def acluster(scheduler: str, conn_id: str | None, spool: Path | None = None) -> Cluster:
    """As `cluster`, in a trigger."""
    if conn_id is None or scheduler != conn_id:
        return await asyncio.to_thread(find_cluster, scheduler, spool=spool)
    if conn_id not in _found:
        try:
            connection = await BaseHook.aget_connection(conn_id)
        except AirflowNotFoundException:
            raise _undefined(conn_id) from None
        _found[conn_id] = read_connection(connection)
    return _found[conn_id]


def forget(conn_id: str | None) -> None:
    """Look a connection up again the next time: what it said did not lead to a cluster."""
    if conn_id is not None:
        _found.pop(conn_id, None)


def _undefined(conn_id: str) -> BadInput:
    return BadInput(
        f"the connection {conn_id!r} is not defined here, or Airflow did not answer; define it, best in the environment"
        f" of every worker and triggerer: AIRFLOW_CONN_{conn_id.upper()}="
        f"""'{{"conn_type": "{TYPE}", "host": "...", "login": "..."}}'"""
    )


def read_connection(connection: Connection) -> Cluster:
    """The cluster that a connection describes, under the connection's id. Raises BadInput in one line."""
    named = f"the connection {connection.conn_id!r}"
    readers = {TYPE: _slurm, KUBERNETES: _kubernetes}
    if connection.conn_type not in readers:
        raise BadInput(f"{named} has the type {connection.conn_type!r}; make it one of type {' or '.join(readers)}")
    if connection.conn_id == LOCAL:
        raise BadInput(f"{named} has the name that is built in for this machine; choose another one")
    return readers[connection.conn_type](connection, named)


def _slurm(connection: Connection, named: str) -> Cluster:
    if connection.password:
        raise BadInput(
            f"{named} has a password; dispatch logs in with a key: leave it out, and give key_file or an agent"
        )
    reached = {"host": connection.host, "port": connection.port, "user": connection.login}
    fields: dict[str, Any] = {name: value for name, value in reached.items() if value not in (None, "")}
    for name, value in read_extra(connection, named, FIELDS).items():
        fields[name] = _number(value) if name in NUMBERS and isinstance(value, str) else value
    return read_slurm(connection.conn_id, fields, named)


def _kubernetes(connection: Connection, named: str) -> Cluster:
    names = (*AIRFLOWS_FIELDS, IN_CLUSTER, *REFUSED, *WITHOUT_MEANING, *OUR_FIELDS)
    given = read_extra(connection, named, names)
    for name, said in REFUSED.items():
        if given.pop(name, None):
            raise BadInput(f"{named} {said}")
    if given.pop(IN_CLUSTER, False) and given.keys() & {"kube_config_path", "cluster_context"}:
        raise BadInput(f"{named} has in_cluster, and a kubeconfig; leave one of them out")
    fields = {AIRFLOWS_FIELDS.get(n, n): value for n, value in given.items() if n not in WITHOUT_MEANING}
    return read_kubernetes(connection.conn_id, fields, named)


def _number(text: str) -> object:
    if re.fullmatch(r"\d{1,7}", text, re.ASCII):
        return int(text)
    return float(text) if re.fullmatch(r"\d{1,7}\.\d{1,7}", text, re.ASCII) else text


class SlurmSshHook(BaseHook):
    """The connection type in Airflow's forms; tasks use `DispatchOperator(scheduler_conn_id=...)`."""

    conn_name_attr = "scheduler_conn_id"
    default_conn_name = "slurm_default"
    conn_type = TYPE
    hook_name = "Slurm for dispatch"

    def __init__(self, scheduler_conn_id: str = default_conn_name, **options: Any) -> None:
        super().__init__(**options)
        self.scheduler_conn_id = scheduler_conn_id

    def get_conn(self) -> Cluster:
        """What the connection says."""
        return cluster(self.scheduler_conn_id, self.scheduler_conn_id)

    def test_connection(self) -> tuple[bool, str]:
        """Whether dispatch can use the cluster from this host, and one line about it: what `dispatch doctor` finds."""

        async def first_bad() -> str:
            async for finding in examine(read_connection(self.get_connection(self.scheduler_conn_id))):
                if finding.ok is False:
                    return f"{finding.name}: {finding.text}"
            return ""

        try:
            bad = asyncio.run(first_bad())
        except DispatchError as error:
            bad = str(error)
        return not bad, bad or "the cluster answers, and nothing keeps dispatch from using it"
