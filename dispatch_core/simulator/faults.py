"""Everything that can go wrong, by name, and which of it goes wrong in one history.

One rule: a fault is counted when it changed an answer or an order, not when it was drawn. Which kinds are switched on,
and how often they come, is drawn for each history (a swarm): one in which everything fails at once shows less than many
in which a few things fail often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum

from dispatch_core.errors import BadInput
from dispatch_core.simulator.tape import Branch


class Fault(StrEnum):
    """One kind of fault; its docstring says when it counts."""

    # calls on the scheduler
    CALL_LOST = "call_lost"
    """A call never reaches the host, and nobody says so."""
    REPLY_LOST = "reply_lost"
    """A call takes effect, or is turned down, and its reply never comes."""
    REPLY_BROKEN = "reply_broken"
    """A call takes effect, or is turned down, and its reply is an error."""
    CALL_LATE = "call_late"
    """A call reaches the host after its deadline."""
    CALL_DOUBLED = "call_doubled"
    """A call reaches the host twice."""
    CALL_REFUSED = "call_refused"
    """The scheduler refuses a call that it could have carried out."""
    EFFECT_LATE = "effect_late"
    """A call takes effect up to the call bound after the host let it through; its sender has given it up by then."""
    START_BEYOND_BOUND = "start_beyond_bound"
    """A Start makes its object after it had expired."""
    STOP_IGNORED = "stop_ignored"
    """A Stop is answered, and its object goes on."""

    # listings
    FIND_FAILS = "find_fails"
    FIND_SLOW = "find_slow"
    """A listing takes so long that its asker gives it up, or that calls decided on it come late."""
    FIND_INCOMPLETE = "find_incomplete"
    """A listing leaves an object out, and says that it is not complete."""
    FIND_EMPTY = "find_empty"
    """A listing that says it is complete shows nothing, for less than the absence rule's span."""
    FIND_HIDES = "find_hides"
    """A listing that says it is complete leaves one object out, for less than the absence rule's span."""
    SILENCE = "silence"
    """The scheduler answers nothing for minutes, at times for hours."""
    SLOWNESS = "slowness"
    """Every call takes half a minute, for minutes."""
    WATCH_MISSES = "watch_misses"
    """A change wakes nobody who watches."""

    # the scheduler itself
    PURGE = "purge"
    """An object that has ended is not listed any more."""
    UNACCOUNTED = "unaccounted"
    """A listing does not tell the ends of earlier runs."""
    UNTOLD_END = "untold_end"
    """A run has ended, and the scheduler does not say how."""
    UNKNOWN_WORD = "unknown_word"
    """An object is in a state that this version does not know."""
    RESTART = "restart"
    """The scheduler loses objects that it had acknowledged, and gives their ids to others."""
    ROLLED_BACK = "rolled_back"
    """A controller restarts from an older copy: an object is where it was before."""
    OWN_REQUEUE = "own_requeue"
    """The scheduler runs an object again on its own, a cancelled one too."""
    WIPED_HOLD = "wiped_hold"
    """A requeue takes the hold bit off."""
    FOREIGN = "foreign"
    """Something appears that carries the job's key, or its uid, and that nobody launched."""

    # people at the scheduler
    ADMIN_HOLDS = "admin_holds"
    ADMIN_RELEASES = "admin_releases"
    ADMIN_REQUEUES = "admin_requeues"
    ADMIN_STOPS = "admin_stops"
    ADMIN_OPENS = "admin_opens"

    # people at the record
    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"
    RESOLVE = "resolve"
    DISPOSE = "dispose"
    BAD_JOB = "bad_job"
    """A job that cannot be accepted is submitted: it is refused, and nothing is written."""

    # the store
    STORE_FAILS = "store_fails"
    """The store does not answer, and nothing happened."""
    STORE_DOWN = "store_down"
    """The store answers nothing for minutes."""
    STALE_READ = "stale_read"
    """A read shows a revision that is not the newest any more."""
    COMMIT_REFUSED = "commit_refused"
    """A commit does not land, and that is said."""
    COMMIT_UNKNOWN = "commit_unknown"
    """The connection breaks on a commit: it landed, or it did not, and reading it back fails as well."""
    COMMIT_REPEATED = "commit_repeated"
    """The connection breaks on a commit, and the store repeats it under its id."""
    COMMIT_LATE = "commit_late"
    """A commit lands after it was given up."""

    # the supervisors
    CRASH = "crash"
    STALL = "stall"
    """A supervisor stands still, at times for longer than its lease."""
    LEASE_TAKEN = "lease_taken"
    """A live supervisor's lease is given to another."""
    LEAVES = "leaves"
    """A supervisor is asked to leave, and drains its step."""
    CLOCK_OFF = "clock_off"
    """An actor's own clock is wrong, or steps, and what it shows is written down."""
    SECRET_MISSING = "secret_missing"  # noqa: S105 - the name of a fault
    """A secret of the job cannot be read when it is started."""


