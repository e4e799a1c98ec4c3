"""One simulated world: a scheduler, a store, a clock, what goes wrong, and a trace of all that happened.

One rule: the world knows what is true and decides nothing. Actors reach it only through their connections (`host`,
`database`), and every event passes `tell`, where it is written down and judged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from dispatch_core.evidence import Bounds, Capabilities
from dispatch_core.record import Kind, Record
from dispatch_core.simulator.clock import Actor, Clock
from dispatch_core.simulator.faults import AFTER, BEFORE, DURING, Fault, Faults
from dispatch_core.simulator.scheduler import Scheduler
from dispatch_core.simulator.tape import Branch, Tape
from dispatch_core.simulator.trace import Committed, Event, Faulted, Stopped
from dispatch_core.stores.contract import Lease
from dispatch_core.stores.memory import MemoryStore

KEY = "train"
UID = "0f3a9c21"
CLUSTER = "cluster"
EPOCH = datetime.fromisoformat("2030-01-01T00:00:00+00:00")
"""When every history begins."""
_AROUND = (Fault.CRASH, Fault.STALL)
"""What may happen to an actor around any of its exchanges."""


class Ended(BaseException):
    """Unwinds an actor that is ended from outside: nothing that it still does reaches the world."""


class Point(NamedTuple):
    """A targeted fault: what happens at which of an actor's exchanges with the world, and on which side of it."""

    number: int
    what: str
    """crash, or stall."""
    side: str
    """before, during, after."""


