"""What Prefect's pages show of a job: artifacts of its task run, and events that automations can react to.

One rule: only what was committed is shown, after its commit, and nothing is read back: whatever keeps Prefect from
taking it changes nothing for the job. An artifact is changed in place while one process attends to the job, and the
next process makes the next version of it under the same key.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shlex
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode
from uuid import UUID
from weakref import WeakKeyDictionary

from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.context import FlowRunContext, TaskRunContext
from prefect.events import emit_event

from dispatch_core.record import Record, State
from dispatch_core.status import advice, runs_of, state_of
from dispatch_core.stores.contract import Change

log = logging.getLogger(__name__)

PAGES = "DISPATCH_PAGES"
"""The variable with the address of a `dispatch serve`, whose page of the job the link artifact leads to."""

LINES = 200
"""Of the story, the newest: an artifact is a page to read."""

EVENT = "dispatch.job."
"""How the names of events begin; a state's name ends them."""

KEY_LENGTH = 100

SIDE_BY_SIDE = 8
"""Jobs of one event loop that are shown at a time: a thousand at once would wait for each other in the connection."""

_rooms: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


class Showing:
    """One job on the pages of one task run."""

    def __init__(self, flow_run: UUID | None, task_run: UUID | None) -> None:
        self.flow_run, self.task_run = flow_run, task_run
        self._made: dict[str, UUID] = {}
        self._lines: list[str] = []
        self._state = ""
        self._warned = False

    @classmethod
    def here(cls) -> Showing:
        """For the run that is under way; outside any, events alone are sent."""
        flow, task = FlowRunContext.get(), TaskRunContext.get()
        flow_run = task.task_run.flow_run_id if task is not None else None
        if flow_run is None and flow is not None and flow.flow_run is not None:
            flow_run = flow.flow_run.id
        return cls(flow_run, task.task_run.id if task is not None else None)

    async def show(self, record: Record, news: Sequence[Change]) -> None:
        """Show a record, and what was committed since it was shown last."""
        self._lines += [_line(change, text) for change in news for text in change.lines]
        state = "settled" if record.settled else state_of(record)
        try:
            if state != self._state:
                emit(record, self.flow_run)
            if self.task_run is not None:
                await self._artifacts(record)
        except Exception as error:  # noqa: BLE001 - whatever Prefect says: the job goes on
            if not self._warned:
                log.warning("job %s is not shown in Prefect: %s", record.key, error or type(error).__name__)
            self._warned = True
        self._state = state

    async def _artifacts(self, record: Record) -> None:
        name = slug(record.key)
        room = _rooms.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(SIDE_BY_SIDE))
        async with room, get_client() as client:
            words = f"{_state(record)}: {record.key}"  # the state first: a list of artifacts shows the first words
            await self._put(client, f"dispatch-{name}", "markdown", page(record, self._lines), words)
            await self._put(client, f"dispatch-{name}-progress", "progress", progress(record), words)
            pages = os.environ.get(PAGES)
            if pages and "link" not in self._made:
                where = urlencode({"key": record.key, "uid": record.uid})
                link = f"[{_text(record.key)}]({pages.rstrip('/')}/job?{where})"
                await self._put(client, f"dispatch-{name}-link", "markdown", link, "the job's page", made_as="link")

    async def _put(
        self, client: PrefectClient, key: str, kind: str, data: Any, description: str, made_as: str = ""
    ) -> None:
        known = self._made.get(made_as or kind)
        if known is not None:
            await client.update_artifact(known, ArtifactUpdate(data=data, description=description))
            return
        made = await client.create_artifact(
            ArtifactCreate(
                key=key,
                type=kind,
                data=data,
                description=description,
                flow_run_id=self.flow_run,
                task_run_id=self.task_run,
            )
        )
        self._made[made_as or kind] = made.id


def emit(record: Record, flow_run: UUID | None) -> None:
    """Send the event of the state that a job has come into: `dispatch.job.running`, `dispatch.job.settled`."""
    state = "settled" if record.settled else state_of(record)
    related = [] if flow_run is None else [{"prefect.resource.id": f"prefect.flow-run.{flow_run}"}]
    emit_event(
        event=EVENT + state.replace(" ", "-"),
        resource={"prefect.resource.id": f"dispatch.job.{record.uid}", "prefect.resource.name": record.key},
        related=[{**one, "prefect.resource.role": "flow-run"} for one in related],
        payload={
            "key": record.key,
            "uid": record.uid,
            "revision": record.revision,
            "scheduler": record.scheduler,
            "state": state,
            "outcome": record.outcome.result.value if record.outcome is not None else None,
            "submissions": len(record.submissions),
            "runs": runs_of(record),
        },
    )


def slug(key: str) -> str:
    """The name of a job's artifacts: its step, the same in every flow run, so that they are versions of one."""
    return re.sub(r"[^a-z0-9]+", "-", _step(key).lower()).strip("-")[:KEY_LENGTH].rstrip("-") or "job"


def progress(record: Record) -> float:
    """How far a job has come, in percent by its stage: submitted, launched, running, over, settled. What a job does in
    its runs is not known."""
    if record.settled:
        return 100.0
    if record.outcome is not None:
        return 90.0
    if any(object.state is State.RUNNING for object in record.objects):
        return 50.0
    return 10.0 if record.submissions else 0.0


def page(record: Record, lines: Sequence[str]) -> str:
    """The record in Markdown: what it is, what it waits for, its launches, and the newest of its story."""
    wait = f" - {record.wait.text}" if record.wait is not None else ""
    rows = [
        ("what you can do", advice(record)),
        ("key", record.key),
        ("scheduler", record.scheduler),
        ("command", shlex.join(record.spec.command)),
        ("submissions", str(len(record.submissions))),
        ("runs", str(runs_of(record))),
        ("record", f"{record.uid}, revision {record.revision}"),
    ]
    # The state is the head of its table: without one, a page shows an empty row.
    table = [f"| state | {_text(_state(record) + wait)} |", "|---|---|"]
    table += [f"| {name} | {_text(text)} |" for name, text in rows if text]
    ends = [
        f"| {object.submission} | {_text(object.id)} | {row.run} | {_text(row.end.cause)} |"
        f" {'' if row.end.exit_code is None else row.end.exit_code} |"
        for object in record.objects
        for row in object.ends
    ]
    if ends:
        ends = ["", "| submission | object | run | ended | exit code |", "|---|---|---|---|---|", *ends]
    more = len(lines) - LINES
    story = [f"- {_text(line)}" for line in lines[-LINES:]]
    if more > 0:
        story.insert(0, f"- {more} earlier lines: `dispatch history`")
    return "\n".join([f"# {_text(_step(record.key))}", "", *table, *ends, "", "## Its story (times in UTC)", *story])


def _state(record: Record) -> str:
    return ("settled, " if record.settled else "") + state_of(record)


def _step(key: str) -> str:
    """What the step is called in its flow; the rest of its key is an id."""
    return key.rsplit("/", 1)[-1] or key


def _line(change: Change, text: str) -> str:
    return f"{change.at:%Y-%m-%d %H:%M:%S} {text}"


def _text(text: str) -> str:
    """Text that is shown as it is: it cannot end its place in a table, begin a tag, or be taken for Markdown."""
    return re.sub(r"([\\`*_\[\]~|])", r"\\\1", " ".join(text.split())).replace("&", "&amp;").replace("<", "&lt;")
