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
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferralTimeout

from airflow_provider import identity, pins
from airflow_provider.clusters import cluster
from airflow_provider.detaching import leavers
from airflow_provider.ending import cancel_if_ended, cancelled
from airflow_provider.failures import detached, failure
from airflow_provider.fields import fields, filled, is_file, is_open, plan_of, text
from airflow_provider.hook import DEFAULT, settings
from airflow_provider.links import XCOM, DispatchJobLink
from airflow_provider.secrets import read_secret
from airflow_provider.submission import Wanted, plan_of_retries, result, submit
from airflow_provider.tasks import Instance
from airflow_provider.trigger import CANCEL, DETACH, LOG_LINES, OUTCOME, SETTLED, DispatchTrigger
from airflow_provider.waiting import Ended, Waiting
from dispatch_core.clusters import LOCAL
from dispatch_core.errors import BadInput, StoreUnavailable
from dispatch_core.jobfile import read_seconds, read_spec
from dispatch_core.places import problems_of
from dispatch_core.plan import Plan, Spec
from dispatch_core.record import Record, Result
from dispatch_core.stores.contract import Store

if TYPE_CHECKING:
    from airflow.sdk import Context

RESULT = "dispatch_result"
"""Where what is known of the job is once the task has ended, however it ended."""

AGAIN_SECONDS = (5.0, 10.0, 20.0, 40.0)
"""How long a worker waits for a store that does not answer, once, twice, ...; then the try fails."""

T = TypeVar("T")


