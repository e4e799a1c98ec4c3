"""The block `DispatchJob`: a job's definition, saved on the Prefect server, that any flow can trigger and find again.

One rule: a block is configuration, and the run of a job that it triggers is a record. A `DispatchJobRun` holds no more
than the record's name, so that whoever was lost with it is made again by `attach`.
"""

from __future__ import annotations

from typing import Any

from prefect.blocks.abstract import JobBlock, JobRun
from pydantic import Field

from dispatch_core.errors import DispatchError
from dispatch_core.jobfile import read_plan
from dispatch_core.plan import Plan
from prefect_collection import errands
from prefect_collection.blocks import ClusterBlock, DispatchStore
from prefect_collection.connections import SERVER
from prefect_collection.errands import LAUNCH_SECONDS, SETTLE_SECONDS, Asker, OnTimeout, Wanted
from prefect_collection.pairs import paired
from prefect_collection.reruns import OnFlowRetry
from prefect_collection.results import CancelReceipt, JobResult, Submitted, result_of
from prefect_collection.tasks import spec_of


class DispatchJobRun(JobRun[JobResult]):
    """One job that was triggered, or found again; `submitted` says which."""

    def __init__(self, block: DispatchJob, submitted: Submitted) -> None:
        self.submitted = submitted
        self._block = block

    async def await_for_completion(
        self, *, on_timeout: OnTimeout = "detach", settle_seconds: float = SETTLE_SECONDS
    ) -> None:
        """Supervise the job until it is over. Raises JobFailed, JobCancelled; the rest is as in `wait_for_job`."""
        await errands.wait(await self._asker(), self._block.where, on_timeout=on_timeout, settle_seconds=settle_seconds)

    async def afetch_result(self) -> JobResult:
        """What the job came to. Raises JobFailed, JobCancelled, and DispatchError for one that has no outcome yet."""
        record = await errands.find(await self._asker())
        if record.outcome is None:
            raise DispatchError(f"job {record.key!r} has no outcome yet; wait for its completion first")
        return result_of(record)

    async def acancel(self, reason: str = "") -> CancelReceipt:
        """Cancel the job, as `cancel_job` does."""
        return await errands.cancel(await self._asker(), self._block.where, reason=reason)

    wait_for_completion = paired(await_for_completion)
    fetch_result = paired(afetch_result)
    cancel = paired(acancel)

    async def _asker(self) -> Asker:
        return await Asker.of(self.submitted, self._block.store or SERVER, across_runs=False)


class DispatchJob(JobBlock[JobResult]):
    """A long job, with its rules. What the fields mean is in `dispatch_job`.

    Attributes:
        key: Names the step within its flow run; with `across_runs`, the job's whole key.
        command: The program and its arguments.
        time_limit: Of each run, like "2h", or in seconds.
        environment: Variables of the run.
        secret_environment: Variables with secrets, by their source.
        working_directory: Where the command runs.
        spec: The other fields of a job file's `spec`.
        plan: A job file's `plan`.
        cluster: A cluster with Slurm.
        scheduler: Without a cluster: "local", or a name in the clusters file or of a saved block.
        store: Where the record is kept. Without one: the Prefect server's own database.
        across_runs: Several flow runs may have the job.
        on_flow_retry: Whether a flow run that is retried launches a job of an earlier run again that failed.

    Example:
        ```python
        from prefect_collection.job_block import DispatchJob

        job = DispatchJob.load("BLOCK_NAME")
        run = job.trigger()
        run.wait_for_completion()
        result = run.fetch_result()
        ```
    """

    _block_type_name = "Dispatch Job"
    _block_type_slug = "dispatch-job"
    _description = "A long job that dispatch launches, never twice, and keeps one record of."

    key: str = Field(
        title="Key",
        description="Names the step within its flow run; with across_runs, the job's whole key.",
    )
    command: list[str] = Field(title="Command", description="The program and its arguments.")
    time_limit: float | str | None = Field(
        default=None, title="Time limit", description="Of each run, like 2h, or in seconds."
    )
    environment: dict[str, str] | None = Field(
        default=None, title="Environment", description="Variables of the run; no secrets."
    )
    secret_environment: dict[str, dict[str, str]] | None = Field(
        default=None,
        title="Secrets",
        description="Variables with secrets, each by its source: a file, a variable or the name of a Secret block.",
    )
    working_directory: str | None = Field(
        default=None, title="Working directory", description="Where the command runs."
    )
    spec: dict[str, Any] | None = Field(
        default=None, title="Spec", description="The other fields of a job file's spec."
    )
    plan: dict[str, Any] | None = Field(
        default=None, title="Plan", description="A job file's plan: when the job runs again."
    )
    cluster: ClusterBlock | None = Field(default=None, title="Cluster", description="With Slurm or Kubernetes.")
    scheduler: str = Field(
        default="local",
        title="Scheduler",
        description="Without a cluster: local, or a name in the clusters file or of a saved block of a cluster.",
    )
    store: DispatchStore | None = Field(
        default=None,
        title="Store",
        description="Where the record is kept. Without one: the Prefect server's own database.",
    )
    across_runs: bool = Field(
        default=False, title="Across runs", description="The key is the whole key, and several flow runs have the job."
    )
    on_flow_retry: OnFlowRetry = Field(
        default="reattach",
        title="On flow retry",
        description="Whether a flow run that is retried launches a job of its earlier runs again that failed.",
    )

    @property
    def where(self) -> ClusterBlock | str:
        """The cluster, or the scheduler's name."""
        return self.cluster or self.scheduler

    async def atrigger(self, *, launch_seconds: float = LAUNCH_SECONDS) -> DispatchJobRun:
        """Submit the job, or find the one that is there, as `submit_job` does."""
        wanted = Wanted(
            spec=spec_of(
                self.command,
                self.time_limit,
                self.environment,
                self.secret_environment,
                self.working_directory,
                self.spec,
            ),
            plan=Plan() if self.plan is None else read_plan(self.plan),
            scheduler=self.where,
            on_flow_retry=self.on_flow_retry,
        )
        return DispatchJobRun(
            self, await errands.submit(await self._asker(self.key), wanted, launch_seconds=launch_seconds)
        )

    async def aattach(self, key: str | None = None) -> DispatchJobRun:
        """The job that was triggered before, in this flow run or, with `across_runs`, in any; nothing is submitted.

        `key`: of the step, where it is not the block's own. Raises NotFound.
        """
        record = await errands.find(await self._asker(key or self.key))
        return DispatchJobRun(self, Submitted(key=record.key, uid=record.uid, scheduler=record.scheduler))

    trigger = paired(atrigger)
    attach = paired(aattach)

    async def _asker(self, key: str) -> Asker:
        return await Asker.of(key, self.store or SERVER, across_runs=self.across_runs)
