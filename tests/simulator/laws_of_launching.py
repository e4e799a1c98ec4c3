"""Stories for the laws of launching and of the gate: each broken, and each nearly."""

from __future__ import annotations

from msgspec.structs import replace

from dispatch_core.record import Hold, Kind, State
from dispatch_core.simulator.trace import HoldBit, Slipped
from tests.simulator.story import Story, breaks, respects

HOLD = Hold(number=1, asked_by="ann", reason="wait")


def with_a_duplicate(s: Story) -> None:
    """`o1` counts, `o2` is another attempt of the same submission."""
    s.authorize(attempts=2)
    s.make("o1", 1)
    s.make("o2", 2)
    s.choose("o1")
    s.record_seen("o2")


# --- authorized


@breaks("authorized")
def a_run_begins_that_nobody_opened(s: Story) -> None:
    s.launch()
    s.started("o1")


@breaks("authorized")
def it_was_opened_from_a_read_that_saw_the_cancel(s: Story) -> None:
    s.launch()
    s.look()
    s.decide(Kind.OPEN, "o1")
    s.cancel()
    s.opened("o1", by=s.call(Kind.OPEN, "o1"))
    s.started("o1")


@breaks("authorized")
def it_was_opened_and_is_not_the_one_that_counts(s: Story) -> None:
    with_a_duplicate(s)
    s.opened("o2", by=s.call(Kind.OPEN, "o2"))
    s.started("o2")


@breaks("authorized")
def it_was_opened_before_that_was_committed(s: Story) -> None:
    s.launch()
    s.opened("o1", by=s.call(Kind.OPEN, "o1"))
    s.started("o1")


@breaks("authorized")
def its_opener_had_read_nothing(s: Story) -> None:
    s.launch()
    s.opened("o1", by=s.call(Kind.OPEN, "o1", read=0))
    s.started("o1")


@respects("authorized", "not_held", "committed_first", "read_again", "shut_until", "lowest", "within_budget", "alone")
def it_was_chosen_and_opened_and_runs(s: Story) -> None:
    s.run()


@respects("authorized", "retired")
def an_admin_opened_a_duplicate(s: Story) -> None:
    with_a_duplicate(s)
    s.object("o2", retired=True)
    s.opened("o2")
    s.started("o2")


@respects("authorized")
def a_controller_restarted_and_starts_what_had_run(s: Story) -> None:
    s.launch()
    s.tell(Slipped(s.now, "o1", False, State.PENDING))
    s.started("o1")


@respects("authorized", "alone", "nothing_runs_after")
def somebody_elses_object_runs(s: Story) -> None:
    s.run()
    s.stray("f1")
    s.started("f1")


# --- alone


def said_to_be_gone(s: Story) -> None:
    """A person has said that `o1`, which runs, is gone, and has the job launched again."""
    s.run("o1")
    s.object("o1", gone=s.host())
    s.launch("o2", why="person ann")


@breaks("alone")
def a_second_run_beside_the_first(s: Story) -> None:
    said_to_be_gone(s)
    s.open("o2")
    s.started("o2")


@respects("alone", "shut_until", "within_budget")
def the_first_run_has_ended(s: Story) -> None:
    said_to_be_gone(s)
    s.finished("o1")
    s.open("o2")
    s.started("o2")


@respects("alone")
def the_other_run_was_opened_by_an_admin(s: Story) -> None:
    s.launch("o1")
    s.opened("o1")
    s.started("o1")
    s.object("o1", gone=s.host())
    s.launch("o2", why="person ann")
    s.open("o2")
    s.started("o2")


@respects("alone")
def an_admin_opened_the_second_run(s: Story) -> None:
    said_to_be_gone(s)
    s.opened("o2")
    s.started("o2")


# --- retired


@breaks("retired", also=("authorized",))
def a_retired_object_runs(s: Story) -> None:
    with_a_duplicate(s)
    s.object("o2", retired=True)
    s.opened("o2", by=s.call(Kind.OPEN, "o2"))
    s.started("o2")


@breaks("retired")
def a_retired_object_is_held(s: Story) -> None:
    with_a_duplicate(s)
    s.object("o2", retired=True)
    s.decide(Kind.HOLD, "o2")
    s.send(Kind.HOLD, "o2")


@respects("retired", "stops_only_what_it_may")
def a_retired_object_is_stopped(s: Story) -> None:
    with_a_duplicate(s)
    s.object("o2", retired=True)
    s.decide(Kind.STOP, "o2")
    s.send(Kind.STOP, "o2")


@respects("retired")
def it_was_retired_after_its_hold_was_decided(s: Story) -> None:
    with_a_duplicate(s)
    s.decide(Kind.HOLD, "o2")
    read = s.record.revision
    s.object("o2", retired=True)
    s.send(Kind.HOLD, "o2", read=read)


# --- not_held


@breaks("not_held")
def it_starts_against_a_hold(s: Story) -> None:
    s.launch()
    s.commit(holds=(HOLD,))
    s.open()
    s.started("o1")


@breaks("not_held")
def its_hold_was_wiped_before_its_open_was_decided(s: Story) -> None:
    s.launch()
    s.commit(holds=(HOLD,))
    s.tell(HoldBit(s.now, "o1", True, s.call(Kind.HOLD, "o1")))
    s.tell(HoldBit(s.now, "o1", False, None))
    s.open()
    s.started("o1")


@breaks("not_held")
def an_admin_once_held_it_and_we_never_did(s: Story) -> None:
    s.launch()
    s.tell(HoldBit(s.now, "o1", True, None))
    s.commit(holds=(HOLD,))
    s.open()
    s.started("o1")


@respects("not_held")
def an_admin_took_the_hold_off_since(s: Story) -> None:
    s.launch()
    s.commit(holds=(HOLD,))
    s.tell(HoldBit(s.now, "o1", True, s.call(Kind.HOLD, "o1")))
    s.open()
    s.tell(HoldBit(s.now, "o1", False, None))
    s.started("o1")


@respects("not_held")
def the_hold_was_lifted_since(s: Story) -> None:
    s.launch()
    s.commit(holds=(HOLD,))
    s.open()
    s.commit(holds=(replace(HOLD, lifted=True),))
    s.started("o1")


@respects("not_held")
def the_hold_was_asked_for_after_its_open_was_sent(s: Story) -> None:
    s.launch()
    s.open()
    s.commit(holds=(HOLD,))
    s.started("o1")


@respects("not_held")
def an_admin_opened_what_is_held(s: Story) -> None:
    s.launch()
    s.commit(holds=(HOLD,))
    s.open()
    s.opened("o1")
    s.started("o1")
