"""How many new objects a cluster takes: so many a second, and so many alive at a time.

One rule: nobody is turned away by a call. Who may launch is told in the listing whether there is room, and if not, when
to ask again, in the order in which they first asked; so a thousand jobs at once cost no attempt more than one. The caps
hold for one connection: two processes may launch twice as fast.
"""

from __future__ import annotations

from collections.abc import Callable

FULL_SECONDS = 15.0
"""When to ask again where only the end of something makes room."""
FORGET_SECONDS = 180.0
"""A place in the queue that nobody asks for any more is given up after so long."""


class Room:
    """Places for new objects, given out in the order of asking."""

    def __init__(self, a_second: float, alive: int | None, clock: Callable[[], float]) -> None:
        self._a_second, self._alive, self._clock = a_second, alive, clock
        self._waiting: dict[str, float] = {}
        """Who waits for a place, the first first, and when it last asked."""
        self._given: dict[str, float] = {}
        """Who was given a place, and since when; until its object is listed, or for as long as a Start may take."""
        self._next = 0.0
        """When the next place is given."""

    def seconds(self, uid: str, alive: int, start_seconds: float) -> float:
        """How long this job has to wait for a place, at least about; 0: it has one now, for `start_seconds`.

        `alive` is how many of our objects the listing shows alive.
        """
        now = self._clock()
        self._forget(now, start_seconds)
        if uid in self._given:
            return 0.0
        self._waiting[uid] = now
        ahead = next(place for place, waiting in enumerate(self._waiting) if waiting == uid)
        if self._alive is not None and alive + len(self._given) + ahead >= self._alive:
            return FULL_SECONDS
        wait = max(0.0, self._next - now) + ahead / self._a_second
        if wait > 0:
            return wait
        del self._waiting[uid]
        self._given[uid] = now
        self._next = max(self._next, now - 1.0) + 1.0 / self._a_second
        return 0.0

    def listed(self, uid: str) -> None:
        """Its object is in the queue: it needs its place no longer."""
        self._given.pop(uid, None)
        self._waiting.pop(uid, None)

    def _forget(self, now: float, start_seconds: float) -> None:
        while self._given and now - next(iter(self._given.values())) > start_seconds:
            del self._given[next(iter(self._given))]
        for uid in [uid for uid, asked in self._waiting.items() if now - asked > FORGET_SECONDS]:
            del self._waiting[uid]
