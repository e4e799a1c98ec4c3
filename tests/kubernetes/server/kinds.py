"""The resources that the server offers, one row each.

One rule: nothing else in the server knows a plural, a group or a version. The kinds of Kueue, JobSet, Trainer and the
training operator are there only where they are installed, as on a real cluster.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Resource:
    """One resource of the API."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    status: bool = True
    """Whether status is a subresource: a write to the object itself leaves status as it was."""
    custom: bool = False
    """Defined by a CustomResourceDefinition: no strategic merge patch, and items of a list tell their kind."""
    spec_fields: tuple[str, ...] = ()
    """What spec may hold; empty where the server does not know."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """As messages name it: `jobs.batch`, `pods`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified_kind(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind


JOB_FIELDS = (
    *("activeDeadlineSeconds", "backoffLimit", "backoffLimitPerIndex", "completionMode", "completions", "managedBy"),
    *("manualSelector", "maxFailedIndexes", "parallelism", "podFailurePolicy", "podReplacementPolicy", "selector"),
    *("successPolicy", "suspend", "template", "ttlSecondsAfterFinished"),
)
JOBSET_FIELDS = (
    *("coordinator", "failurePolicy", "managedBy", "network", "replicatedJobs", "startupPolicy", "successPolicy"),
    *("suspend", "ttlSecondsAfterFinished", "volumeClaimPolicies"),
)
TRAINJOB_FIELDS = (
    *("activeDeadlineSeconds", "annotations", "initializer", "labels", "managedBy", "podTemplateOverrides"),
    *("runtimePatches", "runtimeRef", "suspend", "trainer"),
)
PYTORCHJOB_FIELDS = ("elasticPolicy", "nprocPerNode", "pytorchReplicaSpecs", "runPolicy")

NAMESPACE = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
POD = Resource("", "v1", "pods", "Pod")
EVENT = Resource("", "v1", "events", "Event", status=False)
CONFIG_MAP = Resource("", "v1", "configmaps", "ConfigMap", status=False)
SECRET = Resource("", "v1", "secrets", "Secret", status=False)
SERVICE = Resource("", "v1", "services", "Service")
QUOTA = Resource("", "v1", "resourcequotas", "ResourceQuota")
JOB = Resource("batch", "v1", "jobs", "Job", spec_fields=JOB_FIELDS)
BUDGET = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
ADMISSION = "admissionregistration.k8s.io"
POLICY = Resource(ADMISSION, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", namespaced=False)
BINDING = Resource(
    ADMISSION, "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", False, status=False
)

KUEUE = "kueue.x-k8s.io"
WORKLOAD = Resource(KUEUE, "v1beta2", "workloads", "Workload", custom=True)
LOCAL_QUEUE = Resource(KUEUE, "v1beta2", "localqueues", "LocalQueue", custom=True)
CLUSTER_QUEUE = Resource(KUEUE, "v1beta2", "clusterqueues", "ClusterQueue", namespaced=False, custom=True)
PRIORITY_CLASS = Resource(KUEUE, "v1beta2", "workloadpriorityclasses", "WorkloadPriorityClass", False, False, True)
JOBSET = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet", custom=True, spec_fields=JOBSET_FIELDS)
TRAINJOB = Resource(
    "trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob", custom=True, spec_fields=TRAINJOB_FIELDS
)
PYTORCHJOB = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob", custom=True, spec_fields=PYTORCHJOB_FIELDS)

BUILT_IN = (NAMESPACE, POD, EVENT, CONFIG_MAP, SECRET, SERVICE, QUOTA, JOB, BUDGET, POLICY, BINDING)
KUEUE_KINDS = (WORKLOAD, LOCAL_QUEUE, CLUSTER_QUEUE, PRIORITY_CLASS)
EVERY = (*BUILT_IN, *KUEUE_KINDS, JOBSET, TRAINJOB, PYTORCHJOB)