class DispatchOperator(BaseOperator):
    """Runs one long external job under a supervisor, without holding a worker while it waits or runs.

    :param command: the program and its arguments; no shell splits them. (templated)
    :param time_limit: a run is ended by the scheduler after it: seconds, a timedelta, or text like "2h". (templated)
    :param environment: variables for the job; public: stored, shown and logged. (templated)
    :param working_directory: where it runs. (templated)
    :param spec: the same and more in the words of a job file: a mapping, YAML text, or the path of a `.yaml` file
        beside the DAG. Each field is given once, here or above. (templated)
    :param plan: recovery rules in the words of a job file, written in the same three ways, or a `Plan`. Without it
        `retries`, `retry_delay`, `retry_exponential_backoff` and `max_retry_delay` become one rule that resubmits the
        job, unless there is a `retry_policy`. (templated)
    :param scheduler: which cluster runs it: "local", the triggerer's own host, or a name in the clusters file of the
        workers and triggerers. (templated)
    :param scheduler_conn_id: or the connection of type `slurm_ssh` or `kubernetes` that says how the cluster is
        reached. The record calls the cluster by it, so the clusters file of a `dispatch supervise` beside Airflow has
        to as well. (templated)
    :param key: what the job is called; None: one of its own for each task instance, and a new one after a clear. A key
        that is given names one job for good: a task that finds it ended returns, or fails with, its outcome.
        (templated)
    :param dispatch_conn_id: the connection that names the database of the records. (templated)
    :param wait_for: "settled": until nothing of the job is left; on Slurm that is not before its last submit can no
        longer land, some 6 minutes after it where slurm.conf sets no `ttl`. "outcome": until it is known how the job
        ended; the triggerer then sees to the rest for 10 minutes, and `dispatch supervise` after that.
    :param timeout: how long this try waits for its job, counted from when it submitted or found it: seconds, a
        timedelta, or text like "2h"; None: for as long as it takes. `execution_timeout`, which Airflow does not keep
        while a task is deferred, is kept in the same way; the earlier one counts. (templated)
    :param on_timeout: "cancel": the job is cancelled, and the task raises JobCancelled. "detach": the job goes on, and
        the task raises JobDetached; a try that comes later waits for the same job again, a clear cancels it.
    :param log_lines: so many lines of the end of the job's log are shown in the task's log; 0: none.
    :param deferrable: False: wait in the worker, which is held until the job has ended. Give such a task retries: a
        lost worker is made up for by Airflow's next try, which finds the same job. Where the task is marked or cleared
        meanwhile, the worker commits the cancel, and begins to stop the job; Airflow ends it 5 s later. What is not
        stopped and settled by then is unattended: it is the janitor's task that sees to the rest, or `dispatch
        supervise`.

    The task returns {"key", "uid", "outcome", "cause", "exit_code", "submissions", "runs", "objects"}, which is in the
    XCom `dispatch_result` too where it fails. It raises JobFailed, JobCancelled, JobDetached or JobChanged, which
    Airflow does not try again; only a `retry_policy` is asked about a job that failed or was left, and where it, or
    Airflow by it, tries again after JobFailed, that try runs a new job.
    """

    template_fields: Sequence[str] = (
        "command",
        "time_limit",
        "environment",
        "working_directory",
        "spec",
        "plan",
        "scheduler",
        "key",
        "scheduler_conn_id",
        "dispatch_conn_id",
        "timeout",
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
        spec: Mapping[str, Any] | str | None = None,
        plan: Mapping[str, Any] | Plan | str | None = None,
        scheduler: str = LOCAL,
        scheduler_conn_id: str | None = None,
        key: str | None = None,
        dispatch_conn_id: str = DEFAULT,
        wait_for: str = SETTLED,
        timeout: float | str | timedelta | None = None,
        on_timeout: str = CANCEL,
        log_lines: int = LOG_LINES,
        deferrable: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.command = command
        self.time_limit = time_limit
        self.environment = environment
        self.working_directory = working_directory
        self.spec = spec
        self.plan = plan
        self.scheduler = scheduler
        self.scheduler_conn_id = scheduler_conn_id
        self.key = key
        self.dispatch_conn_id = dispatch_conn_id
        self.wait_for = wait_for
        self.timeout = timeout
        self.on_timeout = on_timeout
        self.log_lines = log_lines
        self.deferrable = deferrable
        self._killed = False
        self._waiting: Waiting | None = None
        self._judge_what_is_known()

    def resolve_template_files(self) -> None:
        """Read the YAML files that spec and plan name, while the DAG is parsed."""
        super().resolve_template_files()
        for name in ("spec", "plan"):
            if is_file(value := getattr(self, name)) and not is_open(value):
                setattr(self, name, text(self, value))
        self._judge_what_is_known()

    def execute(self, context: Context) -> Any:
        """Submit the job, or attach to it, and defer; return or raise at once if it has ended already."""
        try:
            wanted = self._wanted(context)
            until = self._until()
        except BadInput as wrong:
            raise AirflowFailException(str(wrong)) from wrong
        if wanted.scheduler != LOCAL:
            self._judge(wanted)
        # A secret or a connection that is missing here may be there at Airflow's next try; a wrong job stays wrong.
        for source in wanted.spec.secret_environment.values():
            read_secret(source)
        record = self._in_store(lambda store: submit(store, wanted))
        if record.key != wanted.key:
            self.log.info("job %s, of an earlier try, is cancelled, and waited for until it is gone", record.key)
            return self._wait(context, self._trigger(context, record, wait_for=SETTLED, log_lines=0), "execute_after")
        self.log.info("job %s, record %s, at revision %d", record.key, record.uid, record.revision)
        context["ti"].xcom_push(XCOM, {"key": record.key, "uid": record.uid})
        DispatchJobLink().push(context["ti"], record.key, record.uid)
        if self._killed:
            self._end(context, record.key, record.uid)
        if record.settled:
            return self._conclude(context, record)
        return self._wait_for_job(context, record, until)

    def execute_after(self, context: Context, event: Mapping[str, Any] | None = None) -> Any:
        """Go on once an earlier generation's job is gone."""
        return self.execute(context)

    def execute_complete(
        self,
        context: Context,
        event: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        uid: str | None = None,
        until: float | None = None,
    ) -> Any:
        """Tell how the job ended, as its record says; wait again where it has no outcome."""
        if key is None or uid is None:  # `dag.test()` passes the event on and nothing else
            key, uid = (event or {})["key"], (event or {})["uid"]
        if event and "problem" in event:
            raise AirflowException(f"{event['problem']}; what became of the job is not known here")

        me = Instance(**pins.place(context))

        async def look(store: Store) -> tuple[Record, bool]:
            record = await store.read(key, uid)
            return record, record.outcome is None and me in leavers(await store.history(key, uid))

        record, left = self._in_store(look)
        if left:
            context["ti"].xcom_push(RESULT, result(record))
            raise detached(record, may_retry=self.retry_policy is not None)
        if record.outcome is None:
            self.log.warning("job %s has no outcome, whatever the trigger's event said; waiting again", key)
            return self._wait_for_job(context, record, until)
        return self._conclude(context, record)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """As Airflow has it; a deferral that has timed out ends the job, unless another try is to come to it."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout:
            if context["ti"].try_number <= context["ti"].max_tries:
                raise
            wanted, reason = self._wanted(context), "its deferral has timed out in Airflow"
            record = self._in_store(lambda store: cancelled(store, wanted.key, wanted.who, reason))
            if record is None:
                raise
        return self._conclude(context, record) if record.settled else self._wait_for_job(context, record, None)

    def on_kill(self) -> None:
        """The worker is to end: a signal handler, which may interrupt anything, so it only leaves word."""
        self._killed = True
        if self._waiting is not None:
            self._waiting.end()

    # --- what is asked for

    def _judge_what_is_known(self) -> None:
        """Refuse, while the DAG is parsed, what no template or other task can make right. Raises BadInput."""
        for name, allowed in (("wait_for", (OUTCOME, SETTLED)), ("on_timeout", (CANCEL, DETACH))):
            if getattr(self, name) not in allowed:
                raise BadInput(f"task {self.task_id}: {name} is {getattr(self, name)!r}; give {' or '.join(allowed)}")
        if self.log_lines < 0:
            raise BadInput(f"task {self.task_id}: log_lines is {self.log_lines}; give 0 or more")
        if self.command is None and self.spec is None:
            raise BadInput(f"task {self.task_id}: give command, or spec with a command in it")
        if not self.scheduler or (self.scheduler_conn_id is not None and self.scheduler != LOCAL):
            raise BadInput(
                f"task {self.task_id}: give scheduler, a cluster's name, or scheduler_conn_id, one of the two"
            )
        if self.plan is not None and not is_file(self.plan) and not is_open(self.plan):
            plan_of(self.plan)
        if self.timeout is not None and not is_open(self.timeout):
            read_seconds(self.timeout)
        asked = (self.command, self.spec, self.time_limit, self.environment, self.working_directory)
        if not is_file(self.spec) and not any(map(is_open, asked)):
            self._spec(self.spec)

    def _wanted(self, context: Context) -> Wanted:
        ti = context["ti"]
        stem, pin = pins.stem(context), pins.pin(context, self.retries or 0)
        plan = filled(self, "plan", context)
        derived = plan is None and self.retry_policy is None
        told = f"try {ti.try_number}, generation {pin.generation}, max_tries {ti.max_tries}, retries {self.retries}"
        return Wanted(
            key=self.key or identity.key(stem, pin.generation),
            spec=self._spec(filled(self, "spec", context)),
            plan=self._plan_of_retries() if derived else Plan() if plan is None else plan_of(plan),
            derived=derived,
            scheduler=self.scheduler_conn_id or self.scheduler,
            who=Instance(**pins.place(context)).actor(f"{told}, {ti.id}"),
            stem=None if self.key else stem,
            generation=pin.generation,
        )

    def _plan_of_retries(self) -> Plan:
        cap = self.max_retry_delay
        return plan_of_retries(
            self.retries or 0,
            _seconds(self.retry_delay),
            float(self.retry_exponential_backoff or 0),
            None if cap is None else _seconds(cap),
        )

    def _spec(self, given: Mapping[str, Any] | str | None) -> Spec:
        told = {} if given is None else fields(given, "spec")
        for name in ("command", "time_limit", "environment", "working_directory"):
            value = getattr(self, name)
            if value is None:
                continue
            if name in told:
                raise BadInput(f"task {self.task_id}: {name} is given twice, once in spec")
            told[name] = read_seconds(value) if name == "time_limit" else value
        if isinstance(told.get("command"), tuple):
            told["command"] = list(told["command"])
        return read_spec(told)

    def _judge(self, wanted: Wanted) -> None:
        """Refuse what the cluster cannot launch. A cluster that is not defined here may be at Airflow's next try."""
        for path, problem in problems_of(cluster(wanted.scheduler, self.scheduler_conn_id), wanted.spec):
            raise AirflowFailException(f"task {self.task_id}: {'.'.join(map(str, path))}: {problem}")

    # --- how it goes on

    def _conclude(self, context: Context, record: Record) -> dict[str, Any]:
        assert record.outcome is not None  # noqa: S101 - asked before
        told = result(record)
        context["ti"].xcom_push(RESULT, told)
        if not record.settled:
            self.log.warning(
                "job %s is not settled yet; what is left of it is cleared away without this task", record.key
            )
        if record.outcome.result is Result.SUCCEEDED:
            return told
        may_retry = self.retry_policy is not None and not self.key
        if may_retry and record.outcome.result is Result.FAILED:
            pins.pin_next(context, self.retries or 0, record.key)
        raise failure(record, record.outcome, may_retry=may_retry)

    def _end(self, context: Context, key: str, uid: str) -> None:
        """The worker is being ended: if that is because the task has ended, so has the job."""
        instance = pins.instance(context)
        self._in_store(lambda store: cancel_if_ended(store, key, uid, "airflow worker", instance))

    def _until(self) -> float | None:
        """When this try stops waiting, in seconds since 1970."""
        limits = [read_seconds(limit) for limit in (self.timeout, self.execution_timeout) if limit is not None]
        return time.time() + min(limits) if limits else None

    def _wait_for_job(self, context: Context, record: Record, until: float | None) -> Any:
        trigger = self._trigger(context, record, wait_for=self.wait_for, log_lines=self.log_lines, until=until)
        return self._wait(context, trigger, "execute_complete", key=record.key, uid=record.uid, until=until)

    def _trigger(self, context: Context, record: Record, **how: Any) -> DispatchTrigger:
        return DispatchTrigger(
            key=record.key,
            uid=record.uid,
            dispatch_conn_id=self.dispatch_conn_id,
            scheduler_conn_id=self.scheduler_conn_id,
            instance=pins.instance(context),
            on_timeout=self.on_timeout,
            **how,
        )

    def _wait(self, context: Context, trigger: DispatchTrigger, method: str, **kwargs: Any) -> Any:
        """Go on with the method once the trigger has fired: in another worker, or in this one."""
        if self.deferrable:
            self.defer(trigger=trigger, method_name=method, kwargs=kwargs)
        self._waiting = Waiting(lambda: self._killed)
        try:
            event = self._waiting.run(trigger)
        except Ended:
            asyncio.run(trigger.on_kill())  # Airflow leaves a worker 5 s after SIGTERM
            raise AirflowException(
                f"this worker was told to end; job {trigger.key!r} goes on unless its task has ended, and Airflow's"
                " next try finds it"
            ) from None
        finally:
            self._waiting = None
        return getattr(self, method)(context, event=event, **kwargs)

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


def _seconds(delay: timedelta | float) -> float:
    return delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
