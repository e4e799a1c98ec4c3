"""Short lists of events, told as sentences, and the laws that they break or only come near to.

One rule: a story tells what happened, never what anybody believed; every sentence takes one second.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from dispatch_core.evidence import Listing, Sighting
from dispatch_core.names import object_name
from dispatch_core.plan import Action, Cause, End, Plan, Rule, Spec, When
from dispatch_core.record import (
    Answer,
    Attempt,
    Call,
    Intent,
    Kind,
    Object,
    Outcome,
    Record,
    Reply,
    Result,
    RunEnd,
    Spent,
    State,
    Submission,
)
from dispatch_core.simulator.laws import Judge, closing
from dispatch_core.simulator.trace import (
    Arrived,
    Committed,
    Event,
    Finished,
    Looked,
    Made,
    Opened,
    Read,
    Reran,
    Sent,
    Started,
)
from tests.world import EPOCH, KEY, UID

SPEC = Spec(command=("train.sh",))
PLAN = Plan(
    rules=(
        Rule(name="again", when=When(cause=(Cause.EXIT,)), do=Action.RESUBMIT, budget=2),
        Rule(name="slow", when=When(no_progress_for_seconds=60.0), do=Action.FAIL),
    )
)
CALL_SECONDS = 5.0
EXIT = End(cause=Cause.EXIT, exit_code=1)
COMPLETED = End(cause=Cause.COMPLETED)

Tells = Callable[["Story"], None]

BREACHES: dict[str, list[tuple[Tells, frozenset[str]]]] = {}
"""By law: stories that break it, each with all the laws that it breaks."""
NEAR_MISSES: dict[str, list[Tells]] = {}
"""By law: stories that break none, and come near to breaking it."""


def breaks(law: str, *, also: tuple[str, ...] = ()) -> Callable[[Tells], Tells]:
    """The story breaks this law; `also`: others, that it cannot do without."""

    def noted(story: Tells) -> Tells:
        BREACHES.setdefault(law, []).append((story, frozenset({law, *also})))
        return story

    return noted


def respects(*laws: str) -> Callable[[Tells], Tells]:
    """The story breaks no law, though it comes near to breaking these."""

    def noted(story: Tells) -> Tells:
        for law in laws:
            NEAR_MISSES.setdefault(law, []).append(story)
        return story

    return noted


class Story:
    """One job, from revision 1 on. Who acts is `a`, where nobody else is named."""

    def __init__(self, plan: Plan = PLAN) -> None:
        self.judge = Judge(UID, CALL_SECONDS)
        self.now = 0.0
        self.calls = 0
        self.record = Record(key=KEY, uid=UID, scheduler="cluster", spec=SPEC, plan=plan, revision=1, commit="c1")
        self.tell(Committed(0.0, "person", None, self.record, False, False, "ann"))

    @property
    def laws(self) -> set[str]:
        """The laws that the last event broke; one that spoke earlier is named `LAW early`."""
        return {v.law if v.at >= self.now - 1 else f"{v.law} early" for v in self.judge.violations}

    def tell(self, event: Event) -> None:
        self.now += 1.0
        self.judge.see(event)

    def host(self, later: float = 0.0) -> Any:
        return EPOCH + timedelta(seconds=self.now + later)

    # --- the store

    def read(self, actor: str = "a", *, former: bool = False) -> int:
        self.tell(Read(self.now, actor, self.record.revision, former))
        return self.record.revision

    def commit(
        self,
        *,
        actor: str = "a",
        read: bool = True,
        displaced: bool = False,
        leased: bool = True,
        holder: bool = True,
        by: str = "",
        late: bool = False,
        **fields: Any,
    ) -> None:
        """The next revision, with these fields changed."""
        before = self.record
        if read:
            self.read(actor)
        fields = {"revision": before.revision + 1, "commit": f"c{before.revision + 1}"} | fields
        self.record = replace(before, **fields)
        self.tell(Committed(self.now, actor, before, self.record, leased, displaced, by or actor, late, holder))

    def object(self, id: str, **fields: Any) -> None:
        """The row of one object is changed."""
        self.commit(objects=tuple(replace(o, **fields) if o.id == id else o for o in self.record.objects))

    def submission(self, number: int, **fields: Any) -> None:
        rows = self.record.submissions
        self.commit(submissions=tuple(replace(s, **fields) if s.number == number else s for s in rows))

    def attempt(self, **fields: Any) -> None:
        """The newest attempt is changed."""
        last = self.record.submissions[-1]
        self.submission(last.number, attempts=(*last.attempts[:-1], replace(last.attempts[-1], **fields)))

    def spend(self, *keys: str, rule: str = "again", **fields: Any) -> None:
        units = tuple(Spent(key=key, rule=rule) for key in keys)
        self.commit(budget=(*self.record.budget, *units), **fields)

    def intend(self, key: str, cause: Cause | None = Cause.EXIT, rule: str = "again") -> None:
        """One unit is spent, on an intent."""
        self.spend(key, rule=rule, intents=(self.intent(key, cause, rule),))

    def intent(self, key: str, cause: Cause | None = Cause.EXIT, rule: str = "again") -> Intent:
        return Intent(key=key, do=Action.RESUBMIT, rule=rule, cause=cause, not_before=self.host())

    def outcome(self, result: Result, cause: Cause | None = None, by: str = "again", **fields: Any) -> None:
        self.commit(outcome=Outcome(result=result, cause=cause, at=self.host(), by=by), intents=(), **fields)

    def cancel(self) -> None:
        self.outcome(Result.CANCELLED, by="ann")

    def decide(self, kind: Kind, id: str | None, run: int = 1, count: int = 1, **fields: Any) -> None:
        """A commit that allows one call, with a deadline 20 s from now; a `count` above 1 repeats it."""
        call = Call(kind=kind, object=id, run=run, hold=0, committed=self.host(), deadline=self.host(20.0), count=count)
        rest = tuple(known for known in self.record.calls if known.identity != call.identity)
        self.commit(calls=(*rest, call), **fields)

    # --- calls

    def call(self, kind: Kind, id: str | None, run: int = 1, read: int | None = None, **fields: Any) -> Sent:
        """A call that the newest revision holds, as it is sent; nobody is told yet."""
        row = self.record.call(kind, id, run)
        known = self.judge.truth.objects.get(id or "")
        name = known.name if known is not None else ""
        deadline = row.deadline if row is not None else self.host(20.0)
        names = self.record.names() if id is None else (name,)
        return self._sent(kind, id, run, 0, 0, name, names, deadline, read)._replace(**fields)

    def start(self, submission: int = 1, attempt: int = 1, read: int | None = None) -> Sent:
        row = self.record.submissions[submission - 1].attempts[attempt - 1]
        name = object_name(UID, submission, attempt)
        return self._sent(None, None, 0, submission, attempt, name, (name,), row.deadline, read)

    def _sent(self, *fields: Any) -> Sent:
        self.calls += 1
        *rest, deadline, read = fields
        kind, id, run, submission, attempt, name, names = rest
        read = self.record.revision if read is None else read
        return Sent(self.now, "a", self.calls, kind, id, run, submission, attempt, name, names, deadline, read)

    def send(self, kind: Kind, id: str | None, run: int = 1, read: int | None = None, **fields: Any) -> Sent:
        sent = self.call(kind, id, run, read, **fields)
        self.tell(sent)
        return sent

    def arrives(
        self,
        sent: Sent,
        *,
        name: str | None = None,
        run: int | None = None,
        beyond: bool = False,
        answer: Answer = Answer.DONE,
    ) -> None:
        met = sent.name if name is None else name
        self.tell(Arrived(self.now, sent, Reply(answer=answer), met, sent.run if run is None else run, beyond, False))

    # --- the scheduler

    def authorize(self, why: str = "first", attempts: int = 1) -> None:
        """One more submission, or one more attempt of the newest."""
        rows = tuple(Attempt(number=n + 1, committed=self.host(), deadline=self.host(20.0)) for n in range(attempts))
        last = Submission(number=len(self.record.submissions) + 1, why=why, spec=SPEC, attempts=rows)
        self.commit(submissions=(*self.record.submissions, last))

    def make(self, id: str, attempt: int = 1, *, beyond: bool = False) -> None:
        """The Start of the newest submission makes an object."""
        sent = self.start(len(self.record.submissions), attempt)
        self.tell(Made(self.now, id, sent.name, sent, beyond))

    def stray(self, id: str, name: str = "by-hand") -> None:
        self.tell(Made(self.now, id, name, None, False))

    def look(self, *ids: str, complete: bool = True, actor: str = "a") -> None:
        """A listing that shows these, or all that is there."""
        things = [t for t in self.judge.truth.objects.values() if t.there and (not ids or t.id in ids)]
        shown = tuple(Sighting(id=t.id, name=t.name, key=KEY, state=_state(t), run=t.run) for t in things)
        listing = Listing(objects=shown, began=self.host(), ended=self.host(), complete=complete)
        self.tell(Looked(self.now, actor, True, listing, self.now, self.now, ()))

    def record_seen(self, *ids: str, foreign: bool = False, **fields: Any) -> None:
        """What a listing shows of these is committed."""
        known = {row.id: row for row in self.record.objects}
        for id in ids:
            thing = self.judge.truth.objects[id]
            submission, attempt = (thing.by.submission, thing.by.attempt) if thing.by is not None else (0, 0)
            ends = tuple(RunEnd(run=run, at=self.host(), end=end) for run, end in thing.ends.items())
            known[id] = Object(
                id=id,
                name=thing.name,
                submission=submission,
                attempt=attempt,
                first_seen=EPOCH,
                seen=self.host(),
                run=thing.run,
                state=_state(thing),
                ends=ends,
                foreign=foreign,
            )
        self.commit(objects=tuple(known.values()), **fields)

    def choose(self, id: str) -> None:
        """It is shown, recorded and chosen."""
        self.look()
        self.record_seen(id)
        self.submission(len(self.record.submissions), canonical=id)

    def opened(self, id: str, run: int = 1, by: Sent | None = None) -> None:
        self.tell(Opened(self.now, id, run, by))

    def started(self, id: str, run: int = 1) -> None:
        self.tell(Started(self.now, id, run))

    def finished(self, id: str, end: End = EXIT, run: int = 1) -> None:
        self.tell(Finished(self.now, id, run, end))

    def reran(self, id: str, run: int = 2, *, open: bool = False, by: Sent | None = None) -> None:
        self.tell(Reran(self.now, id, run, open, by))

    # --- several at once

    def launch(self, id: str = "o1", why: str = "first") -> None:
        """A submission, its object, and the choice of it."""
        self.authorize(why)
        self.make(id)
        self.choose(id)

    def open(self, id: str = "o1", run: int = 1) -> None:
        """Decided, sent, and carried out."""
        self.look()
        self.decide(Kind.OPEN, id, run)
        self.read()
        self.opened(id, run, self.send(Kind.OPEN, id, run))

    def run(self, id: str = "o1", why: str = "first") -> None:
        """Launched, opened, and running."""
        self.launch(id, why)
        self.open(id)
        self.started(id)

    def settle(self) -> None:
        self.look()
        self.commit(settled=True)

    def ask_at_the_end(self, law: str) -> None:
        """What is asked of a job once it has come to rest."""
        text = getattr(closing, law)(self.judge.truth)
        if text is not None:
            self.judge.broken(law, text, self.now)


def _state(thing: Any) -> State:
    if not thing.alive:
        return State.ENDED
    if thing.ending:
        return State.ENDING
    return State.RUNNING if thing.running else State.GATED
