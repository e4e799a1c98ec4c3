"""What supervisors, the janitor and people did, as sentences: passes, commits, calls and their replies, requests.

One rule: a pass is said once its commit is known to have been tried, at the places where its read, its listing and its
decision were. What an actor held when its loop was left is gone: it restarts before it is heard of again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dispatch_core.evidence import Bounds
from dispatch_core.record import Answer, Kind
from dispatch_core.simulator.flight import BUSY
from dispatch_core.simulator.sentences import HAVING_READ, TAKING, Said, Sentences
from dispatch_core.simulator.stage import Stage
from dispatch_core.simulator.trace import (
    Acknowledged,
    Arrived,
    Committed,
    Event,
    Hindered,
    Looked,
    Read,
    Refused,
    Replied,
    Sent,
    Stopped,
    Unanswered,
    Withheld,
)
from dispatch_core.simulator.wording import Named, call_title, new_calls, reply_to, request
from dispatch_core.simulator.world import EPOCH


@dataclass
class Reading:
    """One read of the record."""

    place: int
    at: float
    revision: int
    newest: bool
    lefts: int = 0
    """How often its reader had left its loop by then."""


@dataclass
class Pass:
    """One pass that has come to its decision."""

    read: Reading
    place: int
    found: Looked | Unanswered
    told: bool = False
    commit: Said | None = None
    """The sentence that says how its commit went."""


@dataclass
class Voice:
    """What is known of one actor."""

    name: str
    shown: Reading | None = None
    """The read before the latest one: what a person was shown, who asks about it."""
    read: Reading | None = None
    at_pass: Pass | None = None
    given_up: dict[str, Pass] = field(default_factory=dict)
    """By their ids: commits that may land yet."""
    lefts: int = 0
    """How often its loop was left."""
    restarts: int = 0
    """How many of these are said, or need not be."""
    holds: bool = False
    """It holds replies that no commit has."""
    merging: bool = False
    """Its decision was refused, and its evidence is not committed yet."""
    refused: Reading | None = None
    """The read of that decision's pass."""
    ended_merging: bool = False
    """It was ended while its evidence may have been on its way."""
    merge_unknown: bool = False
    """It gave up a commit of its evidence, which may land yet."""
    nothing_new: Reading | None = None
    """The read that may have shown that there is nothing of its evidence to commit."""
    revision: int = 0
    """The one that its decision's commit made."""
    calls: list[Named] = field(default_factory=list)
    """What that commit allowed, as far as it was not sent."""
    alone: bool = False
    """It allowed one call only."""
    landed: bool = False
    landed_at: float = 0.0
    unsent: list[Named] = field(default_factory=list)
    """As `calls`, until the next decision."""
    sending: tuple[Named, Said] | None = None
    """The call that it sent last, and what was said of it."""
    reread: Reading | None = None
    """The read before an Open is sent."""


