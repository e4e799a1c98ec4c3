"""The language of `tests/histories`: commands on top, the steps they lead to under a line of dashes, block after block.

What is indented belongs to the line above it. Whoever finds a failure in a world (`tests.world`) can print it in these
sentences and paste it into a file; `pytest --rewrite` writes the steps.

    job train.sh                 what to launch; indented: rule NAME: CONDITIONS -> ACTION [xBUDGET] [after 30s]
                                 [delay*2<=90s] [jitter 0.5] [memory*1.5<=64] [time*2<=2h] [queue NAME] [elsewhere];
                                 unmatched manual; foreign stop; lost_node hold; requeues; shuts; starts_twice;
                                 memory 16; limit 1h; leased a; secret TOKEN variable token;
                                 call|window|absence|repeat|resync 10s
    a reads [revision 3]; a lists LIES; a decides; a commits
    a merges [replies][, having read revision 3]
    a sends [CALL][, having read revision 3], FATE
    a asks for a listing; a's listing is taken [without o1]; a is given the | an incomplete listing
    a commits, unanswered | never landing; a reads back; a's commit lands
    a passes LIES, FATE          all of these; "passes on" until a pass commits and sends nothing, "quietly" in one
                                 line, "at once" in no time but the listing's
    20 times, every 10m: a passes LIES, FATE
    a restarts; b takes the lease
      LIES: incomplete | full 5s | silent[: WHY] | without o1 o2 | taking 5s
      FATE: reply lost | nothing arrives | refused TEXT | late     of every call that is sent; and, step by step,
            given up (before it is sent) | abandoned (its sender leaves, and holds nothing of it)
    a's open o1 [#2] arrives | lands | is refused: TEXT [and replies]
                                 a call that was sent reaches the host, or takes effect, (again) now
    o1 runs [on n1] | is ending [END] | ends END | is purged | is lost | is hidden | is shown | is unrecognized
    o1 reruns [after END] | rolls back to STATE [in run 1] | is found to be STATE | relapses | ignores stops
    o1's node answers
    o1 ends slowly | obeys | progresses | accounts for nothing
      END: CAUSE [CODE] [in 40s] [: MESSAGE]; node_failure lost: the node does not answer
    admin opens | holds | releases | stops | requeues o1;   foreign f1 appears [as NAME], [STATE]
    somebody takes the id of o1
    time +30s
    ann looks; ann cancels | holds: WHY | releases | resolves succeeded | disposes 1.1
    show gate | record | calls | receipt
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from dispatch_core import ask, gate
from dispatch_core.client import is_as_shown
from dispatch_core.errors import BadInput
from dispatch_core.evidence import Bounds, Capabilities, Listing
from dispatch_core.plan import Plan, Rule, Secret, Spec
from dispatch_core.record import Answer, Record, Reply, Result, State
from dispatch_core.story import story
from tests.wording import (
    GIB,
    answered,
    call_name,
    notes,
    read_end,
    read_lies,
    read_rule,
    replied,
    row_name,
    seconds,
    tell_record,
    when,
)
from tests.world import Conflict, Displaced, Flight, Impossible, Lists, View, World

PASS_SECONDS = 1.0
"""What a whole pass takes; a step by itself takes none."""

AT_MOST = 40
"""Passes in a row."""

Say = Callable[..., Iterator[str] | None]
SENTENCES: list[tuple[re.Pattern[str], Say]] = []


def says(pattern: str) -> Callable[[Say], Say]:
    """Make a method the meaning of every line that matches."""

    def note(method: Say) -> Say:
        SENTENCES.append((re.compile(pattern), method))
        return method

    return note


class Teller:
    """Tells one history: a command in, its steps out."""

    def __init__(self) -> None:
        self._world: World | None = None
        self._looked: dict[str, Record] = {}

    @property
    def world(self) -> World:
        if self._world is None:
            raise Impossible("a history begins with a job")
        return self._world

    def tell(self, command: str, more: list[str]) -> list[str]:
        """The steps of one command."""
        for pattern, method in SENTENCES:
            found = pattern.fullmatch(command)
            if found is not None:
                extra = {"more": more} if more else {}
                lines = list(method(self, **found.groupdict(), **extra) or ())
                if self._world is not None:
                    lines += [f"LAW BROKEN: {law}" for law in self.world.broken]
                    self.world.broken.clear()
                return lines
        raise Impossible(f"no sentence of a history: {command!r}")

    # --- the job

    @says(r"job (?P<command>.+)")
    def job(self, command: str, more: list[str] | None = None) -> Iterator[str]:
        rules: list[Rule] = []
        plan, bounds = {}, {"call": 10.0, "window": 20.0, "absence": 60.0, "repeat": 10.0, "resync": 60.0}
        can = {"requeues": False, "shuts": False, "starts_twice": False}
        spec: dict[str, object] = {}
        lease = None
        for line in more or []:
            word, _, rest = line.partition(" ")
            if word == "rule":
                rules.append(read_rule(rest))
            elif word in ("unmatched", "foreign", "lost_node"):
                plan[word] = rest
            elif word in can:
                can[word] = True
            elif word in bounds:
                bounds[word] = seconds(rest)
            elif word == "memory":
                spec["memory_bytes"] = int(float(rest) * GIB)
            elif word == "limit":
                spec["time_limit_seconds"] = seconds(rest)
            elif word == "secret":
                name, source, what = rest.split()
                spec["secret_environment"] = {name: Secret(source=source, name=what)}  # type: ignore[arg-type]
            elif word == "leased":
                lease = rest
            else:
                raise Impossible(f"no line of a job: {line!r}")
        starts_once = not can.pop("starts_twice")
        self._world = World(
            Plan(rules=tuple(rules), **plan),  # type: ignore[arg-type]
            Spec(command=tuple(shlex.split(command)), **spec),  # type: ignore[arg-type]
            Bounds(**{f"{name}_seconds": value for name, value in bounds.items()}),
            Capabilities(**can, starts_once=starts_once),
        )
        self.world.lease = lease
        yield from story(None, self.world.record)

    # --- a supervisor, step by step

    @says(r"(?P<who>\w+) reads(?: revision (?P<revision>\d+))?")
    def reads(self, who: str, revision: str | None) -> Iterator[str]:
        read = self.world.reads(who, int(revision) if revision else None)
        yield f"{who} reads revision {read.revision}{', which is not the newest' if revision else ''}"

    @says(r"(?P<who>\w+) asks for a listing")
    def begins_listing(self, who: str) -> None:
        self.world.begins_listing(who)

    @says(r"(?P<who>\w+)'s listing is taken(?P<lies>( .*)?)")
    def takes_listing(self, who: str, lies: str) -> None:
        self.world.takes_listing(who, read_lies(lies))

    @says(r"(?P<who>\w+) is given (?P<what>the|an incomplete) listing")
    def ends_listing(self, who: str, what: str) -> Iterator[str]:
        yield from self._sees(who, self.world.ends_listing(who, what == "the"))

    @says(r"(?P<who>\w+) lists(?P<lies>( .*)?)")
    def lists(self, who: str, lies: str) -> Iterator[str]:
        listing = self.world.lists(who, read_lies(lies))
        if listing is None:
            yield "no answer"
            return
        yield from self._sees(who, listing)

    def _sees(self, who: str, listing: Listing) -> Iterator[str]:
        shown = ", ".join(
            f"{s.id} {s.state}{f' run {s.run}' if s.run > 1 else ''}{' hold' if s.hold else ''}"
            for s in listing.objects
        )
        yield f"{who} sees {shown or 'nothing'}{'' if listing.complete else ' (incomplete)'}"

    @says(r"(?P<who>\w+) decides")
    def decides(self, who: str) -> Iterator[str]:
        before = self.world.view(who).read
        decision = self.world.decides(who)
        if decision.record is not None:
            yield from story(before, decision.record)
        yield from notes(decision.notes)
        for call in decision.calls:
            yield f"may send {call_name(call)}"

    @says(r"(?P<who>\w+) commits")
    def commits(self, who: str) -> Iterator[str]:
        try:
            committed = self.world.commits(who)
        except (Conflict, Displaced) as refused:
            yield f"{type(refused).__name__}: the newest is revision {self.world.record.revision}"
            return
        yield f"commits revision {committed.revision}" if committed is not None else "nothing to commit"

    @says(r"(?P<who>\w+) commits, (?P<how>unanswered|never landing)")
    def commits_unknown(self, who: str, how: str) -> Iterator[str]:
        self.world.commits_unknown(who, lands=how == "unanswered")
        yield "the connection broke: it landed, or it did not"

    @says(r"(?P<who>\w+) reads back")
    def reads_back(self, who: str) -> Iterator[str]:
        landed = self.world.reads_back(who)
        yield f"it landed as revision {landed.revision}" if landed is not None else "it never landed"

    @says(r"(?P<who>\w+)'s commit lands")
    def lands_late(self, who: str) -> Iterator[str]:
        before = self.world.record
        yield from story(before, self.world.lands_late(who))
        yield f"commits revision {self.world.record.revision}, which {who} had given up"

    @says(r"(?P<who>\w+) merges(?P<replies> replies)?(?:, having read revision (?P<revision>\d+))?")
    def merges(self, who: str, replies: str | None, revision: str | None) -> Iterator[str]:
        before = self.world.record
        merged = self.world.merges(who, replies_only=replies is not None, reread=int(revision) if revision else None)
        if merged is None:
            yield "nothing new to merge"
            return
        yield from story(before, merged)
        yield f"merges its evidence as revision {merged.revision}"

    @says(
        r"(?P<who>\w+) sends(?: (?P<call>start \d+\.\d+|stop_job|\w+ [of]\d+))?"
        r"(?:, having read revision (?P<revision>\d+))?(?P<fate>(, .*)?)"
    )
    def sends(self, who: str, call: str | None, revision: str | None, fate: str) -> Iterator[str]:
        if fate == ", given up":
            self.world.gives_up(who, call)
            yield "gives the call up before it is sent, so unknown"
            return
        asked = len(self.world.due(who, call))
        flights = self.world.sends(who, call, int(revision) if revision else None)
        for flight in flights:
            yield f"sends {flight.name}: {self._meets(flight, fate.removeprefix(', '))}"
        if len(flights) < asked:
            yield "does not send the open: the revision moved"
        elif not flights:
            yield "nothing to send"

    def _meets(self, flight: Flight, fate: str) -> str:
        world = self.world
        match fate.partition(" "):
            case ("", _, _):
                reply = world.arrives(flight)
            case ("reply", _, "lost"):
                world.arrives(flight)
                reply = Reply(answer=Answer.UNKNOWN)
            case ("abandoned", _, _):
                return "on its way, and nobody waits for it"
            case ("nothing", _, "arrives"):
                reply = Reply(answer=Answer.UNKNOWN)
            case ("refused", _, text):
                reply = Reply(answer=Answer.REFUSED, text=text)
            case ("late", _, _):
                reply = Reply(answer=Answer.LATE)
            case _:
                raise Impossible(f"no fate of a call: {fate!r}")
        world.replies(flight, reply)
        return f"{fate}, so unknown" if fate in ("reply lost", "nothing arrives") else replied(reply)

    @says(r"(?P<who>\w+) passes at once(?P<lies>( [^,]*?)?)(?P<fate>(, .*)?)")
    def passes_at_once(self, who: str, lies: str, fate: str) -> Iterator[str]:
        yield from self._one_pass(who, lies, fate, lasts=0.0)[0]

    @says(r"(?P<who>\w+) passes(?P<on> on)?(?P<quietly> quietly)?(?P<lies>( [^,]*?)?)(?P<fate>(, .*)?)")
    def passes(self, who: str, on: str | None, quietly: str | None, lies: str, fate: str) -> Iterator[str]:
        for _ in range(AT_MOST if on else 1):
            lines, idle = self._one_pass(who, lies, fate)
            if not quietly:
                yield from lines
            if idle:
                break
        else:
            if on:
                raise Impossible(f"{who} did not come to rest in {AT_MOST} passes")
        if quietly:
            yield f"{who} is at rest, on revision {self.world.record.revision}"

    @says(r"(?P<times>\d+) times, every (?P<gap>\S+): (?P<who>\w+) passes(?P<lies>( [^,]*?)?)(?P<fate>(, .*)?)")
    def passes_often(self, times: str, gap: str, who: str, lies: str, fate: str) -> Iterator[str]:
        before = self.world.record
        for _ in range(int(times)):
            self._one_pass(who, lies, fate)
            self.world.passes_time(seconds(gap))
        yield f"{who} at {when(self.world.now)}, from revision {before.revision}, in short"
        for line in story(before, self.world.record):
            yield f"  {line}"
        yield f"  revision {self.world.record.revision}"

    def _one_pass(self, who: str, lies: str, fate: str, lasts: float = PASS_SECONDS) -> tuple[list[str], bool]:
        world = self.world
        before = world.reads(who)
        world.lists(who, read_lies(lies))
        decision = world.decides(who)
        lines = [f"{who} at {when(world.now)}, on revision {before.revision}"]
        steps = [*self._changes(before, decision.record), *notes(decision.notes)]
        try:
            committed = world.commits(who)
        except (Conflict, Displaced):
            raise Impossible("a whole pass meets no conflict: tell it step by step") from None
        if committed is not None:
            steps.append(f"commits revision {committed.revision}")
        if decision.calls:
            steps += self.sends(who, None, None, fate)
        if not steps or (committed is None and not decision.calls):
            steps.append(f"again in {decision.wake_seconds:g} s")
        world.passes_time(lasts)
        return [*lines, *(f"  {step}" for step in steps)], committed is None and not decision.calls

    def _changes(self, before: Record, after: Record | None) -> tuple[str, ...]:
        return story(before, after) if after is not None else ()

    @says(r"(?P<who>\w+) restarts")
    def restarts(self, who: str) -> None:
        self.world.views[who] = View()

    @says(r"(?P<who>\w+) takes the lease")
    def takes(self, who: str) -> None:
        self.world.lease = who

    # --- calls that were sent

    @says(
        r"(?P<who>\w+)'s (?P<call>.+?)(?: #(?P<number>\d+))? "
        r"(?P<how>arrives|lands|is refused: (?P<text>.+?))(?P<reply> and replies)?"
    )
    def landing(
        self, who: str, call: str, number: str | None, how: str, text: str | None, reply: str | None
    ) -> Iterator[str]:
        flight = self.world.flight(call, who, int(number) if number else None)
        if text is not None:
            answer = Reply(answer=Answer.REFUSED, text=text)
        else:
            answer = self.world.arrives(flight) if how == "arrives" else self.world.lands(flight)
        if reply:
            self.world.replies(flight, answer)
        yield f"the host: {call} {replied(answer)}"

    # --- the scheduler

    @says(r"time \+(?P<how_long>\S+)")
    def time(self, how_long: str) -> None:
        self.world.passes_time(seconds(how_long))

    @says(r"(?P<id>[of]\d+) runs(?: on (?P<nodes>.+))?")
    def runs(self, id: str, nodes: str | None) -> None:
        self.world.scheduler.runs(id, tuple((nodes or "").split()))

    @says(r"(?P<id>[of]\d+) is ending(?: (?P<end>.+))?")
    def ending(self, id: str, end: str | None) -> None:
        self.world.scheduler.ending(id, read_end(end) if end else None)

    @says(r"(?P<id>[of]\d+) ends slowly")
    def slowly(self, id: str) -> None:
        self.world.scheduler.thing(id).slow = True

    @says(r"(?P<id>[of]\d+)'s node answers")
    def node_answers(self, id: str) -> None:
        thing = self.world.scheduler.thing(id)
        thing.ends |= {run: msgspec.structs.replace(end, lost_since=None) for run, end in thing.ends.items()}

    @says(r"(?P<id>[of]\d+) ends (?P<end>node_failure) lost")
    def ends_lost(self, id: str, end: str) -> None:
        self.world.scheduler.ends(id, msgspec.structs.replace(read_end(end), lost_since=self.world.now))

    @says(r"(?P<id>[of]\d+) ends (?P<end>.+)")
    def ends(self, id: str, end: str) -> None:
        self.world.scheduler.ends(id, read_end(end))

    @says(r"(?P<id>[of]\d+) ends")
    def ends_unsaid(self, id: str) -> None:
        """Nothing more is told than that it has ended."""
        self.world.scheduler.ended(id)

    @says(r"(?P<id>[of]\d+) is (?P<what>purged|lost)")
    def vanishes(self, id: str, what: str) -> None:
        self.world.scheduler.purges(id, lost=what == "lost")

    @says(r"(?P<id>[of]\d+) is (?P<what>hidden|shown|unrecognized)")
    def shown(self, id: str, what: str) -> None:
        thing = self.world.scheduler.thing(id)
        if what == "unrecognized":
            self.world.scheduler.speaks_unknown(thing)
        else:
            thing.hidden = what == "hidden"

    @says(r"(?P<id>[of]\d+) reruns(?: after (?P<end>.+))?")
    def reruns(self, id: str, end: str | None) -> None:
        self.world.scheduler.reruns(id, read_end(end) if end else None)

    @says(r"(?P<id>[of]\d+) is found to be (?P<state>\w+)")
    def found(self, id: str, state: str) -> None:
        """A controller that was rolled back learns how it really is."""
        thing = self.world.scheduler.thing(id)
        if thing.slipped is None or thing.slipped[0] != state:
            raise Impossible(f"{id} was not rolled back from {state}")
        self.world.scheduler.settles(thing)

    @says(r"(?P<id>[of]\d+) relapses")
    def relapses(self, id: str) -> None:
        """A controller that restarts from an older copy runs it again, as the same run."""
        self.world.scheduler.relapses(id)

    @says(r"(?P<id>[of]\d+) rolls back to (?P<state>\w+)(?: in run (?P<run>\d+))?")
    def rolls_back(self, id: str, state: str, run: str | None) -> None:
        self.world.scheduler.rolls_back(id, State(state), int(run) if run else None)

    @says(r"(?P<id>[of]\d+) (?P<how>ignores stops|obeys|progresses|accounts for nothing)")
    def habit(self, id: str, how: str) -> None:
        thing = self.world.scheduler.thing(id)
        match how:
            case "progresses":
                self.world.scheduler.progresses(thing)
            case "accounts for nothing":
                self.world.scheduler.accounts_for_nothing(thing)
            case _:
                thing.stubborn, thing.slow = how == "ignores stops", False

    @says(r"admin (?P<what>opens|holds|releases|stops|requeues) (?P<id>[of]\d+)")
    def admin(self, what: str, id: str) -> None:
        scheduler = self.world.scheduler
        thing = scheduler.thing(id)
        match what:
            case "opens":
                scheduler.opens(thing)
                thing.excused = "an admin opened it"
            case "holds" | "releases":
                scheduler.holds(thing, what == "holds")
            case "stops":
                scheduler.stop(thing)
            case "requeues":
                scheduler.reruns(id)

    @says(r"somebody takes the id of (?P<id>[of]\d+)")
    def reused(self, id: str) -> None:
        self.world.scheduler.reuses(id)

    @says(r"foreign (?P<id>f\d+) appears(?: as (?P<name>[^\s,]+))?(?:, (?P<state>\w+))?")
    def foreign(self, id: str, name: str | None, state: str | None) -> None:
        self.world.scheduler.stray(id, name or "by-hand", State(state or "running"))

    # --- people

    @says(r"(?P<who>\w+) looks")
    def looks(self, who: str) -> Iterator[str]:
        self._looked[who] = self.world.record
        yield f"{who} is shown revision {self.world.record.revision}"

    @says(r"(?P<who>\w+) (?P<what>cancels|holds|releases|resolves|disposes)(?::? (?P<rest>.+))?")
    def asks(self, who: str, what: str, rest: str | None) -> Iterator[str]:
        world = self.world
        shown = self._looked.pop(who, world.record)
        if not is_as_shown(world.record, shown.revision):
            yield f"Conflict: the newest is revision {world.record.revision}"
            return
        shown = world.record
        try:
            match what:
                case "cancels":
                    after = ask.cancel(shown, who, world.now, rest or "")
                case "holds":
                    after = ask.hold(shown, who, rest or "")
                case "releases":
                    after = ask.release(shown, who)
                case "resolves":
                    after = ask.resolve(shown, Result(rest), who, world.now)
                case _:
                    after = ask.dispose(shown, rest or "")
        except BadInput as error:
            yield f"refused: {error}"
            return
        if after == shown:
            yield "nothing to commit"
            return
        committed = world.commit(after, shown.revision, who)
        yield from story(shown, committed)
        yield f"commits revision {committed.revision}"

    # --- looking

    @says(r"show gate")
    def gate(self) -> Iterator[str]:
        """What `explain` prints: a reader's own listing, of which nothing is committed."""
        self.world.reads("show")
        self.world.lists("show", Lists())
        observed = self.world.observed("show")
        last = observed.record.last
        object = observed.record.object(last.canonical or "") if last is not None else None
        if object is None:
            yield "no canonical object"
            return
        yield f"the gate of {object.id} is {'shut' if gate.is_shut(observed, object) else 'open'}"
        for row in gate.conditions(observed.record, observed, object):
            yield f"{'yes' if row.holds else 'no '} {row.name}: {row.text}"

    @says(r"show calls")
    def calls(self) -> Iterator[str]:
        for submission in self.world.record.submissions:
            for attempt in submission.attempts:
                answer = f": {replied(attempt.reply)}" if attempt.reply else ""
                yield f"start {submission.number}.{attempt.number} by {when(attempt.deadline)}{answer}"
        for call in self.world.record.calls:
            yield f"{row_name(call)} by {when(call.deadline)}, {call.count} sent{answered(call)}"

    @says(r"show receipt")
    def receipt(self) -> Iterator[str]:
        receipt = ask.receipt(self.world.record)
        if receipt is None:
            yield "no receipt: it has no outcome"
            return
        yield f"{receipt.result} at {when(receipt.at)}: " + (
            "clean" if receipt.clean else f"waits for {receipt.waits_for}"
        )

    @says(r"show record")
    def show_record(self) -> Iterator[str]:
        yield from tell_record(self.world.record)


