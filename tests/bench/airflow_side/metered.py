"""What the bench of Airflow brings along into its workers and triggerers: the usual task, and a meter.

The usual task is written as the operators of most providers are: the worker submits the job, and a trigger of its own
asks how it is, every few seconds, until it has ended. It submits to the same local scheduler, which runs the same
payload; asking is a command that prints the end of the run, if there is one. No scheduler's own is cheaper: `squeue`
and `kubectl` do the same over a network, with a reply to be taken apart.
"""

import asyncio
import json
import os
import secrets
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import BaseOperator
from airflow.triggers.base import BaseTrigger, TriggerEvent

from dispatch_core.adapters.contract import Launch, Target
from dispatch_core.adapters.local import scheduler as local
from dispatch_core.adapters.local import spool as places
from dispatch_core.names import object_name
from dispatch_core.plan import Spec

POLL_SECONDS = 5.0
TICK_SECONDS = 0.02
ME = f"{__name__}."

counts = {"asked": 0, "others": 0}
"""Calls of a scheduler in this process: how a job is, and everything else."""


def count_calls():
    """Have every adapter in this process count its looks at the spool, and what else it does there."""
    for name, what in (("_look", "asked"), ("_in_thread", "others")):
        setattr(local.LocalScheduler, name, counted(getattr(local.LocalScheduler, name), what))


def counted(method, what):
    async def count(*arguments):
        counts[what] += 1
        return await method(*arguments)

    return count


class UsualOperator(BaseOperator):
    """Submits, defers to a trigger that polls, and ends as the job did."""

    template_fields = ("environment",)

    def __init__(self, *, command, environment, spool, slots, **options):
        super().__init__(**options)
        self.command, self.environment, self.spool, self.slots = command, environment, spool, slots

    def execute(self, context):
        self.defer(trigger=UsualTrigger(end=asyncio.run(self._submit(context))), method_name="execute_complete")

    def execute_complete(self, context, event):
        if event["cause"] != "completed":
            raise RuntimeError(f"the job has ended: {event}")
        return event

    async def _submit(self, context):
        """Make the object and open its gate; the file that tells its end."""
        uid, late = secrets.token_hex(8), datetime.now(UTC) + timedelta(seconds=60)
        name = object_name(uid, 1, 1)
        scheduler = local.LocalScheduler(Path(self.spool), slots=self.slots)
        try:
            spec = Spec(command=tuple(self.command), environment=self.environment)
            launch = Launch(key=str(context["ti"].id), uid=uid, submission=1, attempt=1, name=name, spec=spec)
            made = await scheduler.start(launch, {}, late)
            opened = await scheduler.open(Target(id=made.text, name=name, run=1), late)
        finally:
            await scheduler.close()
        if (made.answer, opened.answer) != ("done", "done"):
            raise RuntimeError(f"the job was not submitted: {made}, {opened}")
        return os.path.join(places.run_folder(os.path.join(self.spool, places.OBJECTS, made.text), 1), places.END)


class UsualTrigger(BaseTrigger):
    """Asks for the state of one job until it has ended."""

    def __init__(self, *, end):
        super().__init__()
        self.end = end

    def serialize(self):
        return ME + "UsualTrigger", {"end": self.end}

    async def run(self):
        while True:
            counts["asked"] += 1
            told = await asyncio.to_thread(subprocess.run, ["cat", self.end], capture_output=True, check=False)
            if told.returncode == 0:
                yield TriggerEvent(json.loads(told.stdout))
                return
            await asyncio.sleep(POLL_SECONDS)


class MeterOperator(BaseOperator):
    """Defers to the meter, which is in the triggerer until it is told to end."""

    def __init__(self, *, folder, **options):
        super().__init__(**options)
        self.folder = folder

    def execute(self, context):
        self.defer(trigger=MeterTrigger(path=f"{self.folder}/{context['dag'].dag_id}"), method_name="execute_complete")

    def execute_complete(self, context, event):
        return None


class MeterTrigger(BaseTrigger):
    """Writes a line a second: how late short sleeps in this event loop end, and the calls so far."""

    def __init__(self, *, path):
        super().__init__()
        self.path = path

    def serialize(self):
        return ME + "MeterTrigger", {"path": self.path}

    async def run(self):
        count_calls()
        late, written = [], time.monotonic()
        with open(f"{self.path}.meter", "a") as file:  # noqa: ASYNC230 - a line a second, to this machine's memory
            while not os.path.exists(f"{self.path}.stop"):  # noqa: ASYNC240 - the same
                began = time.monotonic()
                await asyncio.sleep(TICK_SECONDS)
                late.append(time.monotonic() - began - TICK_SECONDS)
                if time.monotonic() - written > 1.0:
                    line = {"at": time.time(), **counts, "late": late}
                    print(json.dumps(line), file=file, flush=True)
                    late, written = [], time.monotonic()
        yield TriggerEvent({})