class Voices:
    """All actors of one history."""

    def __init__(self, sentences: Sentences, bounds: Bounds) -> None:
        self._sentences = sentences
        self._say = sentences.say
        self._step_seconds = bounds.window_seconds + bounds.call_seconds
        self._silence = f"no listing within {self._step_seconds:g} s"
        self._voices: dict[str, Voice] = {}
        self._newest = 0
        self._lease = ""
        """Who holds it; "" while nobody was displaced."""
        self._replied: set[int] = set()
        self._sent: dict[tuple[str, str], list[int]] = {}
        """By actor and title: the numbers of the calls that were so called, in their order."""
        self._hears: dict[type, Callable[[int, Any], None]] = {
            Read: self._read,
            Looked: self._found,
            Unanswered: self._found,
            Committed: self._committed,
            Acknowledged: self._acknowledged,
            Refused: self._refused,
            Hindered: self._hindered,
            Stopped: self._hindered,
            Withheld: self._withheld,
            Sent: self._sends,
            Arrived: self._arrived,
        }

    def hear(self, trace: Sequence[Event]) -> None:
        """Say all that these events tell."""
        self._replied = {event.number for event in trace if type(event) is Replied}
        first = next(event for event in trace if type(event) is Committed).after
        silent = any(rule.when.no_progress_for_seconds is not None for rule in first.plan.rules)
        self._stage = Stage(self._sentences, progress=silent)
        for place, event in enumerate(trace):
            hears = self._hears.get(type(event))
            if hears is not None:
                hears(place, event)
            else:
                self._stage.hear(place, event)

    def _of(self, name: str) -> Voice:
        return self._voices.setdefault(name, Voice(name))

    # --- a pass

    def _read(self, place: int, event: Read) -> None:
        voice = self._of(event.actor)
        reading = Reading(place, event.at, event.revision, event.revision == self._newest, voice.lefts)
        voice.ended_merging = False
        self._nothing_was_new(voice)
        self._did_not_send(voice)
        if voice.merging:
            voice.nothing_new = reading
        elif voice.landed and any(call.title.startswith("open ") for call in voice.calls):
            voice.reread = reading
        voice.shown, voice.read, voice.at_pass = voice.read, reading, None

    def _found(self, place: int, event: Looked | Unanswered) -> None:
        voice = self._of(event.actor)
        self._nothing_was_new(voice)
        self._did_not_send(voice)
        if voice.read is not None and (type(event) is Unanswered or event.job):  # type: ignore[union-attr]
            voice.at_pass = Pass(voice.read, place, event)

    def _tell(self, voice: Voice, told: Pass) -> None:
        """Say a pass, up to its decision."""
        if told.told:
            return
        told.told = True
        read, found, name = told.read, told.found, voice.name
        if read.lefts > voice.restarts:
            if voice.holds:
                self._say(read.place, read.at, f"{name} restarts", timeless=True)
            voice.restarts, voice.holds = read.lefts, False
        revision = "" if read.newest else f" revision {read.revision}"
        self._say(read.place, read.at, f"{name} reads{revision}", part="reads", of=found, timeless=True)
        if isinstance(found, Unanswered):
            self._say(told.place, found.at, f"{name} lists silent: {found.why or self._silence}")
        else:
            self._tell_listing(name, found)
        timeless = type(found) is Looked  # without a listing, it is decided by the host's clock
        self._say(told.place, found.at, f"{name} decides", part="decides", of=found, timeless=timeless)

    def _tell_listing(self, name: str, found: Looked) -> None:
        began, taken, ended = (place - 0.5 for place in found.places)
        without = f" without {' '.join(found.lies)}" if found.lies else ""
        complete = found.listing.complete
        whole = f"{'' if complete else ' incomplete'}{TAKING}{without}"
        ended_at = found.began + (found.listing.ended - found.listing.began).total_seconds()
        self._say(began, found.began, f"{name} asks for a listing", part="asks", of=found)
        self._say(taken, found.taken, f"{name}'s listing is taken{without}", part="taken", of=found)
        given = f"{name} is given {'the' if complete else 'an incomplete'} listing"
        self._say(ended, ended_at, given, part="given", of=found, whole=whole)

    # --- commits

    def _committed(self, place: int, event: Committed) -> None:
        self._newest = event.after.revision
        voice = self._of(event.actor)
        if event.before is None:
            return
        if event.by.startswith("evidence"):
            voice.merging |= voice.ended_merging or (event.late and voice.merge_unknown)
            voice.merge_unknown = False
            since = voice.refused if voice.merging else None
            self._gave_up(since or Reading(place, event.at, 0, True), voice, event)
            self._abandoned(voice, event)
            words = f"{voice.name} merges{'' if voice.merging else ' replies'}"
            self._say(place, event.at, words, timeless=True)
            voice.merging, voice.nothing_new, voice.holds = False, None, False
        elif event.late and event.after.commit in voice.given_up:
            self._landed_late(place, event, voice, voice.given_up[event.after.commit])
        elif voice.at_pass is not None:
            self._decided(place, event, voice, voice.at_pass)
        else:
            self._asked(place, event, voice)

    def _gave_up(self, since: Reading, voice: Voice, event: Committed) -> None:
        """Say of a call, before this read, that it was given up before it was sent, if that is what was committed."""
        for call in voice.unsent:
            reply = reply_to(event.after, call)
            if event.before is not None and reply is not None and reply_to(event.before, call) is None:
                self._say(since.place - 0.25, since.at, f"{voice.name} sends {call.title}, given up")
        voice.unsent = []

    def _abandoned(self, voice: Voice, event: Committed) -> None:
        """Say of a call that its sender left while it was on its way, if it commits no reply of it."""
        sending, voice.sending = voice.sending, None
        if not voice.merging and sending is not None and reply_to(event.after, sending[0]) is None:
            sending[1].text, sending[1].part = sending[1].text.replace("nothing arrives", "abandoned"), ""

    def _decided(self, place: int, event: Committed, voice: Voice, told: Pass) -> None:
        self._gave_up(told.read, voice, event)
        self._tell(voice, told)
        self._takes_lease(place, event, voice)
        told.commit = self._say(place, event.at, f"{voice.name} commits", part="commits", of=told.found, timeless=True)
        assert event.before is not None  # noqa: S101 - what was decided, was decided of a record
        voice.calls, voice.revision = new_calls(event.before, event.after), event.after.revision
        told.commit.calls = len(voice.calls)
        voice.unsent, voice.sending = list(voice.calls), None
        voice.alone, voice.landed, voice.reread, voice.holds = len(voice.calls) == 1, False, None, False

    def _takes_lease(self, place: int, event: Committed, voice: Voice) -> None:
        if event.displaced:
            self._displace(place, event.at, voice.name)
        elif self._lease and self._lease != voice.name:
            self._lease = voice.name
            self._say(place, event.at, f"{voice.name} takes the lease")

    def _displace(self, place: int, at: float, name: str) -> None:
        if self._lease in ("", name):
            self._lease = next((other for other in ("a", "b", "c") if other in self._voices and other != name), "eve")
            self._say(place, at, f"{self._lease} takes the lease")

    def _landed_late(self, place: int, event: Committed, voice: Voice, told: Pass) -> None:
        self._tell(voice, told)
        if told.commit is not None:
            told.commit.text = f"{voice.name} commits, never landing"
        self._takes_lease(place, event, voice)
        self._say(place, event.at, f"{voice.name}'s commit lands")

    def _asked(self, place: int, event: Committed, voice: Voice) -> None:
        """A person's request."""
        assert event.before is not None  # noqa: S101 - the first commit is nobody's request
        what = request(event.before, event.after)
        shown = voice.shown
        if shown is not None and shown.revision != event.before.revision and not what.startswith(("cancels", "holds")):
            self._say(shown.place, shown.at, f"{event.by} looks")
        self._say(place, event.at, f"{event.by} {what}")

    def _acknowledged(self, place: int, event: Acknowledged) -> None:
        voice = self._of(event.actor)
        if voice.at_pass is not None and event.revision == voice.revision:
            voice.landed, voice.landed_at = True, event.at

    def _refused(self, place: int, event: Refused) -> None:
        voice = self._of(event.actor)
        told = voice.at_pass
        if event.why == "StoreUnavailable":
            self._hindered(place, event)
        elif told is None:
            voice.nothing_new = None  # of its evidence: it reads again
            voice.merge_unknown = voice.merging and event.why == "CommitUnknown"
        elif event.why == "CommitUnknown":
            self._unknown(place, event, voice, told)
        else:
            self._tell(voice, told)
            if event.why == "Displaced":
                self._displace(place, event.at, voice.name)
            self._say(place, event.at, f"{voice.name} commits", timeless=True)
            voice.merging, voice.refused, voice.calls = True, told.read, []

    def _unknown(self, place: int, event: Refused, voice: Voice, told: Pass) -> None:
        if told.commit is not None:
            told.commit.text = f"{voice.name} commits, unanswered"
        else:
            told.commit = self._say(place, event.at, "")
            voice.given_up[event.commit] = told
        voice.calls, voice.alone = [], False

    def _hindered(self, place: int, event: Hindered | Stopped | Refused) -> None:
        voice = self._of(event.actor)
        self._did_not_send(voice)
        voice.ended_merging = voice.merging and type(event) is Stopped
        voice.lefts, voice.merging, voice.nothing_new = voice.lefts + 1, False, None
        voice.landed, voice.reread, voice.calls = False, None, []

    def _nothing_was_new(self, voice: Voice) -> None:
        """Say that a supervisor had nothing to merge, once it goes on without a commit."""
        if voice.merging and voice.nothing_new is not None:
            read = voice.nothing_new
            self._say(
                read.place, read.at, f"{voice.name} merges{_having_read(read.revision) if not read.newest else ''}"
            )
            voice.merging, voice.nothing_new, voice.holds = False, None, False

    # --- calls

    def _did_not_send(self, voice: Voice) -> None:
        """Say that an Open was not sent, once its sender goes on without it."""
        reread, voice.reread = voice.reread, None
        if reread is None:
            return
        voice.landed = False
        if reread.at - voice.landed_at > self._step_seconds:
            return  # it was given up, and what it held of that is in its next commit
        if reread.revision != voice.revision:
            voice.unsent = []
            shown = _having_read(reread.revision) if not reread.newest else ""
            self._say(reread.place, reread.at, f"{voice.name} sends{shown}")
            voice.holds = True

    def _withheld(self, place: int, event: Withheld) -> None:
        voice = self._of(event.actor)
        title = next((call.title for call in voice.calls if call.title.startswith("start ")), "")
        self._is_sent(voice, Named(title, 0))
        self._sent.setdefault((voice.name, title), []).append(0)
        voice.holds = True
        self._say(place, event.at, f"{voice.name} sends{'' if voice.alone else f' {title}'}, refused {event.why}")

    def _sends(self, place: int, event: Sent) -> None:
        voice = self._of(event.actor)
        self._nothing_was_new(voice)
        if voice.at_pass is not None:
            self._tell(voice, voice.at_pass)
            if voice.at_pass.commit is not None and voice.at_pass.commit.text == "":
                voice.at_pass.commit.text = f"{voice.name} commits, never landing"
        title = call_title(event.kind, event.object, event.submission, event.attempt)
        self._is_sent(voice, Named(title, event.run))
        self._sent.setdefault((voice.name, title), []).append(event.number)
        reread, voice.reread, voice.holds = voice.reread, None, True
        shown = ""
        if event.kind is Kind.OPEN and reread is not None and self._newest != reread.revision:
            shown = _having_read(reread.revision)
        words = f"{voice.name} sends{'' if voice.alone else f' {title}'}{shown}"
        said = self._say(place, event.at, f"{words}, nothing arrives", part="sends", of=event, whole=words)
        voice.sending = (Named(title, event.run), said)

    def _is_sent(self, voice: Voice, sent: Named) -> None:
        voice.calls = [call for call in voice.calls if call != sent]
        voice.unsent = [call for call in voice.unsent if call != sent]

    def _arrived(self, place: int, event: Arrived) -> None:
        self._stage.stopped(place, event)
        sent, reply = event.sent, event.reply
        title = call_title(sent.kind, sent.object, sent.submission, sent.attempt)
        numbers = self._sent[sent.actor, title]
        which = f" #{numbers.index(sent.number) + 1}" if numbers[-1] != sent.number else ""
        replies = event.answers and sent.number in self._replied
        late = reply.answer is not Answer.LATE and _is_late(event)
        busy = reply.answer is Answer.REFUSED and reply.text == BUSY
        how = f"is refused: {reply.text}" if busy else "lands" if late else "arrives"
        whole = ""
        if reply.answer is Answer.LATE:
            whole = ", late" if replies else ""
        elif not late and not busy:
            whole = "-" if replies else ", reply lost"
        elif busy and replies:
            whole = f", refused {reply.text}"
        words = f"{sent.actor}'s {title}{which} {how}{' and replies' if replies else ''}"
        self._say(place, event.at, words, part="arrives", of=sent, whole=whole)
        self._stage.has_arrived(place, event.at)


def _having_read(revision: int) -> str:
    """Said of what was done after a read that was not of the newest."""
    return f"{HAVING_READ}{revision}"


def _is_late(event: Arrived) -> bool:
    """Whether it took effect after its deadline: it was let through before."""
    lands = event.sent.kind is None or not event.beyond
    return lands and event.at > (event.sent.deadline - EPOCH).total_seconds()