class Voice:
    """As whom somebody is told of; one actor that does two things at a time has two."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.read = 0
        """The revision that it read last."""


class Being(Actor):
    """An actor of this world."""

    def __init__(self, name: str, tape: Branch) -> None:
        super().__init__(name)
        self.tape = tape
        self.voice = Voice(name)
        self.clock_off = 0.0
        self.mistold: datetime | None = None
        """The wrong time that its own clock showed last."""
        self.exchanges = 0
        self.waiting: dict[asyncio.Future[Any], None] = {}
        """What it waits for, in the order in which it began to."""
        self.work: asyncio.Task[Any] | None = None
        self.ends = 0
        """How often it has come to its end."""
        self.unwinding = False


class World:
    """What is true. `judge` is told every event."""

    def __init__(
        self, tape: Tape, faults: Faults, bounds: Bounds, capabilities: Capabilities, judge: Callable[[Event], None]
    ) -> None:
        self.tape = tape
        self.chances = tape.branch("world")
        self.faults = faults
        self.bounds = bounds
        self.capabilities = capabilities
        self.clock = Clock()  # type: ignore[abstract]  # what it lacks, sockets and signals, nobody here uses
        self.store = MemoryStore(self.host_now)
        self.scheduler = Scheduler(
            key=KEY,
            now=self.host_now,
            time=self.clock.time,
            tell=self.tell,
            requeues=capabilities.requeues,
            starts_once=capabilities.starts_once,
        )
        self.trace: list[Event] = []
        self.sent = 0
        self.ids = 0
        self.on_the_way = 0
        """Starts that were let through and have not made their object."""
        self.last_landing = 0.0
        self.silent_until = 0.0
        self.slow_until = 0.0
        self.down_until = 0.0
        self.blank = False
        """A listing that shows nothing may say that it is not complete."""
        self.lingering: Mapping[Kind, float] = {}
        """Calls of these kinds always take effect late; and how often as late as they can."""
        self.lie: tuple[float, float, str | None] | None = None
        """The one stretch of time in which listings may lie; about one object, or about all."""
        self.watchers: dict[asyncio.Future[Any], Being] = {}
        self.beings: dict[str, Being] = {}
        self.revisions: list[Record] = []
        self.documents: list[bytes] = []
        """Of the revisions, as the store keeps them."""
        self.target: Point | None = None
        self.on_event: Callable[[Event], None] = lambda event: None
        """Whoever makes things happen next."""
        self._judge = judge

    # --- clocks

    @property
    def now(self) -> float:
        return self.clock.now

    def host_now(self) -> datetime:
        return EPOCH + timedelta(0, self.clock.now)

    def own_now(self, being: Being) -> datetime:
        """The time by an actor's own clock."""
        now = self.host_now() + timedelta(seconds=being.clock_off)
        being.mistold = now if being.clock_off else None
        return now

    # --- telling

    def tell(self, event: Event) -> None:
        self.trace.append(event)
        if type(event) is Committed:
            self.revisions.append(event.after)
            self.documents.append(self.store.rows[UID].document)
        self._judge(event)
        self.on_event(event)

    def count(self, fault: Fault, step: str = "") -> None:
        self.faults.count(fault, step)
        self.tell(Faulted(self.now, fault))

    # --- the record

    @property
    def record(self) -> Record | None:
        """The newest revision."""
        return self.revisions[-1] if self.revisions else None

    def revision(self, number: int) -> Record:
        return self.revisions[number - 1]

    def holds(self, lease: Lease | None) -> bool:
        """Whether a lease is the newest of the job."""
        return lease is not None and self.store.rows[lease.uid].holds(lease)

    # --- actors

    def being(self, name: str) -> Being:
        if name not in self.beings:
            self.beings[name] = Being(name, self.tape.branch(name))
        return self.beings[name]

    def fresh_id(self) -> str:
        self.ids += 1
        return f"commit{self.ids:08d}"

    def begin(self, being: Being, work: Callable[[], Coroutine[Any, Any, Any]], after: Callable[[str], None]) -> None:
        """Let an actor run; `after` is told how it came to its end."""
        being.unwinding = False

        async def run() -> None:
            why, error = "done", None
            try:
                await work()
            except Ended:
                why = "crash"
            except asyncio.CancelledError:
                why = "crash" if being.unwinding else "left"
            except Exception as raised:  # noqa: BLE001 - what an actor raises is the history's finding
                why, error = type(raised).__name__, raised
            being.work = None
            being.ends += 1
            self.tell(Stopped(self.now, being.name, why, error))
            after(why)

        being.work = self.clock.begin(being, run())

    def crash(self, being: Being) -> None:
        """End an actor as kill -9 does: from now on nothing that it does reaches the world."""
        if being.work is None or being.unwinding:
            return
        being.unwinding = True
        self.clock.resume(being)
        for future in tuple(being.waiting):
            if not future.done():
                future.set_exception(Ended())
        being.waiting.clear()
        being.work.cancel()

    async def sleep(self, being: Being, seconds: float) -> None:
        """An actor that waits, and nothing else."""
        future: asyncio.Future[None] = self.clock.create_future()
        being.waiting[future] = None
        self.clock.at(self.now + seconds, resume, future, actor=being)
        try:
            await future
        finally:
            being.waiting.pop(future, None)

    # --- one exchange between an actor and the world

    async def exchange(self, being: Being, there: float, act: Callable[[Callable[[Any], None]], None]) -> Any:
        """Send something that reaches its goal after `there` seconds; `act` happens then, and is given the way back.

        What `act` hands back reaches the actor when it calls the way back with (a delay, and) a value or an exception;
        where it never does, the actor waits until it gives up.
        """
        if being.unwinding:
            raise Ended
        being.exchanges += 1
        what, side = self._struck(being)
        if side == BEFORE:
            await self._strike(being, what, side)
        clock = self.clock
        future: asyncio.Future[Any] = clock.create_future()
        being.waiting[future] = None

        def deliver(value: Any) -> None:
            if future.done() or being.unwinding:
                return
            if isinstance(value, Exception):
                future.set_exception(value)
            else:
                future.set_result(value)

        def back(value: Any, seconds: float = 0.0) -> None:
            if seconds:
                clock.at(clock.now + seconds, deliver, value, actor=being)
                return
            before, clock.acting = clock.acting, being
            deliver(value)
            clock.acting = before

        clock.at(clock.now + there, act, back)
        try:
            if side == DURING:
                await self._strike(being, what, side)
            answer = await future
        finally:
            being.waiting.pop(future, None)
            future.cancel()  # nobody waits for it any more
        if side == AFTER:
            await self._strike(being, what, side)
        return answer

    def _struck(self, being: Being) -> tuple[str, str]:
        """What happens to an actor around this exchange, and on which side of it; "" for nothing."""
        if self.target is not None:
            hit = being.name == "a" and being.exchanges == self.target.number
            return (self.target.what, self.target.side) if hit else ("", "")
        for fault in _AROUND:
            if self.faults.strikes(fault, being.tape):
                return fault.value, being.tape.among((DURING, BEFORE, AFTER))
        return "", ""

    async def _strike(self, being: Being, what: str, side: str) -> None:
        if what == Fault.CRASH:
            self.count(Fault.CRASH, side)
            self.crash(being)
            raise Ended
        self.count(Fault.STALL, side)
        self.clock.pause(being, being.tape.among((20.0, 1.0, 45.0, 90.0, 300.0)) * being.tape.seconds(0.8, 1.2))
        moment = self.clock.create_future()
        being.waiting[moment] = None
        self.clock.at(self.now, resume, moment, actor=being)
        try:
            await moment
        finally:
            being.waiting.pop(moment, None)

    # --- watching

    def changed(self) -> None:
        """Something about the job has changed: wake those who watch."""
        for future, being in tuple(self.watchers.items()):
            if self.faults.strikes(Fault.WATCH_MISSES, being.tape):
                self.count(Fault.WATCH_MISSES)
                continue
            self.clock.at(self.now + being.tape.seconds(0.05, 0.5), resume, future, actor=being)


def resume(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(None)
