"""Sync and async pairs: one coroutine, and how code that is not async has it carried out.

One rule: there is one implementation, and it is async. What waits for it without being async waits in its own thread,
for a loop that this program has for all such waits, so that a thousand of them share one store and one watch. Whatever
ends such a wait early is passed on to the coroutine as a cancellation, and it is given the time to leave its job in
order before the wait ends.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

import anyio
from prefect.context import FlowRunContext, TaskRunContext
from prefect.exceptions import TerminationSignal
from prefect.tasks import Task

LOOK_SECONDS = 0.1
"""How often a wait looks up: what Prefect throws into a thread arrives between two looks only."""

LEAVE_SECONDS = 27.0
"""The longest that a wait which is ended early goes on, so that its job is left in order: a Prefect runner kills its
process after 30."""

P = ParamSpec("P")
T = TypeVar("T")

_ended_by: ContextVar[list[BaseException] | None] = ContextVar("dispatch_ended_by", default=None)
"""What has ended the wait for the coroutine that runs here; None: nobody waits for it in another thread."""

_starting = threading.Lock()
_loops: list[asyncio.AbstractEventLoop] = []


class TimeLimit:
    """Whether a time limit of Prefect's ended the coroutine that made this, and not a signal or a cancel."""

    def __init__(self) -> None:
        self._deadline = anyio.current_effective_deadline()
        self._ended_by = _ended_by.get()

    def is_over(self) -> bool:
        signals = (TerminationSignal, KeyboardInterrupt, SystemExit)
        thrown = any(not isinstance(error, signals) for error in self._ended_by or ())
        return thrown or anyio.current_time() >= self._deadline


def is_async_here() -> bool:
    """Whether the code that asks can await: as its task says, or its flow, or else whether a loop runs here."""
    task, flow = TaskRunContext.get(), FlowRunContext.get()
    if task is not None:
        return bool(task.task.isasync)
    if flow is not None and flow.flow is not None:
        return bool(flow.flow.isasync)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def carry_out(work: Coroutine[Any, Any, T]) -> T:
    """What the coroutine returns, waited for in this thread while it runs in this program's own loop."""
    loop, over, running = _loop(), threading.Event(), list[asyncio.Task[T]]()
    ended_by: list[BaseException] = []

    def start() -> None:
        _ended_by.set(ended_by)
        task = loop.create_task(work)
        running.append(task)
        task.add_done_callback(lambda _: over.set())

    loop.call_soon_threadsafe(start)  # with this thread's context: the run, its logger, its client
    try:
        while not over.wait(LOOK_SECONDS):
            pass
    except BaseException as early:
        ended_by.append(early)
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in running])
        over.wait(LEAVE_SECONDS)
        raise
    return running[0].result()


def paired(work: Callable[..., Coroutine[Any, Any, Any]]) -> Any:
    """The other half of a pair: in async code it returns `work`'s coroutine, elsewhere what that returns."""

    @functools.wraps(work)
    def either(*args: Any, **kwargs: Any) -> Any:
        coroutine = work(*args, **kwargs)
        return coroutine if is_async_here() else carry_out(coroutine)

    return either


class PairedTask(Task[P, T]):
    """A task on a coroutine function that a flow which is not async can call as well, and is then given the result.

    Submitted, or called where one can await, it is the async task that it is made of.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs) if is_async_here() else self._plain()(*args, **kwargs)

    def with_options(self, **options: Any) -> PairedTask[P, T]:
        made = super().with_options(**options)
        made.__class__ = type(self)
        return made  # type: ignore[return-value]  # Prefect makes a plain Task of whatever it is

    def _plain(self) -> Task[P, T]:
        """The same task, with a function that waits for the coroutine."""
        work: Any = self.fn

        @functools.wraps(work)
        def wait(*args: P.args, **kwargs: P.kwargs) -> T:
            return carry_out(work(*args, **kwargs))  # type: ignore[no-any-return]

        plain: Task[Any, Any] = self.with_options()
        plain.__class__ = Task
        plain.fn, plain.isasync, plain.task_key = wait, False, self.task_key
        return plain


def _loop() -> asyncio.AbstractEventLoop:
    with _starting:
        if not _loops:
            loop = asyncio.new_event_loop()
            # A daemon: what still waits at the program's end is left, as at any other end of a program.
            threading.Thread(target=loop.run_forever, name="dispatch", daemon=True).start()
            _loops.append(loop)
        return _loops[0]
