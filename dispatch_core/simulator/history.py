"""One history: a job from its submission to its end, on the real supervisor, client and janitor, and its judgement.

One rule: it is a function of the seed and what was asked for. Faults come for a while and then stop; from then on one
supervisor, the janitor and a person who answers what only a person can are left, and the job must come to its
end within BOUND_SECONDS.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from dispatch_core.client import Client
from dispatch_core.errors import BadInput, DispatchError
from dispatch_core.janitor import Janitor
from dispatch_core.plan import Secret
from dispatch_core.reasons import FOR_A_PERSON
from dispatch_core.simulator import plans
from dispatch_core.simulator.database import Database
from dispatch_core.simulator.explained import Explained
from dispatch_core.simulator.faults import Fault, Faults
from dispatch_core.simulator.host import Connection
from dispatch_core.simulator.laws import Judge, Violation, closing
from dispatch_core.simulator.moments import Moments, asked_for, disposes_as_asked
from dispatch_core.simulator.payload import Payload
from dispatch_core.simulator.profiles import draw_profile
from dispatch_core.simulator.sweeping import SweepingSupervisor
from dispatch_core.simulator.tape import Branch, Place, Tape
from dispatch_core.simulator.trace import JANITOR, SWEEPER, Arrived, Committed, Event, Looked, Made, Sent, Withheld
from dispatch_core.simulator.world import CLUSTER, KEY, UID, Being, Ended, Point, Voice, World
from dispatch_core.supervisor import Supervisor, no_secrets

BOUND_SECONDS = 7200.0
"""Once faults have stopped, a job settles within this long."""
JANITOR_SECONDS = 30.0
"""How often the janitor looks."""
SWEPT_SECONDS = JANITOR_SECONDS + 15.0
"""What landed late is gone this long after it landed, once faults have stopped: a period, and the calls of a sweep."""


@dataclass(frozen=True)
class Asked:
    """What a history is to be like."""

    supervisors: int = 3
    """At most so many at once."""
    faults: tuple[Fault, ...] = tuple(Fault)
    calm: frozenset[Place] = frozenset()
    """Choices that are taken back, to make a history shorter."""
    muted: frozenset[Fault] = frozenset()
    """Kinds of faults that never come; all else is drawn as if they might."""
    target: Point | None = None
    """The one fault of the targeted mode."""


@dataclass
class Told:
    """What one history showed."""

    seed: int
    violations: list[Violation]
    faults: dict[str, int]
    steps: dict[str, int]
    """By kind and step, as `reply_lost after`."""
    calls: int
    commits: int
    submissions: int
    exchanges: int
    explained: int
    """Passes that did what `explain` had said."""
    settled_after: float
    """Seconds from the end of the faults to settlement; below 0: it was settled before."""
    digest: str
    unusual: list[Place] = field(default_factory=list)
    world: World | None = None


@contextmanager
def unheard() -> Iterator[None]:
    """What supervisors log in a simulated world is in its trace; nobody hears it meanwhile."""
    log = logging.getLogger("dispatch_core")
    before = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(before)


class History:
    """One job, and everybody who works on it."""

    def __init__(self, seed: int, asked: Asked) -> None:
        self.seed = seed
        self.asked = asked
        self.tape = Tape(seed, asked.calm)
        draw = self.tape.branch("job")
        profile = draw_profile(self.tape.branch("profile"), asked.faults)
        self.faults = Faults(self.tape.branch("swarm"), asked.faults, asked.muted, profile.rates, few=profile.few)
        bounds = profile.bounded(plans.draw_bounds(draw))
        self.judge = Judge(UID, bounds.call_seconds)
        capabilities = plans.draw_capabilities(draw)
        capabilities = replace(profile.capabilities or capabilities, starts_once=seed % 3 == 0)
        self.world = World(self.tape, self.faults, bounds, capabilities, self.judge.see)
        self.world.blank, self.world.lingering = profile.blank, profile.lingering
        self.world.target = asked.target
        self.world.scheduler.wipes_holds = self.faults.has(Fault.WIPED_HOLD)
        self.plan = profile.planned(plans.draw_plan(draw))
        self.spec = plans.draw_spec(draw, secret=self.faults.has(Fault.SECRET_MISSING))
        absent = draw.among((0, 1, 0, 2)) % asked.supervisors
        self.names = ("a", "b", "c")[: asked.supervisors - (0 if profile.crowded else absent)]
        leases = draw.among((None, 30.0, None, 60.0))
        self.leases = None if profile.crowded else leases
        self.lasts = draw.among((200.0, 100.0, 400.0, 800.0))
        """Faults stop after so long."""
        self.payload = Payload(self.world, self.tape.branch("payload"), profile)
        self.moments = Moments(self.world, self.tape.branch("moments"), self.lasts, self.names, self._leave, profile)
        self.explained = Explained(self.world.bounds, self.world.capabilities, self.world.revisions)
        self.world.on_event = self._seen
        self.calm_at: float | None = None
        self.settled = False
        self.landing = 0.0
        """When the last object came into being."""

    # --- its course

    def run(self) -> Told:
        with unheard():
            return self._run()

    def _run(self) -> Told:
        world = self.world
        self._begin_submitting()
        janitor = self.tape.branch(JANITOR)
        if janitor.chance(0.3):
            world.clock.at(janitor.seconds(0.0, self.lasts), self._begin_janitor)
        for number, name in enumerate(self.names):
            world.clock.at(1.0 + number * self.tape.branch(f"begin {name}").seconds(0.1, 4.0), self._begin, name)
        world.clock.at(self.lasts, self._calm)
        world.clock.run_until(lambda: self.settled and self.calm_at is not None, self.lasts)
        world.clock.run_until(lambda: self.settled, self.lasts + BOUND_SECONDS)
        settled = world.now
        if not self.settled:
            text = closing.says_so(self.judge.truth) or f"it is not settled {BOUND_SECONDS:g} s after faults stopped"
            self.judge.broken("settles", text, world.now)
        elif not self.judge.violations:
            world.clock.run_until(self._is_swept, world.now + BOUND_SECONDS)
            left = closing.nothing_left(self.judge.truth)
            if left is not None:
                self.judge.broken("nothing_left", left, world.now)
        lived = len(world.trace)  # the order in which the actors are then ended is asyncio's, and so Python's
        self._bury()
        for error in world.clock.broken:
            if isinstance(error, Ended):
                continue  # how an actor is ended from outside
            self.judge.broken("nobody_breaks", f"something was raised that nobody caught: {error!r}", world.now)
        return self._told(settled, world.trace[:lived])

    def _is_swept(self) -> bool:
        """Whether all that was on its way has landed, the janitor has looked since, and what is ending has ended."""
        world = self.world
        if world.on_the_way or world.now <= max(self.landing, self.lasts, world.last_landing) + SWEPT_SECONDS:
            return False
        return not any(thing.ending for thing in self.judge.truth.ours())

    def _calm(self) -> None:
        """Faults stop; who must be there comes."""
        if self.calm_at is not None:
            return
        world = self.world
        self.calm_at = world.now
        self.faults.calm = True
        world.silent_until = world.slow_until = world.down_until = world.now
        world.lie = None
        world.scheduler.wipes_holds = False
        for being in world.beings.values():
            world.clock.resume(being)
        if all(world.being(name).work is None for name in self.names):
            self._begin("a")
        self._begin_janitor()
        world.begin(world.being("eve"), lambda: self._answer(world.being("eve")), lambda why: None)

    def _bury(self) -> None:
        """End everybody, so that nothing of this history is left."""
        for being in self.world.beings.values():
            self.world.crash(being)
        self.world.clock.run_until(lambda: False, self.world.now)

    # --- who takes part

    def _begin_submitting(self, why: str = "") -> None:
        """Somebody submits the job; one who does not get through it comes back."""
        if self.world.record is None:
            person = self.world.being("person0")
            self.world.begin(person, lambda: self._submit(person), self._begin_submitting)

    async def _submit(self, being: Being) -> None:
        client = Client(
            Database(self.world, being),
            "person ann",
            now=lambda: self.world.own_now(being),
            fresh_id=lambda: UID if not self.world.revisions else self.world.fresh_id(),
        )
        adapter = Connection(self.world, being)
        if self.faults.has(Fault.BAD_JOB) and not self.faults.calm:
            spec, plan = being.tape.among(plans.REFUSED)
            try:
                await client.submit(KEY, spec, plan, scheduler=CLUSTER, adapter=adapter)
            except BadInput:
                self.world.count(Fault.BAD_JOB)
            else:
                self.judge.broken("refuses", f"a job was accepted that cannot run: {spec} {plan}", self.world.now)
        while True:
            try:
                await client.submit(KEY, self.spec, self.plan, scheduler=CLUSTER, adapter=adapter)
                return
            except DispatchError:
                continue

    def _begin(self, name: str) -> None:
        being = self.world.being(name)
        if self.settled or being.work is not None or self.world.record is None:
            if self.world.record is None:
                self.world.clock.at(self.world.now + 0.5, self._begin, name)
            return
        if self.faults.has(Fault.CLOCK_OFF) and not self.faults.calm:
            being.clock_off = being.tape.seconds(-600.0, 600.0)
        supervisor = Supervisor(
            Database(self.world, being),
            Connection(self.world, being),
            secrets=lambda secret: self._secret(being, secret),
            lease_seconds=self.leases,
            name=name,
            now=lambda: self._own_now(being),
            fresh_id=self.world.fresh_id,
        )
        supervisor.record_seconds = being.tape.among((30.0, 5.0, 15.0))
        until_outcome = self.calm_at is None and being.tape.chance(0.1)
        self.world.begin(
            being,
            lambda: supervisor.attend(KEY, UID, until_outcome=until_outcome),
            lambda why: self._stopped(being, why),
        )

    def _stopped(self, being: Being, why: str) -> None:
        """A supervisor that came to its end begins again, until the job is settled; when all is calm, one is enough."""
        if self.settled:
            return
        after = being.tape.among((5.0, 0.5, 20.0, 70.0)) * being.tape.seconds(0.5, 1.5)
        if self.faults.calm:
            after = 5.0
        self.world.clock.at(self.world.now + after, self._begin, being.name)

    def _own_now(self, being: Being) -> datetime:
        if being.clock_off and being.tape.chance(0.2):
            being.clock_off = being.tape.seconds(-600.0, 600.0)
        return self.world.own_now(being)

    async def _secret(self, being: Being, secret: Secret) -> str:
        if self.faults.strikes(Fault.SECRET_MISSING, being.tape):
            self.world.count(Fault.SECRET_MISSING)
            why = f"there is no {secret.source} {secret.name!r}"
            self.world.tell(Withheld(self.world.now, being.name, why))
            raise DispatchError(why)
        return "hunter2"

    async def _no_secret(self, being: Being, secret: Secret) -> str:
        """What a janitor reads that was given no source of secrets."""
        try:
            return await no_secrets(secret)
        except DispatchError as error:
            self.world.tell(Withheld(self.world.now, being.name, str(error)))
            raise

    def _leave(self, tape: Branch) -> bool:
        """Ask a supervisor to leave, as SIGTERM does."""
        there = [name for name in self.names if self.world.being(name).work is not None]
        being = self.world.being(tape.among(there)) if there else None
        if being is None or being.work is None or being.unwinding:
            return False
        being.work.cancel()
        return True

    def _begin_janitor(self) -> None:
        being = self.world.being(JANITOR)
        if being.work is not None:
            return
        sweeper = Voice(SWEEPER)
        how: dict[str, Any] = {
            "secrets": lambda secret: self._no_secret(being, secret),
            "lease_seconds": self.leases,
            "now": lambda: self.world.own_now(being),
            "fresh_id": self.world.fresh_id,
        }
        janitor = Janitor(
            Database(self.world, being, sweeper),
            {CLUSTER: Connection(self.world, being, sweeper)},
            period_seconds=JANITOR_SECONDS,
            **how,
        )
        name = janitor.supervisors[CLUSTER].name
        janitor.supervisors[CLUSTER] = SweepingSupervisor(self.world, being, sweeper, name=name, **how)
        janitor.supervisors[CLUSTER].record_seconds = 30.0
        again: Callable[[str], None] = lambda why: None if why == "done" else self._again_janitor()  # noqa: E731
        self.world.begin(being, janitor.run, again)

    def _again_janitor(self) -> None:
        self.world.clock.at(self.world.now + 5.0, self._begin_janitor)

    async def _answer(self, being: Being) -> None:
        """When all is calm, a person answers what only a person can, whatever comes to mind; after a while they have
        had enough, cancel the job, and do what the record still asks for."""
        client = Client(Database(self.world, being), "ann", now=self.world.host_now, fresh_id=self.world.fresh_id)
        answers = (Fault.RELEASE, Fault.RESOLVE, Fault.DISPOSE, Fault.CANCEL)
        patience = 0
        while True:
            await self.world.sleep(being, 40.0)
            try:
                record = await client.store.read(KEY, UID)
            except DispatchError:
                continue
            if record.settled:
                return
            for thing in list(self.world.scheduler.things.values()):
                if thing.hold and all(hold.lifted for hold in record.holds):
                    self.world.scheduler.holds(thing, False)  # an admin's own, or one that nobody asks for any more
            waits = record.wait is not None and record.wait.reason in FOR_A_PERSON
            if not waits and all(hold.lifted for hold in record.holds):
                continue
            patience += 1
            answer = Fault.CANCEL if patience in (8, 16) else being.tape.among(answers[:3])
            try:
                if patience > 16:
                    await disposes_as_asked(client, record)
                else:
                    await asked_for(client, record, answer, being.tape)
            except DispatchError:
                continue

    # --- watching it

    def _seen(self, event: Event) -> None:
        text = self.explained.see(event)
        if text is not None:
            self.judge.broken("explained", text, event.at)
        kind = type(event)
        if kind is Made:
            self.landing = event.at
        elif kind is Committed and event.after.settled:  # type: ignore[union-attr]
            self.settled = True
            self.world.clock.at(event.at + 20.0, self._calm)  # nothing more is to be seen in what goes wrong
        self.payload.see(event)
        self.moments.see(event)

    def _told(self, settled: float, trace: list[Event]) -> Told:
        world = self.world
        digest = hashlib.blake2b(digest_size=16)
        counts = {Sent: 0, Committed: 0}
        documents = iter(world.documents)
        for event in trace:
            kind = type(event)
            if kind in counts:
                counts[kind] += 1
            if kind is Committed:
                digest.update(next(documents))
            elif kind is not Looked and kind is not Arrived:
                digest.update(repr(event).encode())
        record = world.record
        return Told(
            seed=self.seed,
            violations=self.judge.violations,
            faults=dict(self.faults.counts),
            steps=dict(self.faults.steps),
            calls=counts[Sent],
            commits=counts[Committed],
            submissions=len(record.submissions) if record is not None else 0,
            exchanges=world.being("a").exchanges,
            explained=self.explained.told,
            settled_after=settled - (self.calm_at if self.calm_at is not None else settled),
            digest=digest.hexdigest(),
            unusual=self.tape.unusual,
            world=world,
        )