# --- files

DASHES = "----"


def shows(path: Path) -> list[str]:
    """The promises and cases that a history says it shows, in its first line."""
    first = path.read_text().partition("\n")[0]
    if not first.startswith("shows: "):
        raise Impossible(f"{path.name}: the first line says which promises it shows")
    return first.removeprefix("shows: ").split()


def commands(lines: list[str]) -> list[tuple[str, list[str]]]:
    """The commands among the lines above the dashes, each with what is indented below it."""
    found: list[tuple[str, list[str]]] = []
    for line in lines:
        if line.startswith("#") or line.startswith("shows: "):
            continue
        if line.startswith(" "):
            found[-1][1].append(line.strip())
        else:
            found.append((line, []))
    return found


def blocks_of(text: str) -> Iterator[list[str]]:
    """The lines above the dashes, block after block."""
    for block in text.rstrip("\n").split("\n\n"):
        lines = block.split("\n")
        yield lines[: lines.index(DASHES)] if DASHES in lines else lines


def retold(path: Path) -> str:
    """The file as it would be if its steps were what its commands lead to."""
    teller, blocks = Teller(), []
    for top in blocks_of(path.read_text()):
        told: list[str] = []
        for command, more in commands(top):
            try:
                told += teller.tell(command, more)
            except Impossible as refused:
                told.append(f"IMPOSSIBLE: {refused}")
        blocks.append("\n".join([*top, DASHES, *told] if commands(top) else top))
    return "\n\n".join(blocks) + "\n"
