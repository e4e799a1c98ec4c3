"""What a real API server and a real Kueue said, read into sightings."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from dispatch_core.adapters.kubernetes import kinds
from dispatch_core.adapters.kubernetes.causes import end_by_pods, waits_for
from dispatch_core.adapters.kubernetes.kinds import JOB, JOBSET, PYTORCHJOB, TRAINJOB, Sort
from dispatch_core.adapters.kubernetes.reading import Shown, is_at_rest, needs_pods, run_of, sighting
from dispatch_core.plan import Cause
from dispatch_core.record import State
from tests.kubernetes.recorded import events, items, one


def job(case: str, pods: str | None = None, workload: str | None = None, sort: Sort = JOB) -> Shown:
    return Shown(sort, one(case), None if pods is None else items(pods), None if workload is None else one(workload))


@pytest.mark.parametrize(
    ("shown", "state"),
    [
        (job("basic-07-get-suspended"), State.GATED),
        (job("life-02-complete-job-opened", "life-03-complete-pods-pending"), State.PENDING),
        (job("life-02-complete-job-opened", "life-04-complete-pods-creating"), State.PENDING),
        (job("life-05-complete-job-running"), State.RUNNING),
        (job("life-02-complete-job-opened", "life-06-complete-pods-running"), State.RUNNING),
        (job("life-07-complete-job-complete", "life-08-complete-pods-succeeded"), State.ENDED),
        (job("life-10-complete-job-after-suspend"), State.ENDED),
        (job("life-14-failed-job", "life-15-failed-pods"), State.ENDED),
        (job("life-18-failuretarget-job", "life-19-failuretarget-pods"), State.ENDING),
        (job("life-20-failuretarget-job-failed"), State.ENDED),
        (job("life-22-successcriteria-job"), State.ENDING),
        (job("life-49-deadline-job-terminating", "life-50-deadline-pods"), State.ENDING),
        (job("life-54-suspend-job-terminating", "life-55-suspend-pods-terminating"), State.ENDING),
        (job("life-56-suspend-job", "life-57-suspend-pods-gone"), State.HELD),
        (job("life-59-resume-job"), State.PENDING),
        (job("basic-86-foreground-get-deleting", "basic-87-foreground-pods-terminating"), State.ENDING),
        (job("kueue-13-gated-job", workload="kueue-12-gated-workload"), State.GATED),
        (job("kueue-15-gated-job-resuspended", workload="kueue-12-gated-workload"), State.GATED),
        (job("kueue-34-hold-opened-job", workload="kueue-33-hold-opened-workload"), State.HELD),
        (job("kueue-39-hold-running-job-evicting", workload="kueue-38-hold-running-workload-evicting"), State.ENDING),
        (job("kueue-41-hold-running-job", workload="kueue-40-hold-running-workload"), State.HELD),
        (job("kueue-56-preemption-victim-job", workload="kueue-55-preemption-victim-evicted"), State.PENDING),
        (job("kueue-56-preemption-victim-job", workload="kueue-53-preemption-victim-evicting"), State.ENDING),
        (job("kueue-50-failed-job", workload="kueue-49-failed-workload"), State.ENDED),
    ],
)
def test_a_state_is_read(shown: Shown, state: State) -> None:
    shown = opened(shown)
    assert sighting(shown).state is state


def opened(shown: Shown) -> Shown:
    """Kueue's recordings have the admission gate and no annotation of ours for it: put it as the adapter would."""
    tags = shown.object["metadata"].setdefault("annotations", {})
    if kinds.GATE not in tags:
        gated = kinds.KUEUE_GATE in tags.get(kinds.GATED_BY, "")
        tags[kinds.GATE] = kinds.CLOSED if gated else kinds.OPEN
    return shown


def with_progress(shown: Shown) -> Shown:
    shown.object["metadata"]["annotations"][kinds.PROGRESS] = kinds.OUTPUT
    return shown


def with_status(shown: Shown, **counts: int) -> Shown:
    shown.object["status"].update(counts)
    return shown


@pytest.mark.parametrize(
    ("shown", "rests"),
    [
        (job("life-05-complete-job-running"), True),
        (job("life-07-complete-job-complete", "life-08-complete-pods-succeeded"), True),
        (job("life-02-complete-job-opened", "life-06-complete-pods-running"), False),
        (job("life-54-suspend-job-terminating", "life-55-suspend-pods-terminating"), False),
        (with_status(job("life-05-complete-job-running"), active=2), False),
        (with_status(job("life-05-complete-job-running"), terminating=1), False),
        (with_progress(job("life-05-complete-job-running")), False),
        (job("life-05-complete-job-running", workload="kueue-12-gated-workload"), False),
        (job("life-05-complete-job-running", sort=JOBSET), False),
    ],
)
def test_what_rests_tells_of_any_change_itself(shown: Shown, rests: bool) -> None:
    shown = opened(shown)
    assert is_at_rest(shown, sighting(shown)) is rests


