"""The local scheduler as an adapter: what the supervisor calls.

One rule: the event loop never waits for the spool. Every call and every look runs in a thread of this connection, and
is bounded there; all jobs of the connection share one look at the spool. Nothing is remembered between calls that the
spool does not hold, so that any number of these may use one spool at the same time, on one host and as one user.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import platform
import signal
import stat
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from dispatch_core.adapters.contract import Job, Launch, Log, Piece, Target
from dispatch_core.adapters.local import spool as places
from dispatch_core.adapters.local.calls import Calls
from dispatch_core.adapters.local.listing import Lister
from dispatch_core.adapters.shared import Listings, Snapshot, closed, pause_of
from dispatch_core.errors import BadInput
from dispatch_core.evidence import Bounds, Capabilities, Listing
from dispatch_core.plan import Spec
from dispatch_core.record import Reply

BOUNDS = Bounds(call_seconds=5.0, window_seconds=15.0, absence_seconds=5.0, repeat_seconds=2.0)

OWN_FACTOR = 10.0
"""A look at the spool is this process's own work: so many times as long as it took, there is none."""

INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"),
    *("XDG_RUNTIME_DIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV"),
)
"""Variables that a payload takes over from whoever calls Start; all others it gets from its spec."""

THREADS = 8

NETWORK = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "afs", "glusterfs", "fuse.sshfs")
"""File systems that other hosts may share: their flocks would be judged without seeing what runs there."""

Result = TypeVar("Result")


def now() -> datetime:
    """This host's clock."""
    return datetime.now(UTC)


