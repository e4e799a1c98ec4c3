"""One call on its way to the scheduler's host, and its reply on the way back.

One rule: what the host let through takes effect within the declared bound of that moment, a Start excepted. What its
sender learns of it is another matter: nothing, an error, or the reply.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from dispatch_core.guards import guard
from dispatch_core.record import Answer, Kind, Reply
from dispatch_core.simulator.faults import Fault, Meets, step_of
from dispatch_core.simulator.tape import Branch
from dispatch_core.simulator.trace import Arrived, Sent
from dispatch_core.simulator.world import World

Back = Callable[..., None]
"""The way back to the sender: a reply or an error, and after how many seconds."""

BUSY = "the controller is busy"
"""How the scheduler refuses what it could have carried out."""


@guard("host_refuses_after_deadline", promise="L1", without=True)
def is_in_time(now: datetime, deadline: datetime) -> bool:
    """The host refuses a call that starts after its deadline, by its own clock."""
    return now <= deadline


def is_beyond(world: World, sent: Sent) -> bool:
    """Whether a call has expired."""
    return (world.host_now() - sent.deadline).total_seconds() > world.bounds.call_seconds


class Flight(Meets):
    """One call: what will go wrong with it is drawn when it is sent. `act` is what it does at the scheduler."""

    def __init__(self, world: World, tape: Branch, sent: Sent, act: Callable[[], Reply]) -> None:
        super().__init__(world.faults, tape)
        self.world = world
        self.tape = tape
        self.sent = sent
        self.act = act
        self.there = tape.seconds(0.05, 1.0)
        """Seconds until it reaches the host."""
        self._back = tape.seconds(0.05, 0.5)
        self._slow = world.now < world.slow_until
        if self._slow:
            self.there += 28.0
        if self._struck(Fault.CALL_LATE):
            self.there = world.bounds.window_seconds * tape.seconds(1.0, 3.0)
        self._lingers = 0.0
        tries = 3 if sent.kind in (Kind.HOLD, Kind.RELEASE) else 1  # there are few of them
        late = any(self._struck(Fault.EFFECT_LATE) for _ in range(tries))
        latest = self._latest()
        if late or latest is not None:
            self._linger(0.6 if latest is None else latest)
        self._lost = self._struck(Fault.CALL_LOST)
        self._again: float | None = None
        self._lingers_again = 0.0
        if self._struck(Fault.CALL_DOUBLED):
            self._double()
        self._answers_twice = self._again is not None and tape.chance(0.3)
        self._refused = self._struck(Fault.CALL_REFUSED)
        self._reply_lost = self._struck(Fault.REPLY_LOST)
        self._reply_broken = self._struck(Fault.REPLY_BROKEN)

    def _double(self) -> None:
        """It is delivered a second time: some time after the first, or as late as it can be."""
        world, tape = self.world, self.tape
        if world.faults.has(Fault.EFFECT_LATE) and tape.chance(0.5):
            left = (self.sent.deadline - world.host_now()).total_seconds()
            self._again = max(0.1, left - self.there - tape.seconds(0.1, 2.0))
            self._lingers_again = world.bounds.call_seconds * tape.seconds(0.9, 0.999)
        else:
            self._again = tape.seconds(0.1, world.bounds.window_seconds)

    def _latest(self) -> float | None:
        """How often a call of this kind takes effect as late as it can; None: it need not be late at all."""
        faults = self.world.faults
        if self.sent.kind is None or faults.calm or faults.is_muted(Fault.EFFECT_LATE):
            return None
        return self.world.lingering.get(self.sent.kind)

    def _linger(self, latest: float) -> None:
        """It takes effect some time after the host let it through: often as late as it can."""
        bound = self.world.bounds.call_seconds
        if self.tape.chance(latest):
            left = (self.sent.deadline - self.world.host_now()).total_seconds()
            self.there = max(self.there, left - self.tape.seconds(0.1, 2.0))
            self._lingers = bound * self.tape.seconds(0.9, 0.999)
        else:
            self._lingers = bound * self.tape.seconds(0.3, 0.999)

    def arrive(self, back: Back) -> None:
        """It reaches the host, or it does not."""
        world = self.world
        if self._again is not None:
            world.clock.at(world.now + self._again, self._arrive_again, back)
        if self._slow:
            world.count(Fault.SLOWNESS)
        if world.now < world.silent_until:
            world.count(Fault.SILENCE)
        elif self._lost:
            world.count(Fault.CALL_LOST)
        elif not self._is_let_through():
            self._answer(back, self._arrived(Reply(answer=Answer.LATE)))
        elif self._refused:
            world.count(Fault.CALL_REFUSED)
            self._answer(back, self._arrived(Reply(answer=Answer.REFUSED, text=BUSY)))
        else:
            self._take_effect(back)

    def _arrive_again(self, back: Back) -> None:
        """The same call, delivered a second time; its sender may hear of this one only."""
        if self.world.now < self.world.silent_until:
            self.world.count(Fault.SILENCE)
            return
        if not self._is_let_through():
            self._answer_again(back, self._arrived(Reply(answer=Answer.LATE), again=True))
        elif self._lingers_again:
            self.world.on_the_way += 1
            self.world.clock.at(self.world.now + self._lingers_again, self._land_again, back)
        else:
            self._answer_again(back, self._act(again=True))

    def _land_again(self, back: Back) -> None:
        self.world.count(Fault.EFFECT_LATE)
        self.world.on_the_way -= 1
        self.world.last_landing = self.world.now
        self._answer_again(back, self._act(again=True))

    def _answer_again(self, back: Back, reply: Reply) -> None:
        self.world.count(Fault.CALL_DOUBLED, step_of(reply.answer is Answer.DONE))
        if self._answers_twice:
            back(reply, self._back)

    def _is_let_through(self) -> bool:
        in_time = is_in_time(self.world.host_now(), self.sent.deadline)
        if not in_time:
            self.world.count(Fault.CALL_LATE)
        return in_time

    def _take_effect(self, back: Back) -> None:
        delay = self._delay()
        if delay == 0.0:
            self._answer(back, self._act())
            return
        self.world.on_the_way += 1
        self.world.clock.at(self.world.now + delay, self._land, back)

    def _delay(self) -> float:
        """How long after the host let it through it takes effect."""
        world, bound = self.world, self.world.bounds.call_seconds
        if self.sent.kind is None and self._struck(Fault.START_BEYOND_BOUND):
            world.count(Fault.START_BEYOND_BOUND)
            left = (self.sent.deadline - world.host_now()).total_seconds()
            return left + bound + self.tape.among((5.0, 60.0, 200.0, 600.0)) * self.tape.seconds(0.5, 1.5)
        return self._lingers

    def _land(self, back: Back) -> None:
        if self._lingers:
            self.world.count(Fault.EFFECT_LATE)
        self.world.on_the_way -= 1
        self.world.last_landing = self.world.now
        self._answer(back, self._act())

    def _answer(self, back: Back, reply: Reply) -> None:
        if self._answers_twice:
            return  # its sender hears of the second arrival
        if self._reply_lost:
            self.world.count(Fault.REPLY_LOST, step_of(reply.answer is Answer.DONE))
        elif self._reply_broken:
            self.world.count(Fault.REPLY_BROKEN, step_of(reply.answer is Answer.DONE))
            back(OSError("the connection was reset"), self._back)
        else:
            back(reply, self._back)

    def _act(self, *, again: bool = False) -> Reply:
        world, sent = self.world, self.sent
        thing = world.scheduler.things.get(sent.object) if sent.object is not None else None
        taken = world.scheduler.reused.get(sent.object) if sent.object is not None else None
        name, run = (thing.name, thing.run) if thing is not None else (taken or "", sent.run if taken else 0)
        ignored = sent.kind is Kind.STOP and thing is not None and thing.alive and self._struck(Fault.STOP_IGNORED)
        if thing is not None and ignored:
            thing.stubborn, stubborn = True, thing.stubborn
            reply = self.act()  # the host compares all the same
            thing.stubborn = stubborn
            if reply.answer is Answer.DONE:
                world.count(Fault.STOP_IGNORED)
        else:
            reply = self.act()
        self._arrived(reply, name, run, again=again)
        world.changed()
        return reply

    def _arrived(self, reply: Reply, name: str = "", run: int = 0, *, again: bool = False) -> Reply:
        beyond = is_beyond(self.world, self.sent)
        answers = again is self._answers_twice
        self.world.tell(Arrived(self.world.now, self.sent, reply, name, run, beyond, again, answers))
        return reply
