"""The operator: submits a job or finds the one that the task has already, defers, and tells how it ended.

One rule: the record decides. The worker writes it, or attaches to it, and launches nothing; a retry after a lost worker
finds the same job; and what is returned or raised in the end is read from the record, never from an event. Which job is
a task's is for `identity` and `submission` to say.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowRuntimeError

from airflow_provider import identity
from airflow_provider.clusters import cluster
from airflow_provider.ending import cancel_if_ended
from airflow_provider.failures import failure
from airflow_provider.hook import DEFAULT, settings
from airflow_provider.links import XCOM, DispatchJobLink
from airflow_provider.secrets import read_secret
from airflow_provider.submission import Wanted, plan_of_retries, result, submit
from airflow_provider.trigger import SETTLE_SECONDS, DispatchTrigger
from dispatch_core.clusters import LOCAL
from dispatch_core.errors import BadInput, StoreUnavailable
from dispatch_core.jobfile import read_plan, read_seconds, read_spec
from dispatch_core.places import problems_of
from dispatch_core.plan import Plan, Spec
from dispatch_core.record import Record, Result
from dispatch_core.stores.contract import Store

if TYPE_CHECKING:
    from airflow.sdk import Context

AGAIN_SECONDS = (5.0, 10.0, 20.0, 40.0)
"""How long a worker waits for a store that does not answer, once, twice, ...; then the try fails."""

T = TypeVar("T")


class DispatchOperator(BaseOperator):
    """Runs one long external job under a supervisor, without holding a worker while it waits or runs.

    :param command: the program and its arguments; no shell splits them. Or give `spec`.
    :param time_limit: a run is ended by the scheduler after it: seconds, a timedelta, or text like "2h".
    :param environment: variables for the job; public: stored, shown and logged.
    :param working_directory: where it runs.
    :param spec: all of the above and more in a mapping, in the words of a job file.
    :param plan: recovery rules, in the words of a job file, or a `Plan`. Without it `retries`, `retry_delay`,
        `retry_exponential_backoff` and `max_retry_delay` become one rule that resubmits the job.
    :param scheduler: which cluster runs it: "local", the triggerer's own host, or a name in the clusters file of the
        workers and triggerers.
    :param scheduler_conn_id: or the connection of type `slurm_ssh` that says how the cluster is reached. The record
        calls the cluster by it, so the clusters file of a `dispatch supervise` beside Airflow has to as well.
    :param key: what the job is called; None: one of its own for each task instance, and a new one after a clear. A key
        that is given names one job for good: a task that finds it ended returns, or fails with, its outcome.
    :param dispatch_conn_id: the connection that names the database of the records.
    :param settle_seconds: how long the task waits, after the job's outcome, until nothing of it is left. On Slurm that
        is not before its last submit can no longer land, some 6 minutes where slurm.conf sets no `ttl`; what is left
        then is for `dispatch supervise`.

    The task returns {"key", "uid", "outcome", "cause", "exit_code", "submissions", "runs", "objects"}. It raises
    JobFailed, JobCancelled or JobChanged, which Airflow does not try again. `execution_timeout`, which Airflow does not
    keep while a task is deferred, cancels the job.
    """

    template_fields: Sequence[str] = (
        "command",
        "time_limit",
        "environment",
        "working_directory",
        "spec",
        "key",
        "scheduler_conn_id",
        "dispatch_conn_id",
    )
    ui_color = "#d6e4f0"
    operator_extra_links = (DispatchJobLink(),)

    def __init__(
        self,
        *,
        command: Sequence[str] | None = None,
        time_limit: float | str | timedelta | None = None,
        environment: Mapping[str, str] | None = None,
        working_directory: str | None = None,
        spec: Mapping[str, Any] | None = None,
        plan: Mapping[str, Any] | Plan | None = None,
        scheduler: str = LOCAL,
        scheduler_conn_id: str | None = None,
        key: str | None = None,
        dispatch_conn_id: str = DEFAULT,
        settle_seconds: float = SETTLE_SECONDS,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.command = command
        self.time_limit = time_limit
        self.environment = environment
        self.working_directory = working_directory
        self.spec = spec
        self.plan = read_plan(plan) if isinstance(plan, Mapping) else plan
        self.scheduler = scheduler
        self.scheduler_conn_id = scheduler_conn_id
        self.key = key
        self.dispatch_conn_id = dispatch_conn_id
        self.settle_seconds = settle_seconds
        self._killed = False
        if (command is None) == (spec is None):
            raise BadInput(f"task {self.task_id}: give command or spec, one of the two")
        if not scheduler or (scheduler_conn_id is not None and scheduler != LOCAL):
            raise BadInput(
                f"task {self.task_id}: give scheduler, a cluster's name, or scheduler_conn_id, one of the two"
            )

    def execute(self, context: Context) -> dict[str, Any]:
        """Submit the job, or attach to it, and defer; return or raise at once if it has ended already."""
        try:
            wanted = self._wanted(context)
        except BadInput as wrong:
            raise AirflowFailException(str(wrong)) from wrong
        if wanted.scheduler != LOCAL:
            self._judge(wanted)
        # A secret or a connection that is missing here may be there at Airflow's next try; a wrong job stays wrong.
        for source in wanted.spec.secret_environment.values():
            read_secret(source)
        record = self._in_store(lambda store: submit(store, wanted))
        if record.key != wanted.key:
            self.log.info("job %s, from before a clear, is cancelled, and waited for until it is gone", record.key)
            self._defer(context, record, "execute_after", settle_seconds=None)
        self.log.info("job %s, record %s, at revision %d", record.key, record.uid, record.revision)
        context["ti"].xcom_push(XCOM, {"key": record.key, "uid": record.uid})
        DispatchJobLink().push(context["ti"], record.key, record.uid)
        if self._killed:
            self._end(context, record)
        if record.settled:
            return self._conclude(record)
        self._defer_for(context, record)

    def execute_after(self, context: Context, event: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Go on once an earlier generation's job is gone."""
        return self.execute(context)

    def execute_complete(
        self, context: Context, event: Mapping[str, Any] | None = None, *, key: str, uid: str
    ) -> dict[str, Any]:
        """Tell how the job ended, as its record says; defer again where it has no outcome."""
        if event and "problem" in event:
            raise AirflowException(f"{event['problem']}; what became of the job is not known here")
        record = self._in_store(lambda store: store.read(key, uid))
        if record.outcome is None:
            self.log.warning("job %s has no outcome, whatever the trigger's event said; deferring again", key)
            self._defer_for(context, record)
        return self._conclude(record)

    def on_kill(self) -> None:
        """The worker is to end: a signal handler, which may interrupt anything, so it only leaves word."""
        self._killed = True

    # --- what is asked for

    def _wanted(self, context: Context) -> Wanted:
        ti = context["ti"]
        stem, pin = self._identity(context)
        cap = self.max_retry_delay
        derived = plan_of_retries(
            self.retries or 0,
            _seconds(self.retry_delay),
            float(self.retry_exponential_backoff or 0),
            None if cap is None else _seconds(cap),
        )
        return Wanted(
            key=self.key or identity.key(stem, pin.generation),
            spec=self._spec(),
            plan=derived if self.plan is None else self.plan,
            derived=self.plan is None,
            scheduler=self.scheduler_conn_id or self.scheduler,
            who=f"airflow try {ti.try_number} (max_tries {ti.max_tries}, retries {self.retries}) {ti.id}",
            stem=None if self.key else stem,
            generation=pin.generation,
        )

    def _spec(self) -> Spec:
        fields: dict[str, Any] = dict(self.spec or {"command": self.command})
        if isinstance(fields.get("command"), tuple):
            fields["command"] = list(fields["command"])
        for name in ("time_limit", "environment", "working_directory"):
            value = getattr(self, name)
            if value is None:
                continue
            if name in fields:
                raise BadInput(f"task {self.task_id}: {name} is given twice, once in spec")
            fields[name] = read_seconds(value) if name == "time_limit" else value
        return read_spec(fields)

    def _judge(self, wanted: Wanted) -> None:
        """Refuse what the cluster cannot launch. A cluster that is not defined here may be at Airflow's next try."""
        for path, problem in problems_of(cluster(wanted.scheduler, self.scheduler_conn_id), wanted.spec):
            raise AirflowFailException(f"task {self.task_id}: {'.'.join(map(str, path))}: {problem}")

    def _identity(self, context: Context) -> tuple[str, identity.Pin]:
        """The stem of the job's key and its generation, pinned at first sight."""
        ti = context["ti"]
        stem = identity.stem(ti.dag_id, ti.run_id, ti.task_id, _map_index(ti))
        cleared = getattr(context.get("dag_run"), "clear_number", None) or 0
        seen = identity.Seen(max_tries=ti.max_tries, retries=self.retries or 0, cleared=cleared)
        states: Any = context.get("task_state_store")
        if states is None:
            return stem, identity.pinned(None, seen)
        try:
            known = identity.read_pin(states.get(identity.PIN))
            pin = identity.pinned(known, seen)
            if pin != known:
                states.set(identity.PIN, pin.stored())
        except AirflowRuntimeError as error:
            # Then the generation is counted, which is wrong only where `retries` was edited meanwhile.
            self.log.warning("the task's state store does not answer: %s", error)
            return stem, identity.pinned(None, seen)
        return stem, pin

    # --- how it goes on

    def _conclude(self, record: Record) -> dict[str, Any]:
        assert record.outcome is not None  # noqa: S101 - asked before
        if not record.settled:
            self.log.warning("job %s is not settled; `dispatch supervise` clears away what is left of it", record.key)
        if record.outcome.result is not Result.SUCCEEDED:
            raise failure(record, record.outcome)
        return result(record)

    def _end(self, context: Context, record: Record) -> None:
        """The worker is being ended: if that is because the task has ended, so has the job."""
        instance = _instance(context)
        self._in_store(lambda store: cancel_if_ended(store, record.key, record.uid, "airflow worker", instance))

    def _defer_for(self, context: Context, record: Record) -> NoReturn:
        names = {"key": record.key, "uid": record.uid}
        self._defer(context, record, "execute_complete", settle_seconds=self.settle_seconds, kwargs=names)

    def _defer(
        self,
        context: Context,
        record: Record,
        method: str,
        *,
        settle_seconds: float | None,
        kwargs: dict[str, Any] | None = None,
    ) -> NoReturn:
        limit = self.execution_timeout
        trigger = DispatchTrigger(
            key=record.key,
            uid=record.uid,
            dispatch_conn_id=self.dispatch_conn_id,
            scheduler_conn_id=self.scheduler_conn_id,
            instance=_instance(context),
            settle_seconds=settle_seconds,
            until=None if limit is None else time.time() + limit.total_seconds(),
        )
        self.defer(trigger=trigger, method_name=method, kwargs=kwargs)

    def _in_store(self, work: Callable[[Store], Awaitable[T]]) -> T:
        """One piece of work on the store, in an event loop of its own; an outage is waited out for a while."""
        found = settings(self.dispatch_conn_id)

        async def once() -> T:
            store = found.open_store()
            try:
                return await work(store)
            finally:
                await store.close()

        async def patiently() -> T:
            for pause in AGAIN_SECONDS:
                try:
                    return await once()
                except StoreUnavailable as outage:
                    self.log.warning("%s; trying again in %g s", outage, pause)
                await asyncio.sleep(pause)
            return await once()

        return asyncio.run(patiently())


def _instance(context: Context) -> dict[str, Any]:
    """What a trigger has to know of the try that deferred to it."""
    ti = context["ti"]
    names = {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": ti.task_id}
    return {**names, "map_index": _map_index(ti), "ti_id": str(ti.id)}


def _map_index(ti: Any) -> int:
    return -1 if ti.map_index is None else int(ti.map_index)


def _seconds(delay: timedelta | float) -> float:
    return delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
