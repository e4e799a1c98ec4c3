"""Finds kills that nobody was told of: jobs that go on although their task in Airflow has ended, or was cleared.

One rule: a job is cancelled only on Airflow's own word, against the revision that was read before Airflow was asked.
What it does not say is no reason: a task that it does not know may be another Airflow's on the same store, an answer
that fails is no answer, and a task between two tries has not ended. A job that several tasks wait for, under a key that
was given, goes on until all of them have ended; one that has left it running has no say any more, and where all have,
nobody has ended it. After a clear, Airflow tells the new try's state, and that try cancels
the earlier job itself; here it is cancelled only where the new try's own job stands beside it.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from airflow.sdk.exceptions import AirflowRuntimeError

from airflow_provider import identity, tasks
from airflow_provider.detaching import leavers
from airflow_provider.ending import ENDED, run_states
from airflow_provider.tasks import Instance
from dispatch_core import ask
from dispatch_core.errors import Conflict
from dispatch_core.record import Record
from dispatch_core.stores.contract import Listed, Store
from dispatch_core.story import story
from dispatch_core.surroundings import fresh_id, utc_now

log = logging.getLogger(__name__)

States = Mapping[Instance, str | None]
"""What Airflow said; a task that it does not know, or would not tell of, is not in it."""


class Open(NamedTuple):
    """A record without an outcome, and whose it is."""

    record: Record
    instances: frozenset[Instance]

    @property
    def generation(self) -> int | None:
        """The generation in its key; None for a key that was given."""
        found = [identity.generation_of(instance.stem, self.record.key) for instance in self.instances]
        return found[0] if len(found) == 1 else None


async def open_jobs(store: Store) -> list[Open]:
    """Every job of a task of Airflow's that has no outcome."""
    found = []
    for job in await store.jobs(settled=False):
        if job.record is None or job.record.outcome is not None:
            continue
        if whose := await _whose(store, job):
            found.append(Open(job.record, whose))
    return found


async def _whose(store: Store, job: Listed) -> frozenset[Instance]:
    """The tasks that wait for it; none where somebody else made it, who may wait for it too, or all have left it."""
    if (maker := tasks.of_key(job.key)) is not None:
        return frozenset({maker})
    changes = await store.history(job.key, job.uid)
    if tasks.of_actor(changes[0].actor) is None:
        return frozenset()
    return tasks.of_history(changes) - leavers(changes)


def ask_airflow(jobs: Iterable[Open]) -> States:
    """The states of their tasks, one question for each DAG run; in a worker. It blocks."""
    wanted = defaultdict(set)
    for job in jobs:
        for instance in job.instances:
            wanted[instance.dag_id, instance.run_id].add(instance)
    found: dict[Instance, str | None] = {}
    for (dag_id, run_id), instances in wanted.items():
        names = sorted({instance.task_id for instance in instances})
        try:
            states = run_states(dag_id, run_id, names)
        except (AirflowRuntimeError, AttributeError, OSError, RuntimeError) as error:
            log.warning(
                "jobs of %s, run %s, go on: Airflow does not say how their tasks are (%s)", dag_id, run_id, error
            )
            continue
        known = {one: states[one.task_id, one.map_index] for one in instances if (one.task_id, one.map_index) in states}
        for stranger in sorted(instances - known.keys()):
            log.warning("the job of %s goes on: this Airflow has no such task instance any more", stranger.stem)
        found.update(known)
    return found


def reasons(jobs: Iterable[Open], states: States) -> list[tuple[Open, str]]:
    """The jobs that nobody wants any more, and why."""
    jobs = list(jobs)
    newest: dict[str, int] = {}
    for job in jobs:
        if job.generation is not None:
            (instance,) = job.instances
            newest[instance.stem] = max(job.generation, newest.get(instance.stem, 0))
    return [(job, reason) for job in jobs if (reason := _reason(job, states, newest))]


def _reason(job: Open, states: States, newest: Mapping[str, int]) -> str:
    if job.generation is not None:
        (instance,) = job.instances
        if job.generation < newest[instance.stem]:
            return "its task was cleared in Airflow"
    told = {states[instance] for instance in job.instances if instance in states}
    if not job.instances <= states.keys() or not told <= ENDED:
        return ""
    return f"its task is {' or '.join(sorted(map(str, told)))} in Airflow"


async def cancel(store: Store, record: Record, who: str, reason: str) -> bool:
    """Commit the cancel, unless the job was left to run or has moved on since it was read; whether it was committed."""
    maker = tasks.of_key(record.key)
    if maker is not None and maker in leavers(await store.history(record.key, record.uid)):
        log.info("job %s goes on: its task has left it running, on purpose", record.key)
        return False
    changed = ask.cancel(record, who, utc_now(), reason)
    try:
        await store.commit(changed, against=record.revision, commit=fresh_id(), actor=who, lines=story(record, changed))
    except Conflict:
        log.info("job %s has moved on meanwhile, and is looked at the next time", record.key)
        return False
    log.warning("job %s is cancelled: %s, and nobody had told dispatch", record.key, reason)
    return True