class LocalScheduler:
    """Runs jobs on this host. Raises BadInput for a spool that cannot be one.

    A run stays in the control group of whoever opened it: a systemd service that opens runs needs `KillMode=process`,
    else stopping the service ends them (they read `node_failure`). What a payload starts ends with it."""

    capabilities = Capabilities(requeues=True, shuts=False, starts_once=True)

    def __init__(
        self,
        spool: Path,
        *,
        slots: int = os.cpu_count() or 1,
        bounds: Bounds = BOUNDS,
        clock: Callable[[], datetime] = now,
        grace_seconds: float = 10.0,
        listing_seconds: float = 1.0,
        keep_seconds: float = 7 * 86400.0,
        inherited: tuple[str, ...] = INHERITED,
    ) -> None:
        """`slots`: runs at a time, as far as this connection opens them. `grace_seconds`: from SIGTERM to SIGKILL.
        `listing_seconds`: between two looks at the spool at least. `keep_seconds`: how long an ended object is kept."""
        if slots < 1:
            raise BadInput(f"the local scheduler was given {slots} slots; with none, nothing would ever run")
        self.bounds = bounds
        root = str(spool.absolute())
        prepare(root)
        self._inherited = inherited
        self._calls = Calls(root, clock, slots, grace_seconds)
        self._lister = Lister(self._calls, clock, platform.node(), keep_seconds)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="dispatch-local")
        self._looker = ThreadPoolExecutor(1, thread_name_prefix="dispatch-local-look")
        self._took = 0.0
        """Seconds that the latest look took."""
        self._listings = Listings(self._look, lambda: pause_of(listing_seconds, self._took, OWN_FACTOR))
        self._closed = False

    @property
    def listings(self) -> int:
        """Looks at the spool so far."""
        return self._listings.count

    def problems(self, spec: Spec) -> list[tuple[tuple[str | int, ...], str]]:
        """What this host cannot do for a spec."""
        found: list[tuple[tuple[str | int, ...], str]] = []
        if spec.memory_bytes is not None:
            found.append((("spec", "memory_bytes"), "the local scheduler cannot bound memory; leave it out"))
        if spec.queue is not None:
            found.append((("spec", "queue"), "the local scheduler has no queues; leave it out"))
        if spec.exclude:
            found.append((("spec", "exclude"), "the local scheduler has one node, which cannot be excluded"))
        name = spec.signal_before_limit
        if name is not None and f"SIG{name}" not in signal.Signals.__members__:
            found.append((("spec", "signal_before_limit"), f"{name!r} is no signal here; USR1 would be one"))
        limit, before = spec.time_limit_seconds, spec.signal_before_limit_seconds
        if name is not None and limit is not None and before >= limit:
            text = f"the signal would come {before} seconds before a limit of {limit}: when the run begins"
            found.append((("spec", "signal_before_limit_seconds"), text))
        if spec.working_directory is not None and not os.path.isabs(spec.working_directory):
            found.append((("spec", "working_directory"), "it is not absolute; a run has no directory to start from"))
        found += [
            (("spec", "options", option), f"the local scheduler has no option {option!r}") for option in spec.options
        ]
        return found

    async def find(self, job: Job) -> Listing:
        return await self._listings.find(job)

    async def everything(self) -> Listing:
        return await self._listings.everything()

    async def watch(self, job: Job, seconds: float) -> None:
        await self._listings.watch(job, seconds)

    async def start(self, launch: Launch, secrets: Mapping[str, str], deadline: datetime) -> Reply:
        inherited = {name: os.environ[name] for name in self._inherited if name in os.environ}
        return await self._in_thread(lambda: self._calls.start(launch, secrets, inherited, deadline))

    async def open(self, target: Target, deadline: datetime) -> Reply:
        return await self._in_thread(lambda: self._calls.open(target, deadline))

    async def shut(self, target: Target, deadline: datetime) -> Reply:
        return await self._in_thread(lambda: self._calls.shut(target, deadline))

    async def stop(self, target: Target, deadline: datetime) -> Reply:
        return await self._in_thread(lambda: self._calls.stop(target, deadline))

    async def stop_job(self, names: tuple[str, ...], deadline: datetime) -> Reply:
        return await self._in_thread(lambda: self._calls.stop_job(names, deadline))

    async def hold(self, target: Target, deadline: datetime) -> Reply:
        return await self._in_thread(lambda: self._calls.hold(target, deadline))

    async def release(self, target: Target, deadline: datetime) -> Reply:
        return await self._in_thread(lambda: self._calls.release(target, deadline))

    async def requeue(self, target: Target, deadline: datetime) -> Reply:
        return await self._in_thread(lambda: self._calls.requeue(target, deadline))

    async def read_log(self, target: Target, stream: int, begin: int, length: int) -> Piece:
        return await self._in_thread(lambda: self._read(target, stream, begin, length))

    def _read(self, target: Target, stream: int, begin: int, length: int) -> Piece:
        folder = os.path.join(self._calls.objects, target.id if places.is_id(target.id) else "none")
        where = places.run_folder(folder, target.run)
        path = os.path.join(where, (places.STDOUT, places.STDERR)[stream - 1])
        try:
            with open(path, "rb") as file:
                file.seek(begin)
                data = file.read(length)
                return Piece(log=Log.THERE, data=data, size=os.fstat(file.fileno()).st_size, path=path)
        except FileNotFoundError:
            begun = not os.path.isdir(folder) or places.has(where, places.LAUNCHED)
            return Piece(log=Log.GONE if begun else Log.NOT_BEGUN, path=path)
        except OSError:
            return Piece(log=Log.GONE, path=path)

    async def settled(self, uid: str, names: tuple[str, ...]) -> None:
        """Nothing is kept for it."""

    async def kept(self) -> frozenset[str]:
        return frozenset()

    async def close(self) -> None:
        self._closed = True
        await self._listings.close()
        for threads in (self._threads, self._looker):
            await asyncio.to_thread(threads.shutdown)

    async def _look(self) -> Snapshot:
        loop = asyncio.get_running_loop()
        began = loop.time()
        snapshot = await loop.run_in_executor(self._looker, self._lister.snapshot)
        self._took = loop.time() - began
        return snapshot

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        if self._closed:
            raise closed()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def prepare(root: str) -> None:
    """Make the spool, or check the one that is there. Raises BadInput with one line that says what is wrong with it."""
    try:
        os.makedirs(root, 0o700, exist_ok=True)
        found = os.stat(root)
        if not stat.S_ISDIR(found.st_mode):
            raise BadInput(f"the spool {root} is not a directory; give the local scheduler another one")
        if found.st_uid != os.geteuid():
            raise BadInput(f"the spool {root} belongs to another user; give the local scheduler one of your own")
        kind = _file_system(root)
        if kind.startswith(NETWORK):
            raise BadInput(f"the spool {root} is on {kind}, which other hosts may share; choose a local directory")
        for name in (places.STAGING, places.OBJECTS, places.SLOTS):
            os.makedirs(os.path.join(root, name), 0o700, exist_ok=True)
        number = os.open(os.path.join(root, places.CLAIM), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(number, fcntl.LOCK_SH)
        finally:
            places.drop(number)
    except OSError as error:
        raise BadInput(
            f"the spool {root} cannot be used: {error}; give the local scheduler another directory"
        ) from error


def _file_system(root: str) -> str:
    """The kind of file system that a directory is on."""
    device = os.stat(root).st_dev
    with open("/proc/self/mountinfo") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            if before.split()[2] == f"{os.major(device)}:{os.minor(device)}":
                return after.split()[0]
    return ""
