"""Virtual time: an event loop in which nothing happens by itself, and everything at a time that the tape has drawn.

One rule: (code, seed) is the whole run. There is no thread, no socket and no real clock; what is due runs in the order
of its time, and of its scheduling where two times are equal. Every callback belongs to the actor that scheduled it, so
that an actor can be paused, as by SIGSTOP, or end, as by kill -9, between any two of its lines.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec


class Actor:
    """One program of its own: a supervisor, a person's client, the janitor."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.paused_until = 0.0
        self.missed: list[Due] = []
        """What was due while it was paused."""


class Due(msgspec.Struct, eq=False):
    """A callback that waits for its time; what asyncio calls a timer. No context is kept with it: nobody sets one."""

    time: float
    callback: Callable[..., object] | None
    args: tuple[Any, ...]
    actor: Actor | None

    def cancel(self) -> None:
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self.time


class Clock(asyncio.AbstractEventLoop):
    """The loop that the real supervisor, client and janitor run on."""

    def __init__(self) -> None:
        self.acting: Actor | None = None
        """Whose callback runs now; None: the world's."""
        self.broken: list[BaseException] = []
        """What nobody caught."""
        self.now = 0.0
        """Seconds since the history began."""
        self._count = 0
        self._later: list[tuple[float, int, Due]] = []
        self._ready: deque[Due] = deque()

    # --- what asyncio asks of a loop

    def time(self) -> float:
        return self.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: object = None
    ) -> Due:
        due = Due(self.now, callback, args, self.acting)
        self._ready.append(due)
        return due

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: object = None
    ) -> Due:
        return self._push(Due(self.now + delay, callback, args, self.acting))

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: object = None
    ) -> Due:
        return self._push(Due(when, callback, args, self.acting))

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, **options)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if "exception" in context:
            self.broken.append(context["exception"])

    # --- what a world asks of it

    def begin(self, actor: Actor, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Let an actor run, from now on."""
        before, self.acting = self.acting, actor
        try:
            return asyncio.Task(work, loop=self)
        finally:
            self.acting = before

    def at(self, when: float, callback: Callable[..., object], *args: Any, actor: Actor | None = None) -> Due:
        """Something that happens at this time: in the world, or as an answer to an actor."""
        return self._push(Due(when if when > self.now else self.now, callback, args, actor))

    def pause(self, actor: Actor, seconds: float) -> None:
        """Stop an actor, as SIGSTOP does; what is due meanwhile happens when it goes on."""
        actor.paused_until = max(actor.paused_until, self.now + seconds)
        self.at(actor.paused_until, self._may_resume, actor)

    def resume(self, actor: Actor) -> None:
        """Let a paused actor go on, as SIGCONT does."""
        actor.paused_until = self.now
        self._ready.extend(actor.missed)
        actor.missed.clear()

    def _may_resume(self, actor: Actor) -> None:
        if actor.paused_until <= self.now:
            self.resume(actor)

    def run_until(self, over: Callable[[], bool], limit: float) -> None:
        """Let time pass until `over`, until nothing is due any more, or until this time."""
        outer = events._get_running_loop()  # a world may be simulated from within a real loop, in a test
        events._set_running_loop(self)
        try:
            while not over():
                due = self._next(limit)
                if due is None:
                    return
                self.acting = due.actor
                due.callback(*due.args)  # type: ignore[misc]
        finally:
            self.acting = None
            events._set_running_loop(outer)

    def _next(self, limit: float) -> Due | None:
        """What is due next, of an actor that is not paused."""
        while True:
            if self._ready:
                due = self._ready.popleft()
            elif self._later and self._later[0][0] <= limit:
                self.now, _, due = heapq.heappop(self._later)
            else:
                self.now = max(self.now, limit) if self._later else self.now
                return None
            if due.callback is None:
                continue
            if due.actor is not None and due.actor.paused_until > self.now:
                due.actor.missed.append(due)
                continue
            return due

    def _push(self, due: Due) -> Due:
        self._count += 1
        heapq.heappush(self._later, (due.time, self._count, due))
        return due
