"""What happened at the scheduler, as sentences: objects, runs and ends, and what admins and strangers did.

One rule: what a call did is not said here but where its arrival is; only what made it come out as it did is: that an
object ignored a stop, or ended slowly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dispatch_core.plan import End
from dispatch_core.record import Answer, Kind, State
from dispatch_core.simulator.sentences import Sentences
from dispatch_core.simulator.trace import (
    Arrived,
    Ending,
    Event,
    Finished,
    HoldBit,
    Made,
    Noted,
    Opened,
    Reran,
    Slipped,
    Started,
    Vanished,
)
from dispatch_core.simulator.wording import end_words

OBEYS, SLOWLY, IGNORES = "obeys", "ends slowly", "ignores stops"


class Stage:
    """The scheduler of one history. `progress`: whether a rule asks for it."""

    def __init__(self, sentences: Sentences, *, progress: bool) -> None:
        self._say = sentences.say
        self._progress = progress
        self._phases: dict[str, State] = {}
        self._names: dict[str, str] = {}
        self._habits: dict[str, str] = {}
        """What a stop does to an object; OBEYS where nothing was said."""
        self._touched: set[str] = set()
        """What the call that arrives next has stopped."""
        self._reran: set[tuple[str, int]] = set()
        """Runs that came back with their gate open."""
        self._ended_by_rerun: End | None = None
        self._making = ""
        """The object that a Start has just made, whose arrival is not said yet."""
        self._of_it: list[str] = []
        """What is to be said of it once it is."""
        self._hears: dict[type, Callable[[int, Any], None]] = {
            Made: self._made,
            Opened: self._opened,
            Started: self._started,
            Ending: self._ending,
            Finished: self._finished,
            Reran: self._reruns,
            HoldBit: self._hold,
            Vanished: self._vanished,
            Slipped: self._slipped,
            Noted: self._noted,
        }

    def hear(self, place: int, event: Event) -> None:
        hears = self._hears.get(type(event))
        if hears is not None:
            hears(place, event)

    def has_arrived(self, place: int, at: float) -> None:
        """Say what is to be said of an object only after the arrival of the Start that made it."""
        for text in self._of_it:
            self._say(place, at, text)
        self._making, self._of_it = "", []

    def stopped(self, place: int, event: Arrived) -> None:
        """Say of a stop that arrived why it did not do what it might have."""
        touched, self._touched = self._touched, set()
        if event.again or event.reply.answer is Answer.DONE:
            names = event.sent.names if event.sent.kind is Kind.STOP_JOB else ()
            ids = [id for id, name in self._names.items() if name in names]
            if event.sent.kind is Kind.STOP and event.sent.object in self._phases and event.run == event.sent.run:
                ids.append(event.sent.object)
            for id in ids:
                if id not in touched and self._phases[id] is not State.ENDED:
                    slow = self._phases[id] is State.ENDING and self._habits.get(id) != IGNORES
                    self._has_habit(place, event.at, id, SLOWLY if slow else IGNORES)

    # --- each kind

    def _made(self, place: int, event: Made) -> None:
        self._phases[event.id], self._names[event.id] = event.phase, event.name
        self._making = event.id if event.by is not None else ""
        if event.by is None:
            self._say(place, event.at, f"foreign {event.id} appears as {event.name}, {event.phase}")

    def _opened(self, place: int, event: Opened) -> None:
        if event.by is None and (event.id, event.run) not in self._reran:
            self._say(place, event.at, f"admin opens {event.id}")

    def _started(self, place: int, event: Started) -> None:
        self._phases[event.id] = State.RUNNING
        nodes = f" on {' '.join(event.nodes)}" if event.nodes else ""
        self._say(place, event.at, f"{event.id} runs{nodes}")

    def _ending(self, place: int, event: Ending) -> None:
        self._phases[event.id] = State.ENDING
        if event.by == "":
            end = f" {end_words(event.end)}" if event.end is not None else ""
            self._say(place, event.at, f"{event.id} is ending{end}")
            return
        self._has_habit(place, event.at, event.id, SLOWLY)
        self._asked(place, event)

    def _finished(self, place: int, event: Finished) -> None:
        before, self._phases[event.id] = self._phases.get(event.id), State.ENDED
        if event.by == "":
            self._say(place, event.at, f"{event.id} ends{f' {end_words(event.end)}' if event.told else ''}")
        elif event.by == "rerun":
            self._ended_by_rerun = event.end if event.told else None
        elif event.by in ("call", "admin"):
            habit = self._habits.get(event.id, OBEYS)
            if habit == IGNORES or (habit == SLOWLY and before in (State.RUNNING, State.ENDING)):
                self._has_habit(place, event.at, event.id, OBEYS)
            self._asked(place, event)

    def _asked(self, place: int, event: Ending | Finished) -> None:
        if event.by == "admin":
            self._say(place, event.at, f"admin stops {event.id}")
        else:
            self._touched.add(event.id)

    def _reruns(self, place: int, event: Reran) -> None:
        self._phases[event.id] = State.PENDING
        end, self._ended_by_rerun = self._ended_by_rerun, None
        if event.open:
            self._reran.add((event.id, event.run))
        if event.by is None:
            self._say(place, event.at, f"{event.id} reruns{f' after {end_words(end)}' if end is not None else ''}")

    def _hold(self, place: int, event: HoldBit) -> None:
        if event.by is None:
            self._say(place, event.at, f"admin {'holds' if event.on else 'releases'} {event.id}")

    def _vanished(self, place: int, event: Vanished) -> None:
        del self._phases[event.id], self._names[event.id]
        self._say(place, event.at, f"{event.id} is {'lost' if event.lost else 'purged'}")
        if event.lost:
            self._say(place, event.at, f"somebody takes the id of {event.id}")

    def _slipped(self, place: int, event: Slipped) -> None:
        self._phases[event.id] = event.phase
        if event.relapse:
            self._say(place, event.at, f"{event.id} relapses")
            return
        how = "is found to be" if event.back else "rolls back to"
        self._say(place, event.at, f"{event.id} {how} {event.phase}")

    def _noted(self, place: int, event: Noted) -> None:
        if event.what == "is unrecognized":
            self._phases[event.id] = State.UNRECOGNIZED
        if event.id == self._making:
            self._of_it.append(f"{event.id} {event.what}")
        elif event.what != "progresses" or self._progress:
            self._say(place, event.at, f"{event.id} {event.what}")

    def _has_habit(self, place: float, at: float, id: str, habit: str) -> None:
        if self._habits.get(id, OBEYS) == habit:
            return
        if habit == SLOWLY and self._habits.get(id) == IGNORES:
            self._say(place, at, f"{id} {OBEYS}")
        self._habits[id] = habit
        self._say(place, at, f"{id} {habit}")
