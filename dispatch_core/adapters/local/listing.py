"""One look at the whole spool: what every job's listing is cut from.

One rule: a listing says "complete" for a job only if nothing that may be the job's was left unread. The staging folder
is looked at first, so that an object on its way is seen there or in its place; a claim that somebody keeps means that a
call is under way, and makes the listing of that one job incomplete. These functions block and run in a thread.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from datetime import datetime

from dispatch_core.adapters.contract import Job
from dispatch_core.adapters.local import spool
from dispatch_core.adapters.local.calls import Calls
from dispatch_core.adapters.local.look import Look, Tags, look, read_tags
from dispatch_core.adapters.shared import Snapshot
from dispatch_core.errors import SchedulerUnavailable
from dispatch_core.evidence import Sighting
from dispatch_core.plan import Value
from dispatch_core.record import State

BUSY_SECONDS = 0.2
"""How long one listing waits for all the claims that others keep, together."""
CHORES = 16
"""Runners that one listing brings up or buries; the rest is the next one's."""
PURGE_SECONDS = 3600.0
STALE_SECONDS = 3600.0
"""What lies in the staging folder for so long, and is nobody's, is left from a start or a removal that was cut off."""


class Unread(Value, frozen=True):
    """An object that is there, or on its way, and could not be looked at."""

    id: str
    tags: Tags | None

    def concerns(self, job: Job) -> bool:
        """Whether it may be this job's."""
        return self.tags is None or self.id in job.known or job.uid == self.tags.uid or job.key == self.tags.key


class Lister:
    """The looking side of one spool, and the chores that come with a look."""

    def __init__(self, calls: Calls, clock: Callable[[], datetime], node: str, keep_seconds: float) -> None:
        self.calls, self.clock, self.node, self.keep_seconds = calls, clock, node, keep_seconds
        self.purged: float | None = None
        self.tags: dict[str, Tags] = {}
        """Of each object in the spool: they never change."""

    def snapshot(self) -> Snapshot:
        """Look at everything. Raises SchedulerUnavailable where the spool itself cannot be read."""
        began = self.clock()
        try:
            unread = self._on_their_way()
            folders = self.calls.folders()
        except OSError as error:
            raise SchedulerUnavailable(
                f"the spool {self.calls.root} cannot be read: {error}; nothing is known of its objects meanwhile"
            ) from error
        looks: dict[str, Look | None] = {}
        until = time.monotonic() + BUSY_SECONDS
        while folders:
            folders = [folder for folder in folders if not self._looked(folder, looks)]
            if time.monotonic() > until:
                break
            if folders:
                time.sleep(spool.TRY_AGAIN_SECONDS)
        self._chores(looks)
        self.tags = {folder: tags for folder in [*looks, *folders] if (tags := self._tags(folder)) is not None}
        unread = [one for one in unread if os.path.join(self.calls.objects, one.id) not in looks]  # it has arrived
        unread += [Unread(id=os.path.basename(folder), tags=self.tags.get(folder)) for folder in folders]
        sightings = [self._sighting(folder, seen) for folder, seen in sorted(looks.items())]
        ended = self.clock()
        self._purge(looks)
        return Snapshot(began, ended, sightings, lambda job: any(job is None or one.concerns(job) for one in unread))

    def _tags(self, folder: str) -> Tags | None:
        return self.tags.get(folder) or _tags(folder)

    def _on_their_way(self) -> list[Unread]:
        """Objects whose start is under way: staged, tagged, and their claim kept."""
        found = []
        for id in filter(spool.is_id, os.listdir(self.calls.staging)):
            folder = os.path.join(self.calls.staging, id)
            tags = _tags(folder)
            if tags is not None and _is_claimed(folder):
                found.append(Unread(id=id, tags=tags))
        return found

    def _looked(self, folder: str, looks: dict[str, Look | None]) -> bool:
        """Look at one object; False: somebody keeps its claim, or it cannot be read just now."""
        try:
            with spool.claimed(folder, seconds=0.0, shared=True):
                looks[folder] = look(folder)
        except spool.Gone:
            if os.path.lexists(folder):
                looks[folder] = None
        except (OSError, spool.Busy):
            return False
        return True

    def _chores(self, looks: dict[str, Look | None]) -> None:
        """Bring up missing runners, end what dead ones left, and look at those objects again."""
        due = [folder for folder, seen in looks.items() if seen is not None and _is_due(seen)]
        for folder in due[:CHORES]:
            seen = looks[folder]
            if seen is not None and seen.lacks_runner:
                self.calls.bring_up(folder)
            else:
                self.calls.end_failed(folder)
            self._looked(folder, looks)

    def _sighting(self, folder: str, seen: Look | None) -> Sighting:
        """What is shown of an object; one that is mangled is shown as nobody's, in no state that is known."""
        tags = self.tags.get(folder)
        if tags is None or seen is None:
            return Sighting(id=os.path.basename(folder), name="", key="", state=State.UNRECOGNIZED)
        return Sighting(
            id=tags.id,
            name=tags.name,
            key=tags.key,
            state=seen.state,
            run=seen.run,
            hold=seen.hold,
            nodes=(self.node,) if seen.launched else (),
            end=seen.end,
            earlier_ends=seen.earlier_ends,
            progress=seen.progress,
        )

    def _purge(self, looks: dict[str, Look | None]) -> None:
        """Once an hour, remove objects that ended long ago, and what cut-off starts and removals left."""
        if self.purged is not None and time.monotonic() - self.purged < PURGE_SECONDS:
            return
        self.purged = time.monotonic()
        for folder, seen in looks.items():
            if seen is not None and seen.state is State.ENDED and _age(folder, seen.run) > self.keep_seconds:
                self._remove(folder)
        for name in os.listdir(self.calls.staging):
            folder = os.path.join(self.calls.staging, name)
            if _age(folder) > STALE_SECONDS and not _is_claimed(folder):
                shutil.rmtree(folder, ignore_errors=True)

    def _remove(self, folder: str) -> None:
        """Take an ended object out of the spool by one rename, then apart."""
        aside = os.path.join(self.calls.staging, f"removed-{os.path.basename(folder)}")
        try:
            with spool.claimed(folder, seconds=0.0):
                if look(folder).state is not State.ENDED:
                    return
                os.rename(folder, aside)
        except (OSError, spool.Busy, spool.Gone):
            return
        shutil.rmtree(aside, ignore_errors=True)


def _is_due(seen: Look) -> bool:
    return seen.lacks_runner or (seen.state is State.ENDING and not seen.alive)


def _tags(folder: str) -> Tags | None:
    try:
        return read_tags(folder)
    except OSError:
        return None


def _is_claimed(folder: str) -> bool:
    try:
        with spool.claimed(folder, seconds=0.0, shared=True):
            return False
    except spool.Busy:
        return True
    except (OSError, spool.Gone):
        return False


def _age(folder: str, run: int | None = None) -> float:
    """Seconds since anything was made or renamed in it, by the clock of its file system."""
    places = [folder] if run is None else [folder, os.path.join(folder, spool.RUNS), spool.run_folder(folder, run)]
    try:
        return time.time() - max(os.stat(place).st_mtime for place in places)
    except OSError:
        return 0.0
