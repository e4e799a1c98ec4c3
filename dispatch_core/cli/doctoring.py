"""What looks at clusters: `clusters` lists them, `doctor` asks one whether dispatch can use it.

One rule: a finding is printed as it comes, since the next one may take its time; what is bad is one too, no error.
"""

from __future__ import annotations

import msgspec

from dispatch_core.adapters.contract import Finding
from dispatch_core.adapters.kubernetes.cluster import KubernetesCluster
from dispatch_core.adapters.slurm.cluster import SlurmCluster
from dispatch_core.cli import exits
from dispatch_core.cli.session import Detached, Session
from dispatch_core.cli.session import run as run_to_end
from dispatch_core.clusters import Cluster, LocalCluster
from dispatch_core.errors import BadInput
from dispatch_core.places import examine

WORDS = {True: "ok", False: "bad", None: "note"}


def list_clusters(session: Session) -> int:
    found = [session.cluster(name) for name in session.cluster_names()]
    session.screen.result([{"type": _type(cluster), **msgspec.to_builtins(cluster)} for cluster in found])
    session.screen.table(("name", "type", "where"), [(each.name, _type(each), _where(each)) for each in found])
    return exits.FINE


def _type(cluster: Cluster) -> str:
    if isinstance(cluster, KubernetesCluster):
        return "kubernetes"
    return "slurm" if isinstance(cluster, SlurmCluster) else "local"


def _where(cluster: Cluster) -> str:
    if isinstance(cluster, LocalCluster):
        return cluster.spool
    if isinstance(cluster, KubernetesCluster):
        return f"namespace {cluster.namespace}" + (f" of {cluster.context}" if cluster.context else "")
    if cluster.ssh is None:
        return "this machine"
    return f"{cluster.ssh.user}@{cluster.ssh.host}" if cluster.ssh.user else cluster.ssh.host


def print_policies(session: Session, name: str) -> int:
    """Admission policies and a role, as YAML for `kubectl apply -f -`. Raises BadInput for another kind of cluster."""
    cluster = session.cluster(name)
    if not isinstance(cluster, KubernetesCluster):
        raise BadInput(f"{name} is a {_type(cluster)} cluster; only Kubernetes has admission policies")
    from dispatch_core.adapters.kubernetes.policies import printed

    text = printed(cluster)
    for line in text.splitlines():
        session.screen.line(line)
    session.screen.result({"cluster": name, "policies": text})
    return exits.FINE


def doctor(session: Session, name: str) -> int:
    cluster = session.cluster(name)

    async def work() -> list[Finding]:
        found = []
        async for finding in examine(cluster):
            found.append(finding)
            session.screen.line(f"{WORDS[finding.ok]:<5} {finding.name}: {finding.text}")
            session.screen.flush()
        return found

    try:
        found = run_to_end(work())
    except Detached as left:
        session.screen.say("left before all was looked at; nothing was changed")
        return exits.SIGNALLED + left.number
    bad = any(finding.ok is False for finding in found)
    session.screen.result({"cluster": name, "ok": not bad, "findings": found})
    return exits.UNEXPECTED if bad else exits.FINE