OFTEN_ASKED = frozenset({Fault.STORE_FAILS, Fault.STALE_READ, Fault.CRASH, Fault.STALL, Fault.WATCH_MISSES})
"""Faults that are drawn at every exchange, hundreds of times a history."""

SELDOM_ASKED = frozenset(
    {
        Fault.CALL_LOST,
        Fault.REPLY_LOST,
        Fault.REPLY_BROKEN,
        Fault.CALL_LATE,
        Fault.CALL_DOUBLED,
        Fault.CALL_REFUSED,
        Fault.EFFECT_LATE,
        Fault.START_BEYOND_BOUND,
        Fault.STOP_IGNORED,
        Fault.PURGE,
        Fault.UNACCOUNTED,
        Fault.UNTOLD_END,
        Fault.UNKNOWN_WORD,
        Fault.SECRET_MISSING,
    }
)
"""Faults of calls and runs, of which a history has few."""


BEFORE, DURING, AFTER = "before", "during", "after"

STEPS: dict[Fault, tuple[str, ...]] = {
    Fault.REPLY_LOST: (BEFORE, AFTER),
    Fault.REPLY_BROKEN: (BEFORE, AFTER),
    Fault.CALL_DOUBLED: (BEFORE, AFTER),
    Fault.COMMIT_UNKNOWN: (BEFORE, AFTER),
    Fault.COMMIT_REPEATED: (BEFORE, AFTER),
    Fault.CRASH: (BEFORE, DURING, AFTER),
    Fault.STALL: (BEFORE, DURING, AFTER),
}
"""Kinds that may come on either side of an effect, and are counted by it: of a call or a commit `after` where it took
effect, `before` where nothing had happened; of a supervisor the sides of its exchange."""


def step_of(happened: bool) -> str:
    return AFTER if happened else BEFORE


def chosen(names: str) -> tuple[Fault, ...]:
    """The faults that a command line names: `all`, `none`, or a list. Raises BadInput."""
    if names == "all":
        return tuple(Fault)
    if names == "none":
        return ()
    try:
        return tuple(Fault(name.strip()) for name in names.split(","))
    except ValueError as error:
        known = ", ".join(Fault)
        raise BadInput(f"--faults: {error}; there are: all, none, {known}") from error


def _rates(fault: Fault) -> tuple[float, ...]:
    """How often it may strike where it could."""
    if fault in OFTEN_ASKED:
        return (0.004, 0.01, 0.04)
    return (0.15, 0.05, 0.4) if fault in SELDOM_ASKED else (0.06, 0.02, 0.2)


class Faults:
    """The faults of one history."""

    def __init__(
        self,
        tape: Branch,
        allowed: tuple[Fault, ...],
        muted: frozenset[Fault] = frozenset(),
        rates: Mapping[Fault, float] | None = None,
        *,
        few: bool = False,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.steps: Counter[str] = Counter()
        """By kind and step, as `reply_lost after`."""
        self.calm = False
        """Faults have stopped."""
        share = tape.among((0.5, 0.25, 0.75)) if not few else 0.15
        self._rates = {fault: tape.among(_rates(fault)) for fault in tape.some(allowed, share)}
        self._muted = muted
        self._rates |= {fault: rate for fault, rate in (rates or {}).items() if fault in allowed}
        self._rates |= dict.fromkeys(self._rates.keys() & muted, 0.0)

    def has(self, fault: Fault) -> bool:
        """Whether this kind is switched on."""
        return fault in self._rates and fault not in self._muted

    def is_muted(self, fault: Fault) -> bool:
        """Whether it never comes, though it is drawn."""
        return fault in self._muted

    def is_drawn(self, fault: Fault) -> bool:
        """Whether there are choices of this kind: they are drawn where it is muted, too."""
        return fault in self._rates

    def strikes(self, fault: Fault, tape: Branch) -> bool:
        """Whether it strikes here; it counts only once `count` is called for it."""
        if self.calm:
            return False
        rate = self._rates.get(fault)
        return rate is not None and tape.chance(rate)

    def count(self, fault: Fault, step: str = "") -> None:
        self.counts[fault] += 1
        if step:
            self.steps[f"{fault} {step}"] += 1


class Meets:
    """Whoever meets with faults, and draws whether they strike on a branch of its own."""

    def __init__(self, faults: Faults, tape: Branch) -> None:
        self.__faults = faults
        self.__tape = tape

    def _struck(self, fault: Fault) -> bool:
        return self.__faults.strikes(fault, self.__tape)