@pytest.mark.promise("G1")
def test_a_foreign_release_is_not_shown_gated() -> None:
    shown = Shown(JOB, one("life-05-complete-job-running"))
    shown.object["metadata"]["annotations"][kinds.GATE] = kinds.CLOSED
    assert sighting(shown).state is State.RUNNING


@pytest.mark.parametrize(
    ("shown", "cause", "exit_code"),
    [
        (job("life-07-complete-job-complete", "life-08-complete-pods-succeeded"), Cause.COMPLETED, 0),
        (job("life-14-failed-job", "life-15-failed-pods"), Cause.EXIT, 3),
        (job("life-26-oomkilled-job", "life-25-oomkilled-pods"), Cause.OUT_OF_MEMORY, 137),
        (job("life-32-evicted-job", "life-31-evicted-pods"), Cause.PREEMPTED, None),
        (job("life-51-deadline-job-failed"), Cause.TIME_LIMIT, None),
        (job("life-40-podfailurepolicy-failjob-job", "life-41-podfailurepolicy-failjob-pods"), Cause.EXIT, 42),
        (job("life-46-backoff-job-failed", "life-47-backoff-pods"), Cause.EXIT, None),
        (job("life-63-pod-deleted-job", "life-64-pod-deleted-pods"), Cause.UNRECOGNIZED, None),
    ],
)
def test_an_end_is_told_with_its_cause(shown: Shown, cause: Cause, exit_code: int | None) -> None:
    end = sighting(shown).end
    assert end is not None
    assert end.cause is cause
    assert exit_code is None or end.exit_code == exit_code


@pytest.mark.parametrize(
    ("pods", "cause"),
    [
        ("life-35-eviction-api-pods", Cause.PREEMPTED),
        ("life-37-disruption-preemptionbyscheduler-pods", Cause.PREEMPTED),
        ("life-38-disruption-deletionbytaintmanager-pods", Cause.NODE_FAILURE),
        ("life-39-disruption-deletionbypodgc-pods", Cause.NODE_FAILURE),
    ],
)
def test_a_disruption_is_no_failure(pods: str, cause: Cause) -> None:
    end = end_by_pods(items(pods), None)
    assert end is not None
    assert end.cause is cause


def test_a_lost_node_is_told_only_where_the_node_has_not() -> None:
    pods = items("life-39-disruption-deletionbypodgc-pods")
    end = end_by_pods(pods, None)
    assert end is not None
    reported = all("terminated" in row["state"] for row in pods[0]["status"].get("containerStatuses", [{"state": {}}]))
    assert (end.lost_since is None) is reported


def pod(name: str, *containers: tuple[str, str, int, str]) -> dict[str, Any]:
    """A pod whose containers ended: name, reason, exit code, when."""
    rows = [
        {"name": each, "state": {"terminated": {"reason": reason, "exitCode": code, "finishedAt": at}}}
        for each, reason, code, at in containers
    ]
    return {"metadata": {"name": name}, "status": {"phase": "Failed", "containerStatuses": rows}}


@pytest.mark.case("T39")
def test_exit_137_alone_is_a_signal_and_not_out_of_memory() -> None:
    end = end_by_pods([pod("a", ("main", "Error", 137, "2026-11-29T10:00:00Z"))], None)
    assert end is not None
    assert (end.cause, end.signal, end.exit_code) == (Cause.SIGNAL, 9, 137)


@pytest.mark.case("T39")
def test_out_of_memory_with_exit_0_is_out_of_memory() -> None:
    end = end_by_pods([pod("a", ("main", "OOMKilled", 0, "2026-11-29T10:00:00Z"))], None)
    assert end is not None
    assert end.cause is Cause.OUT_OF_MEMORY


@pytest.mark.case("T39")
def test_one_rank_of_many_tells_for_all() -> None:
    others = [pod(f"rank-{rank}", ("main", "Error", 1, "2026-11-29T10:00:00Z")) for rank in range(7)]
    end = end_by_pods([*others, pod("rank-7", ("main", "OOMKilled", 137, "2026-11-29T10:00:09Z"))], 3.0)
    assert end is not None
    assert (end.cause, end.seconds) == (Cause.OUT_OF_MEMORY, 3.0)
    assert "rank-7" in end.message


