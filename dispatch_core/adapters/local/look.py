"""What one object of the spool is: its tags, and the state of its newest run.

One rule: a look is taken under the object's claim and changes nothing. States follow from the marks in the run's folder
and from who holds its flocks, never from a pid: a runner that was ended with SIGKILL, and a host that was restarted,
have let go of them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from dispatch_core.adapters.local import spool
from dispatch_core.plan import Cause, End, Value
from dispatch_core.record import State


class Tags(msgspec.Struct, frozen=True, kw_only=True):
    """What an object was made with, as far as others than its runner need it."""

    id: str
    name: str
    key: str
    uid: str
    may_requeue: bool


class Look(Value, frozen=True):
    """The newest run of an object, at one moment."""

    run: int
    state: State
    opened: bool = False
    hold: bool = False
    launched: bool = False
    alive: bool = False
    """A runner has it."""
    end: End | None = None
    earlier_ends: tuple[tuple[int, End], ...] = ()
    progress: datetime | None = None
    failed: bool = False
    """It was launched, its runner is gone, and nobody has written so yet."""

    @property
    def lacks_runner(self) -> bool:
        """It waits for a runner that is not there: whoever opened the gate ended before it could start one."""
        return self.state in (State.HELD, State.PENDING) and not self.alive


_tags = msgspec.json.Decoder(Tags)


def read_tags(folder: str) -> Tags | None:
    """The object's tags; None: they are not readable. Raises OSError where that may pass."""
    try:
        with open(os.path.join(folder, spool.TAGS), "rb") as file:
            tags = _tags.decode(file.read())
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return tags if tags.id == os.path.basename(folder) or os.path.dirname(folder).endswith(spool.STAGING) else None


def look(folder: str) -> Look:
    """The object's newest run. Raises spool.Gone, or OSError."""
    run = spool.newest_run(folder)
    where, earlier = spool.run_folder(folder, run), _earlier(folder, run)
    alive = spool.is_held(os.path.join(where, spool.RUNNER))
    if not spool.has(where, spool.LAUNCHED):
        end, hold, opened = _end(where), spool.has(where, spool.HOLD), spool.has(where, spool.OPEN)
        waiting = (State.HELD if hold else State.PENDING) if opened else State.GATED
        state = waiting if end is None else State.ENDED
        return Look(run=run, state=state, opened=opened, hold=hold, alive=alive, end=end, earlier_ends=earlier)
    left = spool.is_left(where)
    end = _end(where)  # read last: a runner that was gone above has written all that it ever will
    failed = end is None and not alive
    running = end is None and alive
    return Look(
        run=run,
        state=State.RUNNING if running else State.ENDING if left or failed else State.ENDED,
        opened=True,
        launched=True,
        alive=alive,
        end=node_failure(where) if failed else end,
        earlier_ends=earlier,
        progress=_progress(where) if running else None,
        failed=failed,
    )


def node_failure(where: str) -> End:
    """How a run ended whose runner left without a word."""
    launched = spool.read_json(os.path.join(where, spool.LAUNCHED)) or {}
    restarted = launched.get("boot") != spool.boot()
    message = "the host was restarted while it ran" if restarted else "its runner was ended while it ran"
    return End(cause=Cause.NODE_FAILURE, message=message)


def _end(where: str) -> End | None:
    told = spool.read_end(where)
    return None if told is None else _read_end(told)


def _read_end(told: Mapping[str, object]) -> End:
    try:
        return msgspec.convert(told, End)
    except msgspec.ValidationError as error:
        return End(cause=Cause.UNRECOGNIZED, message=f"its end is unreadable: {error}")


def _earlier(folder: str, run: int) -> tuple[tuple[int, End], ...]:
    ends = ((earlier, _end(spool.run_folder(folder, earlier))) for earlier in range(1, run))
    return tuple((earlier, end) for earlier, end in ends if end is not None)


def _progress(where: str) -> datetime | None:
    """When the payload last wrote anything; it can set these times itself, to years that no date has."""
    times = []
    for name in (spool.STDOUT, spool.STDERR):
        with contextlib.suppress(OSError, OverflowError, ValueError):
            times.append(datetime.fromtimestamp(os.stat(os.path.join(where, name)).st_mtime, UTC))
    return max(times, default=None)
