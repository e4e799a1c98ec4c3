"""Waiting for a job in the worker itself: the trigger's own work, in an event loop of the worker's.

One rule: it is the same supervisor with the same bounds, and a worker that is ended drains it as a triggerer does: the
step in flight is finished or left unknown, the lease is given up, and the job goes on. A retry finds the same job.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

from airflow_provider.trigger import DispatchTrigger


class Ended(Exception):
    """The worker was told to end; the job goes on."""


class Waiting:
    """One wait, and a way to end it from a signal handler, which may interrupt anything."""

    def __init__(self, is_ended: Callable[[], bool]) -> None:
        self._is_ended = is_ended
        self._leave: Callable[[], object] | None = None

    def end(self) -> None:
        if self._leave is not None:
            self._leave()

    def run(self, trigger: DispatchTrigger) -> dict[str, Any]:
        """The payload of the trigger's event. Raises Ended."""
        # Airflow's alarm for `execution_timeout` would break into the loop anywhere; the trigger keeps that bound.
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            return asyncio.run(self._event(trigger))
        except (asyncio.CancelledError, KeyboardInterrupt):
            raise Ended from None
        finally:
            self._leave = None

    async def _event(self, trigger: DispatchTrigger) -> dict[str, Any]:
        loop, work = asyncio.get_running_loop(), asyncio.current_task()
        assert work is not None  # noqa: S101 - this runs as one
        self._leave = lambda: loop.call_soon_threadsafe(work.cancel)
        if self._is_ended():
            raise asyncio.CancelledError
        events = [dict(event.payload) async for event in trigger.run()]
        return events[0]