def test_what_keeps_a_pod_from_starting_is_told_apart() -> None:
    assert waits_for(items("life-27-errimagepull-pods")).startswith("ErrImagePull")
    assert waits_for(items("life-28-imagepullbackoff-pods")).startswith("ImagePullBackOff")
    assert waits_for(items("life-30-unschedulable-pods")).startswith("Unschedulable")
    assert waits_for(items("life-06-complete-pods-running")) == ""


@pytest.mark.case("T30")
def test_an_ended_job_with_a_pod_alive_is_still_ending() -> None:
    pods = items("life-19-failuretarget-pods")
    assert sighting(Shown(JOB, one("life-20-failuretarget-job-failed"), pods)).state is State.ENDING
    assert sighting(job("basic-86-foreground-get-deleting")).state is State.ENDING


# --- Kueue


@pytest.mark.parametrize(
    ("workload", "run", "earlier"),
    [
        ("kueue-12-gated-workload", 1, []),
        ("kueue-31-hold-gated-workload", 1, []),
        ("kueue-43-released-again-workload", 1, []),
        ("kueue-53-preemption-victim-evicting", 1, []),
        ("kueue-55-preemption-victim-evicted", 2, [Cause.PREEMPTED]),
        ("kueue-58-preemption-victim-readmitted", 2, [Cause.PREEMPTED]),
        ("kueue-60-preemption-victim-finished", 2, [Cause.PREEMPTED]),
    ],
)
def test_runs_are_counted_by_evictions(workload: str, run: int, earlier: list[Cause]) -> None:
    shown = Shown(JOB, one("kueue-56-preemption-victim-job"), None, one(workload))
    assert run_of(shown) == run
    assert [end.cause for _, end in sighting(shown).earlier_ends] == earlier


def test_a_preemption_under_way_is_told() -> None:
    shown = opened(job("kueue-56-preemption-victim-job", workload="kueue-53-preemption-victim-evicting"))
    end = sighting(shown).end
    assert end is not None
    assert end.cause is Cause.PREEMPTED


@pytest.mark.promise("G2")
def test_gate_and_hold_are_two_bits_under_kueue() -> None:
    gated = opened(job("kueue-13-gated-job", workload="kueue-31-hold-gated-workload"))
    assert (sighting(gated).state, sighting(gated).hold) == (State.GATED, True)
    opened_since = opened(job("kueue-34-hold-opened-job", workload="kueue-33-hold-opened-workload"))
    assert (sighting(opened_since).state, sighting(opened_since).hold) == (State.HELD, True)


# --- whole lives, as watches showed them

LIVES = [
    "life-11-complete-watch-job",
    "life-16-failed-watch-job",
    "life-21-failuretarget-watch-job",
    "life-24-successcriteria-watch-job",
    "life-52-deadline-watch-job",
]
ORDER = [State.GATED, State.PENDING, State.RUNNING, State.ENDING, State.ENDED]


@pytest.mark.parametrize("life", LIVES)
def test_a_life_never_moves_back(life: str) -> None:
    states = [
        sighting(Shown(JOB, event["object"])).state for event in events(life) if event["type"] in ("ADDED", "MODIFIED")
    ]
    assert states[-1] is State.ENDED
    assert [ORDER.index(state) for state in states] == sorted(ORDER.index(state) for state in states)


# --- kinds of which nothing was recorded: their objects are written after their published schemas


def written(sort: Sort, status: dict[str, Any], *, suspended: bool = False, gate: str = kinds.OPEN) -> Shown:
    spec = {"suspend": suspended} if sort is not PYTORCHJOB else {"runPolicy": {"suspend": suspended}}
    tags = {kinds.GATE: gate, kinds.HOLD: kinds.NO_HOLD, kinds.STOPPED: kinds.NO, kinds.FENCE: "1"}
    metadata = {"name": "dispatch-0f3a9c21b7d4e865-1-1", "uid": "u", "annotations": tags}
    return Shown(sort, {"metadata": metadata, "spec": spec, "status": status})


def row(name: str, reason: str = "") -> dict[str, Any]:
    return {"type": name, "status": "True", "reason": reason}


