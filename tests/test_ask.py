"""What people ask for, where it would mean nothing; what it does is told in the histories."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dispatch_core import ask
from dispatch_core.errors import BadInput
from dispatch_core.names import object_name
from dispatch_core.plan import Plan, Spec
from dispatch_core.reasons import Reason
from dispatch_core.record import Attempt, Object, Outcome, Record, Result, State, Submission, Wait
from tests.world import EPOCH

NEW = Record(key="train", uid="0f3a9c21", scheduler="cluster", spec=Spec(command=("true",)), plan=Plan())
LAUNCHED = replace(
    NEW,
    submissions=(
        Submission(
            number=1, why="first", spec=NEW.spec, attempts=(Attempt(number=1, committed=EPOCH, deadline=EPOCH),)
        ),
    ),
    objects=(
        Object(
            id="o1",
            name=object_name(NEW.uid, 1, 1),
            submission=1,
            attempt=1,
            first_seen=EPOCH,
            seen=EPOCH,
            run=1,
            state=State.RUNNING,
        ),
    ),
)


@pytest.mark.promise("P2")
@pytest.mark.promise("X4")
def test_a_second_cancel_changes_nothing() -> None:
    once = ask.cancel(LAUNCHED, "ann", EPOCH, "too dear")
    assert ask.cancel(once, "bob", EPOCH) is once
    receipt = ask.receipt(once)
    assert receipt is not None
    assert receipt == ask.receipt(ask.cancel(once, "bob", EPOCH))
    assert (receipt.result, receipt.clean, receipt.waits_for) == (
        Result.CANCELLED,
        False,
        "o1: to be listed ended, or known to be gone",
    )


@pytest.mark.promise("X4")
def test_receipts() -> None:
    assert ask.receipt(NEW) is None
    over = replace(NEW, outcome=Outcome(result=Result.SUCCEEDED, cause=None, at=EPOCH, by="ann"))
    told = {
        "calls that can still land to expire, and listings that show nothing left": over,
        "f1 is not ours": replace(over, wait=Wait(reason=Reason.FOREIGN, text="f1 is not ours", since=EPOCH)),
        "": replace(over, settled=True),
    }
    for text, record in told.items():
        receipt = ask.receipt(record)
        assert receipt is not None
        assert (receipt.waits_for, receipt.clean) == (text, text == "")


def test_a_job_with_an_outcome_is_left_alone() -> None:
    over = ask.cancel(NEW, "ann", EPOCH)
    for asked in (
        lambda: ask.hold(over, "ann", "wait"),
        lambda: ask.release(over, "ann"),
        lambda: ask.resolve(over, Result.FAILED, "ann", EPOCH),
    ):
        with pytest.raises(BadInput, match="'train' has cancelled and cannot be"):
            asked()


@pytest.mark.parametrize("what", ["f1", "1.2", "2.1", "o1"])
def test_what_cannot_be_disposed(what: str) -> None:
    with pytest.raises(BadInput, match="no foreign object and no attempt"):
        ask.dispose(LAUNCHED, what)


def test_an_attempt_with_an_object_is_not_disposed() -> None:
    with pytest.raises(BadInput, match=r"attempt 1\.1 made an object; stop the job instead"):
        ask.dispose(LAUNCHED, "1.1")


@pytest.mark.promise("S2")
def test_a_settled_job_is_not_disposed_of() -> None:
    settled = replace(ask.cancel(LAUNCHED, "ann", EPOCH), settled=True)
    with pytest.raises(BadInput, match="is settled"):
        ask.dispose(settled, "1.1")


def test_a_release_with_a_hold_and_a_choice_does_both() -> None:
    held = ask.hold(LAUNCHED, "ann", "wait")
    waits = replace(held, wait=Wait(reason=Reason.HELD_BY_RULE, text="", since=EPOCH, object="o1"))
    released = ask.release(waits, "ann")
    assert all(hold.lifted for hold in released.holds)
    assert [s.why for s in released.submissions] == ["first", "person ann"]
    assert released.objects == LAUNCHED.objects
    assert released.wait is None
