"""Whether dispatch can use a cluster: found out by asking, and by dry runs that make nothing.

One rule: nothing is made that stays. What is bad is what a person can do something about; that the server does not
enforce gate and deadline by itself is a note, with what that costs.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from dispatch_core.adapters.contract import Finding
from dispatch_core.adapters.kubernetes import kinds, policies
from dispatch_core.adapters.kubernetes.calls import REQUEST_SECONDS
from dispatch_core.adapters.kubernetes.cluster import KubernetesCluster
from dispatch_core.adapters.kubernetes.kinds import OWNER, POD, UID, WORKLOAD, Sort
from dispatch_core.adapters.kubernetes.scheduler import KubernetesScheduler
from dispatch_core.adapters.kubernetes.transport import Lost, NotSent
from dispatch_core.errors import BadInput, SchedulerUnavailable

PROBE_UID = "dispatchdoctor"
HOW = "`dispatch doctor NAME --policies` prints what an administrator can apply"


async def examine(cluster: KubernetesCluster) -> AsyncIterator[Finding]:
    """What is found of a cluster, as it is found. Raises BadInput where no connection can be tried."""
    adapter = KubernetesScheduler(cluster)
    try:
        async for finding in _findings(adapter):
            yield finding
    except (SchedulerUnavailable, NotSent, Lost) as error:
        yield Finding(name="server", ok=False, text=str(error))
    except BadInput as error:
        yield Finding(name="kubeconfig", ok=False, text=str(error))
    finally:
        await adapter.close()


async def _findings(adapter: KubernetesScheduler) -> AsyncGenerator[Finding, None]:
    answered = await adapter.api.request("GET", "/version", seconds=REQUEST_SECONDS)
    if not answered.well:
        yield Finding(name="server", ok=False, text=answered.message)
        return
    yield Finding(name="server", ok=True, text=f"Kubernetes {answered.body.get('gitVersion', '?')}")
    cluster = adapter.cluster
    wanted = [*adapter.lister.sorts, POD, OWNER, *([WORKLOAD] if cluster.kueue else [])]
    for sort in wanted:
        yield await _can_list(adapter, sort)
    yield await _can_create(adapter)
    async for finding in _enforced(adapter):
        yield finding
    bounds = adapter.bounds
    seconds = bounds.window_seconds + bounds.call_seconds + bounds.landing_seconds
    yield Finding(name="calls", ok=True, text=f"a call without an answer is settled after {seconds:g} s at most")


async def _can_list(adapter: KubernetesScheduler, sort: Sort) -> Finding:
    path = sort.path(adapter.cluster.namespace)
    answered = await adapter.lister.asked(path, {"labelSelector": UID, "limit": "1"})
    if answered.well:
        return Finding(name=sort.plural, ok=True, text=f"they can be listed in {adapter.cluster.namespace}")
    if answered.status == 404:
        return Finding(name=sort.plural, ok=False, text=f"the cluster has no {sort.kind} ({sort.api}); install it")
    return Finding(name=sort.plural, ok=False, text=answered.message)


async def _can_create(adapter: KubernetesScheduler) -> Finding:
    body = policies.probe_body("dispatch-probe-create", {}, {}, suspend=True)
    told = await adapter.probed(body)
    if told == "":
        return Finding(name="create", ok=True, text="a Job can be created (tried as a dry run)")
    return Finding(name="create", ok=False, text=told or "the server could not say; is one of its webhooks down?")


async def _enforced(adapter: KubernetesScheduler) -> AsyncIterator[Finding]:
    """What the server, and Kueue, keep by themselves."""
    await adapter.probe()
    if adapter.refuses_late:
        yield Finding(name="deadlines", ok=True, text="the server refuses a call after its deadline")
    else:
        text = f"the server does not refuse a call after its deadline, so a call counts as open for longer; {HOW}"
        yield Finding(name="deadlines", ok=None, text=text)
    told = await adapter.probed(policies.shut_probe(PROBE_UID))
    if told and policies.SHUT_MESSAGE in told:
        yield Finding(name="gate", ok=True, text="nobody but Open can unsuspend a gated object")
    else:
        yield Finding(name="gate", ok=None, text=f"whoever may change a gated object can unsuspend it; {HOW}")
    cluster = adapter.cluster
    if not cluster.kueue:
        if adapter.is_taken:
            text = "Kueue takes jobs that name no queue, so none is started; write kueue: true and a queue"
            yield Finding(name="kueue", ok=False, text=text)
        return
    if adapter.admission_gate:
        yield Finding(name="kueue", ok=True, text=f"it keeps the admission gate {kinds.KUEUE_GATE}")
    elif cluster.held_queue is not None:
        text = f"it has no admission gate; objects wait in {cluster.held_queue}, which must have stopPolicy Hold"
        yield Finding(name="kueue", ok=None, text=text)
    else:
        text = "it does not show that it keeps admission gates, so no job is started; have 0.19, or name held_queue"
        yield Finding(name="kueue", ok=False, text=text)