@pytest.mark.parametrize(
    ("shown", "state", "cause"),
    [
        (written(JOBSET, {}, suspended=True, gate=kinds.CLOSED), State.GATED, None),
        (written(JOBSET, {"replicatedJobsStatus": [{"ready": 0, "active": 1}]}), State.PENDING, None),
        (written(JOBSET, {"replicatedJobsStatus": [{"ready": 1, "active": 1}]}), State.RUNNING, None),
        (written(JOBSET, {"conditions": [row("Completed", "AllJobsCompleted")]}), State.ENDED, Cause.COMPLETED),
        (written(JOBSET, {"conditions": [row("Failed", "FailedJobs")]}), State.ENDED, Cause.UNRECOGNIZED),
        (written(TRAINJOB, {"conditions": [row("Complete")]}), State.ENDED, Cause.COMPLETED),
        (
            written(TRAINJOB, {"conditions": [row("Failed", "TrainingRuntimeNotSupported")]}),
            State.ENDED,
            Cause.CANNOT_START,
        ),
        (written(TRAINJOB, {"conditions": [row("Failed", "DeadlineExceeded")]}), State.ENDED, Cause.TIME_LIMIT),
        (written(PYTORCHJOB, {"conditions": [row("Created")]}, suspended=True, gate=kinds.CLOSED), State.GATED, None),
        (written(PYTORCHJOB, {"conditions": [row("Running")]}), State.RUNNING, None),
        (written(PYTORCHJOB, {"conditions": [row("Succeeded")]}), State.ENDED, Cause.COMPLETED),
    ],
)
def test_other_kinds_are_read(shown: Shown, state: State, cause: Cause | None) -> None:
    seen = sighting(shown)
    assert seen.state is state
    assert (seen.end.cause if seen.end else None) is cause


def test_a_suspended_trainjob_is_not_ended_while_its_jobs_are_active() -> None:
    status = {"conditions": [row("Suspended")], "jobsStatus": [{"active": 1}]}
    shown = written(TRAINJOB, status, suspended=True)
    shown.object["metadata"]["annotations"][kinds.STOPPED] = kinds.YES
    assert sighting(shown).state is State.ENDING
    status["jobsStatus"] = [{"active": 0}]
    assert sighting(shown).state is State.ENDED


def test_reading_is_total() -> None:
    for object in (
        {},
        {"metadata": None},
        {"metadata": {"annotations": None}, "spec": 3, "status": {"conditions": []}},
    ):
        assert sighting(Shown(JOB, object)).id == ""


def places(told: object, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document, but the root."""
    if at:
        yield at
    rows = told.items() if isinstance(told, dict) else enumerate(told if isinstance(told, list) else ())
    for name, value in rows:
        if name != "managedFields":
            yield from places(value, (*at, name))


def spoilt(told: Any, at: tuple[Any, ...], value: object) -> Any:
    if not at:
        return value
    after = copy.copy(told)
    after[at[0]] = spoilt(told[at[0]], at[1:], value)
    return after


@pytest.mark.parametrize("sort", [JOB, PYTORCHJOB], ids=["Job", "PyTorchJob"])
def test_nothing_that_is_odd_in_one_object_keeps_a_listing_from_all(sort: Sort) -> None:
    shown = opened(
        job("life-05-complete-job-running", "life-25-oomkilled-pods", "kueue-38-hold-running-workload-evicting")
    )
    object, (pod,), workload = dict(shown.object), shown.pods or (), shown.workload
    object["metadata"]["labels"][kinds.QUEUE_NAME] = "team"
    children = {"replicatedJobsStatus": [{"ready": 1}], "replicaStatuses": {"Master": {"active": 1}}}
    object["status"] = {**object["status"], **children}
    parts = {"object": object, "pod": pod, "workload": workload}
    for name, told in parts.items():
        for at in places(told):
            for value in (None, "text", 3, [None], {"a": None}):
                now = parts | {name: spoilt(told, at, value)}
                seen = Shown(sort, now["object"], [now["pod"]], now["workload"])
                assert sighting(seen).state in State
                assert needs_pods(seen) in (True, False)
                assert isinstance(waits_for(seen.pods or ()), str)


def test_an_old_server_that_tells_of_no_terminating_pods_is_asked_for_them() -> None:
    shown = job("life-56-suspend-job")
    shown.object["metadata"]["annotations"][kinds.STOPPED] = kinds.YES
    assert not needs_pods(shown)
    del shown.object["status"]["terminating"]
    assert needs_pods(shown)
    pods = items("life-55-suspend-pods-terminating")
    assert sighting(shown._replace(pods=pods)).state is State.ENDING
    assert sighting(shown._replace(pods=())).state is State.ENDED
