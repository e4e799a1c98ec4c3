"""What a check is given, and what it is written with.

One rule: every wait has a bound, `patience_seconds`; what must not happen is watched for during `quiet_seconds`. Each
check makes jobs of its own, so that all may share one cluster.
"""

from __future__ import annotations

import asyncio
import secrets as chance
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import datetime, timedelta

from dispatch_core.adapters.contract import Adapter, Job, Launch, Target
from dispatch_core.evidence import Listing, Sighting
from dispatch_core.names import object_name
from dispatch_core.plan import Spec
from dispatch_core.record import Answer, Kind, Reply, State


class NotConforming(AssertionError):
    """The adapter does not do what the contract asks for."""


class Rig(ABC):
    """One connection to a cluster, and payloads whose doings can be seen from here."""

    adapter: Adapter
    patience_seconds: float = 30.0
    """How long a check waits for something to happen."""
    quiet_seconds: float = 1.0
    """How long it watches that something does not: several times what an opened payload takes to write its line."""
    unenforced: frozenset[Kind] = frozenset()
    """Calls whose deadline this scheduler's host cannot judge; never hold, release or requeue."""

    @abstractmethod
    def payload(self, line: str, *, waits: bool = False, exit_code: int = 0, signal: int = 0) -> Spec:
        """A payload that appends `line` to its output and to `lines`, waits for `go(line)` if it `waits`, and then ends
        as told."""

    @abstractmethod
    async def go(self, line: str) -> None:
        """Let the payloads with this line end."""

    @abstractmethod
    async def lines(self) -> list[str]:
        """All lines that payloads have appended so far."""

    @abstractmethod
    def recital(self, place: str, arguments: tuple[str, ...], names: tuple[str, ...]) -> Spec:
        """A payload that writes down its arguments, and these variables of its environment, under `place`."""

    @abstractmethod
    async def recited(self, place: str) -> tuple[list[str], dict[str, str | None]] | None:
        """What a recital wrote: its arguments and variables; None: nothing yet."""

    async def leaks(self, secret: str) -> list[str]:
        """Where others could read a secret: command lines, files that are not the run's user's alone."""
        return []

    async def patiently(self) -> AsyncIterator[None]:
        """Look again and again, until patience is at its end."""
        until = asyncio.get_running_loop().time() + self.patience_seconds
        while asyncio.get_running_loop().time() < until:
            yield
            await asyncio.sleep(0.05)

    def listings(self) -> int | None:
        """How often the cluster was asked for a listing so far; None: it is not counted."""
        return None


Check = Callable[[Rig], Awaitable[None]]
CHECKS: list[Check] = []
CLOSING: list[Check] = []
SHOWS: dict[str, tuple[str, ...]] = {}
"""The promises that a check shows, by its name."""


def check(*promises: str, into: list[Check] = CHECKS) -> Callable[[Check], Check]:
    def noted(function: Check) -> Check:
        into.append(function)
        SHOWS[function.__name__] = promises
        return function

    return noted


def expect(holds: bool, sentence: str) -> None:
    if not holds:
        raise NotConforming(sentence)


def expect_reply(reply: Reply, *answers: Answer) -> None:
    wanted = " or ".join(answers)
    expect(reply.answer in answers, f"the reply is {reply.answer} ({reply.text}), and should be {wanted}")


class Case:
    """One job of a check, and its objects."""

    def __init__(self, rig: Rig, key: str | None = None) -> None:
        self.rig, self.adapter = rig, rig.adapter
        self.uid = chance.token_hex(8)
        self.job = Job(key=key or f"conformance {self.uid}", uid=self.uid)
        self.line = f"line-{self.uid}"

    def launch(self, spec: Spec, attempt: int = 1, previous_cause: str = "") -> Launch:
        return Launch(
            key=self.job.key,
            uid=self.uid,
            submission=1,
            attempt=attempt,
            name=object_name(self.uid, 1, attempt),
            spec=spec,
            may_requeue=self.adapter.capabilities.requeues,
            previous_cause=previous_cause,
        )

    async def in_time(self) -> datetime:
        return (await self.find()).ended + timedelta(seconds=self.adapter.bounds.window_seconds)

    async def too_late(self) -> datetime:
        return (await self.find()).began - timedelta(seconds=1)

    async def find(self) -> Listing:
        listing = await self.adapter.find(self.job)
        expect(listing.complete, "a listing of an undisturbed cluster is not complete")
        expect(listing.began <= listing.ended, "a listing ended before it began")
        return listing

    async def seen(self, id: str) -> Sighting:
        shown = [sighting for sighting in (await self.find()).objects if sighting.id == id]
        expect(len(shown) == 1, f"the listing shows the object {id} {len(shown)} times")
        return shown[0]

    async def started(
        self, spec: Spec | None = None, attempt: int = 1, secrets: Mapping[str, str] | None = None, cause: str = ""
    ) -> Target:
        """A new gated object."""
        launch = self.launch(spec or self.rig.payload(self.line), attempt, cause)
        reply = await self.adapter.start(launch, secrets or {}, await self.in_time())
        expect_reply(reply, Answer.DONE)
        return Target(id=reply.text, name=launch.name, run=1)

    async def open(self, target: Target) -> None:
        expect_reply(await self.adapter.open(target, await self.in_time()), Answer.DONE)

    async def until(self, target: Target, *states: State) -> Sighting:
        """Wait until the object is in one of these states."""
        shown = await self.seen(target.id)
        try:
            async with asyncio.timeout(self.rig.patience_seconds):
                while shown.state not in states:
                    await self.adapter.watch(self.job, 0.2)
                    shown = await self.seen(target.id)
        except TimeoutError:
            wanted = " or ".join(states)
            raise NotConforming(f"the object is {shown.state} for too long, and should become {wanted}") from None
        return shown

    async def ran(self, times: int) -> None:
        """Wait until the payload has run so often."""
        async for _ in self.rig.patiently():
            if await self.runs() >= times:
                break
        expect(await self.runs() == times, f"the payload ran {await self.runs()} times, not {times} times")

    async def runs(self) -> int:
        return (await self.rig.lines()).count(self.line)

    async def stays(self, target: Target, state: State, runs: int = 0) -> None:
        """Watch that the object stays what it is, and that its payload does not run."""
        await asyncio.sleep(self.rig.quiet_seconds)
        shown = await self.seen(target.id)
        expect(shown.state is state, f"the object became {shown.state}, and should have stayed {state}")
        expect(await self.runs() == runs, f"the payload ran {await self.runs()} times, not {runs} times")

    async def running(self, attempt: int = 1) -> Target:
        """A new object whose payload waits for `go`."""
        target = await self.started(self.rig.payload(self.line, waits=True), attempt)
        before = await self.runs()
        await self.open(target)
        await self.until(target, State.RUNNING)
        await self.ran(before + 1)
        return target


def later(target: Target) -> Target:
    return Target(id=target.id, name=target.name, run=target.run + 1)
