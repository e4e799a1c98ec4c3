"""Why a pass did, or did not, do what a reader might expect.

One rule: the reasons are one stable enum, one sentence each, spelled the same in records, logs, metrics and pages. A
reason is never renamed; this room knows no other.
"""

from enum import StrEnum


class Reason(StrEnum):
    """One reason; its value is what is stored, its docstring the sentence."""

    AUTHORIZED = "authorized"
    """One more submission was authorized."""
    ATTEMPTED = "attempted"
    """One more Start was committed."""
    CHOSEN = "chosen"
    """The object that counts was chosen."""
    OPENED = "opened"
    """The gate is being opened."""
    STOPPING = "stopping"
    """Something is being stopped, or is still alive after it was."""
    HOLDING = "holding"
    """A hold is being placed."""
    RELEASING = "releasing"
    """A hold of ours is being lifted."""
    SHUTTING = "shutting"
    """The gate is being shut behind a running run."""
    RECOVERING = "recovering"
    """A rule's unit was spent, or its requeue is being made."""
    OUTCOME = "outcome"
    """The job has an outcome."""
    SETTLED = "settled"
    """Every launch is accounted for."""
    RUNNING = "running"
    """The job runs."""
    QUEUED = "queued"
    """The gate is open and the scheduler has not started the run, or it is ending."""
    AWAITING_START = "awaiting_start"
    """A Start was sent and has not replied."""
    AWAITING_DELAY = "awaiting_delay"
    """A resubmit or requeue waits for the delay of its rule."""
    AWAITING_REPEAT = "awaiting_repeat"
    """A call was made and is repeated when its delay is over."""
    AWAITING_DUPLICATES = "awaiting_duplicates"
    """The gate is shut: a duplicate is not yet gone."""
    AWAITING_EARLIER = "awaiting_earlier"
    """The gate is shut: an earlier submission is not yet over."""
    AWAITING_EXPIRY = "awaiting_expiry"
    """A call that was sent can still land."""
    AWAITING_HOLD = "awaiting_hold"
    """The gate is shut: the hold that is asked for is not yet on the object."""
    AWAITING_END = "awaiting_end"
    """A run is ending, or an earlier one is not yet judged."""
    AWAITING_NODE = "awaiting_node"
    """The gate is shut: a node that was lost does not answer, and may still run an earlier run."""
    AWAITING_ROOM = "awaiting_room"
    """The cluster takes no more objects for now."""
    AWAITING_ABSENCE = "awaiting_absence"
    """Something is not listed, and not yet for long enough to be gone."""
    LISTING_INCOMPLETE = "listing_incomplete"
    """The listing is not complete: nothing rests on what it does not show."""
    UNREACHABLE = "unreachable"
    """The scheduler does not answer: nothing is known since."""
    HELD = "held"
    """A hold is asked for."""
    HELD_BY_RULE = "held_by_rule"
    """A rule leaves what follows to a person."""
    VANISHED = "vanished"
    """The object is gone without an end on record: a person says what follows."""
    UNRECOGNIZED = "unrecognized"
    """It ended, and this version does not know how, or it is in a state that it does not know: a person says what
    follows."""
    UNEXPLAINED_STOP = "unexplained_stop"
    """We stopped it, and nothing says what for: a person says what follows."""
    GONE = "gone"
    """An earlier object is gone and may still run: a person must say that it is over."""
    FOREIGN = "foreign"
    """Something carries the job's name and is not of its record."""
    UNMATCHED = "unmatched"
    """An attempt may have made an object that nobody has seen: a person must say that it did not."""
    MOVED_BACK = "moved_back"
    """The scheduler lists a run that had ended."""


CHOICE = frozenset({Reason.HELD_BY_RULE, Reason.VANISHED, Reason.UNRECOGNIZED, Reason.UNEXPLAINED_STOP})
"""Waits that `release`, `resolve` or `cancel` ends: nobody has said what follows the newest run."""

FOR_A_PERSON = CHOICE | {Reason.GONE, Reason.FOREIGN, Reason.UNMATCHED}
"""Waits that only a person ends."""

WHILE_ALIVE = frozenset({Reason.FOREIGN, Reason.MOVED_BACK})
"""Waits about an object that is alive: seeing it alive once more answers nothing."""
