"""What the jobs of a twin are, drawn from its seed: how a payload behaves, what its plan says, what a person does."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path

from dispatch_core.plan import AGAIN, Action, Cause, Delay, Plan, Rule, Spec, When

PAYLOAD = Path(__file__).with_name("payload.py")
PERSONS = ("nobody", "nobody", "nobody", "canceller", "holder", "holder then canceller")
SAID_AGAIN = 1
"""How often a person lets a job go on that waits for one; then it has failed."""


@dataclass(frozen=True)
class Job:
    """One job, and the person who has to do with it."""

    key: str
    spec: Spec
    plan: Plan
    person: str
    submitted_after: float
    """Seconds from the twin's beginning."""
    after: tuple[float, float]
    """Seconds from one deed of the person to the next."""

    @property
    def budget(self) -> int:
        """Runs that the plan may add to the first one."""
        return sum(rule.limit or 0 for rule in self.plan.rules if rule.do in AGAIN)


def draw_jobs(seed: int, count: int, seconds: float, slowest: float, folder: Path) -> list[Job]:
    """Jobs that are submitted and disturbed within so many seconds; the slowest run takes `slowest` seconds."""
    return [_draw(random.Random(f"{seed} job {n}"), f"job-{n:02}", seconds, slowest, folder) for n in range(count)]


def _draw(dice: random.Random, key: str, seconds: float, slowest: float, folder: Path) -> Job:
    behaviour = {
        "seconds": dice.uniform(0.6, slowest) if dice.random() < 0.4 else dice.uniform(0.0, 0.6),
        "fails": dice.choice((0, 1, 1, 2, 9)),
        "how": dice.choice(("exit", "signal")),
        "lingers": dice.random() < 0.7,
    }
    command = (sys.executable, "-I", "-S", str(PAYLOAD), str(folder), json.dumps(behaviour))
    return Job(
        key=key,
        spec=Spec(command=command),
        plan=Plan(rules=tuple(_rules(dice))),
        person=dice.choice(PERSONS),
        submitted_after=dice.uniform(0.0, seconds * 0.6),
        after=(dice.uniform(0.2, seconds * 0.4), dice.uniform(0.2, seconds * 0.3)),
    )


def _rules(dice: random.Random) -> list[Rule]:
    failed = When(cause=(Cause.EXIT, Cause.SIGNAL))
    again = Rule(
        name="again",
        when=failed,
        do=dice.choice((Action.RESUBMIT, Action.RESUBMIT, Action.REQUEUE)),
        budget=dice.choice((0, 1, 2, 2)),
        delay=Delay(seconds=dice.choice((0.0, 0.5))),
    )
    rules = [again]
    if dice.random() < 0.8:
        lost = When(cause=(Cause.NODE_FAILURE,))
        rules.append(Rule(name="node", when=lost, do=dice.choice((Action.RESUBMIT, Action.REQUEUE)), budget=2))
    if dice.random() < 0.3:
        rules.append(Rule(name="ask", when=failed, do=Action.HOLD))
    return rules
