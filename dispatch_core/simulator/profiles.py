"""Troubles that belong together: what a good quarter of the histories is drawn around, beside the plain swarm.

One rule: a profile makes what may happen anyhow happen often, and at the moment at which it does the most harm. Each is
a scheduler, a plan and people as there are some. A history in which not all of its faults are allowed is plain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from dispatch_core.evidence import Bounds, Capabilities
from dispatch_core.plan import Action, Cause, Plan, Rule, When
from dispatch_core.record import Kind
from dispatch_core.simulator.faults import Fault
from dispatch_core.simulator.tape import Branch

_FAILED = (Cause.EXIT, Cause.SIGNAL, Cause.OUT_OF_MEMORY, Cause.TIME_LIMIT, Cause.CANNOT_START)
_LOST = (Cause.NODE_FAILURE, Cause.PREEMPTED, Cause.STOPPED_OUTSIDE, Cause.VANISHED, Cause.NEVER_CREATED)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One set of troubles. What is empty or None is as the swarm draws it."""

    name: str
    rates: Mapping[Fault, float] = field(default_factory=dict)
    """How often these faults strike where they could."""
    few: bool = False
    """Few other faults are switched on."""
    follows: Mapping[str, tuple[tuple[Fault, float, float], ...]] = field(default_factory=dict)
    """What happens at each turning point of the job, and at least and at most how many seconds later."""
    lingering: Mapping[Kind, float] = field(default_factory=dict)
    """Calls of these kinds always take effect late; and how often as late as they can."""
    bounds: Mapping[str, float] = field(default_factory=dict)
    capabilities: Capabilities | None = None
    rules: tuple[Rule, ...] = ()
    """The plan's."""
    crowded: bool = False
    """All supervisors work on the job at once: who waits for a late call keeps nobody from going on."""
    ends_slowly: bool = False
    """A run that ends is `ending` first, with its cause told, and for up to a minute and a half."""
    forgets: bool = False
    """What has ended is purged at once."""
    thinks_longer: bool = False
    """A person who holds a job, lets it go and holds it again sees what came of each."""
    blank: bool = False
    """A listing that shows nothing may say that it is not complete."""

    @property
    def faults(self) -> frozenset[Fault]:
        """Those that it cannot do without."""
        needed = {fault for rows in self.follows.values() for fault, *_ in rows} | self.rates.keys()
        needed |= {Fault.EFFECT_LATE} if self.lingering else set()
        return frozenset(needed | ({Fault.RELEASE} if self.thinks_longer else set()))

    def bounded(self, drawn: Bounds) -> Bounds:
        return replace(drawn, **self.bounds) if self.bounds else drawn

    def planned(self, drawn: Plan) -> Plan:
        return replace(drawn, rules=self.rules) if self.rules else drawn


PLAIN = Profile(name="plain")

_RUN_AGAIN = Rule(name="r1", when=When(cause=(*_FAILED, *_LOST)), do=Action.REQUEUE, budget=5)
_LAUNCH_AGAIN = Rule(name="r1", when=When(cause=(*_FAILED, *_LOST)), do=Action.RESUBMIT, budget=5)

PROFILES: tuple[Profile, ...] = (
    Profile(
        # What a slow listing does not show yet lands while it still goes on.
        name="slow listings",
        few=True,
        follows={"requeue": ((Fault.SLOWNESS, 4.0, 15.0), (Fault.CANCEL, 10.0, 50.0))},
        lingering={Kind.REQUEUE: 1.0},
        crowded=True,
        bounds={"call_seconds": 40.0, "window_seconds": 20.0, "resync_seconds": 10.0},
        capabilities=Capabilities(requeues=True, shuts=False),
        rules=(_RUN_AGAIN,),
    ),
    Profile(
        # The next submission waits for one that takes long to end, and a person cannot make up their mind.
        name="second thoughts",
        few=True,
        follows={"submission": ((Fault.HOLD, 0.0, 8.0),)},
        lingering={Kind.RELEASE: 0.3},
        crowded=True,
        bounds={"call_seconds": 40.0, "window_seconds": 20.0},
        rules=(_LAUNCH_AGAIN,),
        ends_slowly=True,
        thinks_longer=True,
    ),
    Profile(
        # Runs are stopped for being slow, and are forgotten before anybody has seen their end.
        name="forgetful scheduler",
        rates={Fault.PURGE: 1.0},
        bounds={"call_seconds": 5.0, "window_seconds": 15.0, "absence_seconds": 30.0},
        rules=(
            Rule(name="r1", when=When(no_progress_for_seconds=8.0), do=Action.RESUBMIT, budget=5),
            Rule(name="r2", when=When(pending_longer_than_seconds=10.0), do=Action.REQUEUE, budget=5),
            Rule(name="r3", when=When(cause=(*_FAILED, *_LOST)), do=Action.RESUBMIT, budget=5),
        ),
        forgets=True,
    ),
    Profile(
        # A part of the scheduler does not answer, and its listings say so.
        name="listings in part",
        rates={Fault.FIND_INCOMPLETE: 0.5, Fault.CALL_DOUBLED: 0.5},
        follows={"intent": ((Fault.RESTART, 0.0, 10.0),)},
        blank=True,
    ),
    Profile(
        # The scheduler runs again on its own what no rule wants to run again, and a person gives it up.
        name="runs again on its own",
        follows={"shut": ((Fault.OWN_REQUEUE, 0.0, 20.0), (Fault.CANCEL, 0.0, 150.0))},
        capabilities=Capabilities(requeues=True, shuts=True),
        rules=(
            Rule(name="r1", when=When(cause=_FAILED), do=Action.REQUEUE, budget=5),
            Rule(name="r2", when=When(cause=(Cause.NODE_FAILURE,)), do=Action.RESUBMIT, budget=1),
        ),
    ),
)

SHARE = 4
"""One history in so many has a profile; the others are plain."""


def draw_profile(tape: Branch, allowed: tuple[Fault, ...]) -> Profile:
    drawn = tape.among((PLAIN,) * (len(PROFILES) * (SHARE - 1)) + PROFILES)
    return drawn if drawn.faults.issubset(allowed) else PLAIN
