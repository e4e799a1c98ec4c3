"""The spool: what lies where, and the few means by which anything in it may change.

    objects/<id>/        one object: object.json (tags, spec), claim, secrets.json where there are any
    objects/<id>/runs/1  one run: the marks open, hold, stop, launched; runner, alive; stdout, stderr; end.json
    staging/             objects that are being made or removed
    slots/               one file for each payload that may run at a time

One rule: whoever changes an object, or looks at it, holds the flock on its `claim`, so that a listing that took it has
seen every call that passed its deadline check before. This room knows neither asyncio nor the record, and imports the
standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

STAGING, OBJECTS, SLOTS = "staging", "objects", "slots"
TAGS, CLAIM, SECRETS, RUNS = "object.json", "claim", "secrets.json", "runs"
OPEN, HOLD, STOP, LAUNCHED, END = "open.json", "hold", "stop", "launched.json", "end.json"
RUNNER, ALIVE, STDOUT, STDERR, RUNNER_LOG = "runner", "alive", "stdout", "stderr", "runner.log"

CARRIED = (ALIVE, STDOUT, STDERR)
"""Files that a payload inherits with a flock on them: while any is held, something of the run is alive."""

TRY_AGAIN_SECONDS = 0.005


class Busy(Exception):
    """Somebody else kept the claim for longer than one wanted to wait; nothing was done."""


class Gone(Exception):
    """The object is not in the spool (any more); nothing was done."""


class Unwritten(Exception):
    """A file could not be written, and is surely not there."""


def is_id(text: str) -> bool:
    """Whether this can be an object's id, and so the name of its folder."""
    return re.fullmatch(r"[0-9a-f]{16}", text) is not None


def run_folder(folder: str, run: int) -> str:
    return os.path.join(folder, RUNS, str(run))


def newest_run(folder: str) -> int:
    """The number of the object's newest run. Raises Gone."""
    try:
        return max(int(name) for name in os.listdir(os.path.join(folder, RUNS)) if name.isdecimal())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise Gone(folder) from None


def has(folder: str, name: str) -> bool:
    """Whether a mark is there. Raises OSError where that cannot be known."""
    try:
        os.stat(os.path.join(folder, name))
    except FileNotFoundError:
        return False
    return True


def write(path: str, data: bytes) -> None:
    """A file that is there whole or not at all, also after a power cut. Raises Unwritten, or OSError if unsure."""
    draft = f"{path}.{os.urandom(4).hex()}"
    try:
        number = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(number, view) :]
            os.fsync(number)
        finally:
            os.close(number)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise Unwritten(str(error)) from error
    os.rename(draft, path)
    settle(os.path.dirname(path))


def write_json(path: str, value: dict[str, Any]) -> None:
    write(path, json.dumps(value).encode())


def read_json(path: str) -> dict[str, Any] | None:
    """What a file of ours says; None: it is not there, or not one of ours."""
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def settle(folder: str) -> None:
    """Make a rename or mkdir in this folder outlast a power cut."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def take(number: int, *, shared: bool = False, seconds: float = 0.0) -> bool:
    """Take the flock on an open file, waiting so long at most."""
    how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(number, how)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(TRY_AGAIN_SECONDS)
        else:
            return True


def drop(number: int) -> None:
    """Give the flock back, for copies of the file that a fork elsewhere in this program may have made as well."""
    with contextlib.suppress(OSError):
        fcntl.flock(number, fcntl.LOCK_UN)
    os.close(number)


@contextlib.contextmanager
def claimed(folder: str, *, seconds: float, shared: bool = False) -> Iterator[None]:
    """Hold the object's claim. Raises Busy, or Gone where the object is not there once it is held."""
    path = os.path.join(folder, CLAIM)
    try:
        number = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise Gone(folder) from None
    try:
        if not take(number, shared=shared, seconds=seconds):
            raise Busy(folder)
        try:
            there = os.path.samestat(os.stat(path), os.fstat(number))
        except (FileNotFoundError, NotADirectoryError):
            there = False
        if not there:
            raise Gone(folder)
        yield
    finally:
        drop(number)


def is_held(path: str) -> bool:
    """Whether anybody holds this file's flock. Asked under the object's claim, under which alone it is ever taken."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not take(number, shared=True)
    finally:
        drop(number)


def make_held(path: str) -> int | None:
    """Open a file, make it if need be, and take its flock; None: somebody else has it."""
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    if take(number):
        return number
    os.close(number)
    return None


def is_left(folder: str) -> bool:
    """Whether anything of this run is alive: its runner from the launch on, its payload, and what that started."""
    return any(is_held(os.path.join(folder, name)) for name in CARRIED)


def read_end(folder: str) -> dict[str, Any] | None:
    """How a run ended, where that is written; one that was stopped before its payload began has ended by that."""
    if has(folder, END):
        return read_json(os.path.join(folder, END)) or {"cause": "unrecognized", "message": "its end is unreadable"}
    if has(folder, STOP) and not has(folder, LAUNCHED):
        return {"cause": "stopped_outside", "message": "stopped before it began"}
    return None


def boot() -> str:
    """Which start of this host it is."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENFILE, errno.EMFILE, errno.ENOMEM)
"""Errors that pass: a runner waits until it can write the end of its run."""
