"""What a person says about one Kubernetes cluster: how it is reached, and what dispatch may do there.

One rule: what the cluster itself can be asked (its policies, Kueue's admission gate) is not set here.
"""

from __future__ import annotations

from dispatch_core.plan import Value


class KubernetesCluster(Value, frozen=True):
    """One namespace of one cluster, under the name that jobs and records call it by."""

    name: str
    namespace: str = "default"
    kubeconfig: str | None = None
    """Its path; None: the pod's own service account where this runs in a pod, else `$KUBECONFIG` or
    `~/.kube/config`."""
    context: str | None = None
    """Of the kubeconfig; None: its current one."""
    kinds: tuple[str, ...] = ("Job",)
    """The kinds of objects that are listed and may be launched here."""
    kueue: bool = False
    """Jobs go through Kueue: the gate is its admission gate, and the hold its Workload's `active`."""
    queue: str | None = None
    """The LocalQueue of jobs that name none."""
    held_queue: str | None = None
    """A LocalQueue with stopPolicy Hold, for a Kueue without the admission gate: objects are created in it, and opened
    by a move to their own queue."""
    image: str | None = None
    """The image of jobs that name none."""
    poll_seconds: float = 3.0
    """The shortest time between two listings, however many jobs there are."""
    absence_seconds: float = 60.0
    """What complete listings in a row must span before anything missing from them is gone."""
    keep_seconds: float = 30 * 86400.0
    """How old an ended object of a settled job gets before it is deleted, with its pods and their logs."""
    proxy_seconds: float = 30.0
    """How long a proxy or load balancer before the API server may keep a request that it took; 0: there is none."""
