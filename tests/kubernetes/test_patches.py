"""What each call changes: the patches, carried out on real objects by the rules of RFC 6902."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dispatch_core.adapters.kubernetes import kinds, patches
from dispatch_core.adapters.kubernetes.kinds import JOB, PYTORCHJOB, Sort, annotation, dig, label
from dispatch_core.adapters.kubernetes.patches import Decided, Needless, Patch, Refused
from tests.kubernetes.recorded import one

Object = dict[str, Any]
DEADLINE = "2026-11-29T15:00:00Z"


class TestFailed(Exception):
    """What the server answers 422 to."""

    __test__ = False


def carried_out(decided: Decided, object: Object) -> Object:
    """The object after a patch: all of it, or none."""
    assert isinstance(decided, Patch), decided
    after = copy.deepcopy(object)
    for operation in decided.operations:
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        place = after
        for part in way:
            place = place[part]
        if operation["op"] == "test":
            if place.get(last) != operation["value"]:
                raise TestFailed(operation["path"])
        elif operation["op"] == "remove":
            del place[last]
        else:
            assert operation["op"] in ("add", "replace")
            place[last] = operation["value"]
    return after


def gated(sort: Sort = JOB) -> Object:
    object = one("basic-07-get-suspended")
    object["metadata"]["annotations"] |= {
        kinds.STOPPED: kinds.NO,
        kinds.HOLD: kinds.NO_HOLD,
        kinds.GATE: kinds.CLOSED,
        kinds.FENCE: "1",
    }
    if sort is PYTORCHJOB:
        object["spec"] = {"runPolicy": {"suspend": True}}
    return object


def gated_by_kueue(gates: str = kinds.KUEUE_GATE) -> Object:
    object = gated()
    object["metadata"]["labels"][kinds.QUEUE_NAME] = "team-queue"
    object["metadata"]["annotations"][kinds.GATED_BY] = gates
    return object


CALLS = {
    "open": patches.open_gate,
    "hold": patches.hold,
    "release": patches.release,
    "stop": patches.stop,
}


def after(object: Object, *calls: str, sort: Sort = JOB) -> Object:
    for call in calls:
        object = carried_out(CALLS[call](sort, object, DEADLINE), object)
    return object


def bits(object: Object, sort: Sort = JOB) -> tuple[str, str, str, bool]:
    told = [annotation(object, name) for name in (kinds.GATE, kinds.HOLD, kinds.STOPPED)]
    return (told[0], told[1], told[2], patches.is_suspended(sort, object))


@pytest.mark.promise("G1")
@pytest.mark.promise("G2")
@pytest.mark.parametrize("sort", [JOB, PYTORCHJOB])
@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ((), ("closed", "none", "no", True)),
        (("open",), ("open", "none", "no", False)),
        (("hold",), ("closed", "held", "no", True)),
        (("hold", "open"), ("open", "held", "no", True)),
        (("hold", "open", "release"), ("open", "none", "no", False)),
        (("hold", "release"), ("closed", "none", "no", True)),
        (("open", "hold"), ("open", "held", "no", True)),
        (("stop",), ("closed", "none", "yes", True)),
        (("open", "stop"), ("open", "none", "yes", True)),
        (("hold", "open", "stop"), ("open", "held", "yes", True)),
    ],
)
def test_the_bit_is_a_function_of_gate_hold_and_stop(
    sort: Sort, calls: tuple[str, ...], expected: tuple[str, str, str, bool]
) -> None:
    object = after(gated(sort), *calls, sort=sort)
    assert bits(object, sort) == expected
    assert annotation(object, kinds.FENCE) == str(1 + len(calls))


@pytest.mark.promise("L1")
@pytest.mark.promise("L3")
@pytest.mark.parametrize("late", CALLS)
@pytest.mark.parametrize("since", CALLS)
def test_a_late_copy_of_an_old_call_fails(late: str, since: str) -> None:
    """Whatever was carried out since, the copy of a call that was decided before it meets another fence."""
    object = gated()
    old = CALLS[late](JOB, object, DEADLINE)
    now = after(object, since)
    with pytest.raises(TestFailed):
        carried_out(old, now)


@pytest.mark.promise("L3")
def test_a_release_of_what_is_released_already_fences_an_earlier_hold() -> None:
    object = gated()
    lost_hold = patches.hold(JOB, object, DEADLINE)
    with pytest.raises(TestFailed):
        carried_out(lost_hold, after(object, "release"))


@pytest.mark.promise("G7")
@pytest.mark.parametrize("call", CALLS)
def test_another_object_of_the_same_name_is_not_touched(call: str) -> None:
    decided = CALLS[call](JOB, gated(), DEADLINE)
    other = gated()
    other["metadata"]["uid"] = "another"
    with pytest.raises(TestFailed):
        carried_out(decided, other)


def test_what_was_stopped_is_never_opened() -> None:
    stopped = after(gated(), "stop")
    for call in ("open", "hold", "release"):
        assert isinstance(CALLS[call](JOB, stopped, DEADLINE), Refused)
    assert isinstance(CALLS["stop"](JOB, stopped, DEADLINE), Needless)


def test_what_a_person_started_again_is_stopped_again() -> None:
    stopped = after(gated(), "stop")
    stopped["spec"]["suspend"] = False
    assert bits(after(stopped, "stop")) == ("closed", "none", "yes", True)


def test_an_open_that_is_repeated_changes_nothing() -> None:
    assert isinstance(CALLS["open"](JOB, after(gated(), "open"), DEADLINE), Needless)


def test_a_running_object_is_not_held() -> None:
    running = one("life-05-complete-job-running")
    running["metadata"]["annotations"][kinds.STOPPED] = kinds.NO
    assert isinstance(patches.hold(JOB, running, DEADLINE), Refused)


def test_a_hold_fails_where_the_run_has_begun_meanwhile() -> None:
    opened = one("life-02-complete-job-opened")
    opened["metadata"]["annotations"][kinds.STOPPED] = kinds.NO
    decided = patches.hold(JOB, opened, DEADLINE)
    opened["status"]["ready"] = 1
    with pytest.raises(TestFailed):
        carried_out(decided, opened)


def test_what_has_no_tags_is_left_alone() -> None:
    strange = gated()
    strange["metadata"]["annotations"] = {}
    assert all(isinstance(call(JOB, strange, DEADLINE), Refused) for call in CALLS.values())


# --- Kueue


def test_open_takes_our_name_off_the_admission_gate() -> None:
    alone = after(gated_by_kueue(), "open")
    assert kinds.GATED_BY not in alone["metadata"]["annotations"]
    assert patches.is_suspended(JOB, alone)  # Kueue's to change
    beside = after(gated_by_kueue(f"{kinds.KUEUE_GATE},site.example/check"), "open")
    assert annotation(beside, kinds.GATED_BY) == "site.example/check"


def test_open_moves_an_object_out_of_the_held_queue() -> None:
    object = gated_by_kueue()
    del object["metadata"]["annotations"][kinds.GATED_BY]
    object["metadata"]["labels"][kinds.QUEUE_NAME] = "parked"
    object["metadata"]["annotations"][kinds.QUEUE] = "team-queue"
    assert label(after(object, "open"), kinds.QUEUE_NAME) == "team-queue"


@pytest.mark.promise("G2")
@pytest.mark.promise("L3")
def test_a_hold_under_kueue_is_the_workloads() -> None:
    workload = one("kueue-12-gated-workload")
    held = carried_out(patches.set_active(workload, False, DEADLINE), workload)
    assert dig(held, "spec", "active") is False
    late = patches.set_active(held, True, DEADLINE)
    held_again = carried_out(patches.set_active(held, False, DEADLINE), held)
    with pytest.raises(TestFailed):
        carried_out(late, held_again)


def test_a_stop_under_kueue_does_not_hit_a_later_run() -> None:
    first = one("kueue-52-preemption-low-running")
    lost_stop = patches.set_active(first, False, DEADLINE)
    evicted_since = copy.deepcopy(first)
    evicted_since["status"]["schedulingStats"] = one("kueue-58-preemption-victim-readmitted")["status"][
        "schedulingStats"
    ]
    with pytest.raises(TestFailed):
        carried_out(lost_stop, evicted_since)
    carried_out(patches.set_active(evicted_since, False, DEADLINE), evicted_since)


def test_a_finished_workload_is_left_alone() -> None:
    assert isinstance(patches.set_active(one("kueue-25-finished-workload"), False, DEADLINE), Refused)
