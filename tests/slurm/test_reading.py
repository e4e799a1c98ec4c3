"""What Slurm prints is read as what it means: captured from a real 22.05, and rows of newer Slurms made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.adapters.slurm import accounts as accounting
from dispatch_core.adapters.slurm import reading
from dispatch_core.adapters.slurm.guard import Object
from dispatch_core.evidence import Sighting
from dispatch_core.names import object_name, read_name
from dispatch_core.plan import Cause, End
from dispatch_core.record import State

CAPTURES = Path(__file__).parents[1] / "captures" / "slurm"

CAPTURED = 1795995724.8
"""The host's time when the JSON was captured."""

SHOWN: dict[str, tuple[State, int, bool]] = {
    "gated000": (State.GATED, 1, False),
    "gatedheld": (State.GATED, 1, True),
    "held0000": (State.HELD, 1, True),
    "running0": (State.RUNNING, 1, False),
    "completing": (State.ENDING, 1, False),
    "rerunning": (State.ENDING, 1, False),
    "requeued": (State.GATED, 2, False),
    "completed": (State.ENDED, 1, False),
    "pending0": (State.ENDED, 1, False),
    "exit0003": (State.ENDED, 1, False),
    "exit0137": (State.ENDED, 1, False),
    "signal09": (State.ENDED, 1, False),
    "nostart0": (State.ENDED, 1, False),
    "cancelled": (State.ENDED, 1, False),
}
"""State, run and hold of each captured job; `completing` was cancelled, `rerunning` requeued while it ran, and both are
on their first run still, though the queue counts the second one's requeue at once."""

ENDS: dict[str, tuple[Cause, int | None, int | None]] = {
    "completed": (Cause.COMPLETED, 0, None),
    "pending0": (Cause.COMPLETED, 0, None),
    "exit0003": (Cause.EXIT, 3, None),
    "exit0137": (Cause.EXIT, 137, None),
    "signal09": (Cause.SIGNAL, None, 9),
    "nostart0": (Cause.CANNOT_START, None, None),
    "cancelled": (Cause.STOPPED_OUTSIDE, None, None),
}


def captured(name: str) -> str:
    return (CAPTURES / name).read_text()


def by_uid(rows: list[reading.Row]) -> dict[str, Sighting]:
    shown = [reading.sighting(row) for row in rows]
    return {tags.uid: sighting for sighting in shown if (tags := read_name(sighting.name)) is not None}


def told(end: End | None) -> tuple[Cause, int | None, int | None] | None:
    return None if end is None else (end.cause, end.exit_code, end.signal)


@pytest.mark.parametrize("form", ["squeue.txt", "squeue.json"])
def test_the_queue(form: str) -> None:
    text = captured(f"22.05/{form}")
    rows = reading.queue_of_json(text.encode(), CAPTURED) if form.endswith("json") else reading.queue(text)
    shown = by_uid(rows)
    assert {uid: (row.state, row.run, row.hold) for uid, row in shown.items()} == SHOWN
    assert {uid: told(row.end) for uid, row in shown.items() if row.end is not None} == ENDS
    assert all(row.key == f"job of {uid}" for uid, row in shown.items())
    nodes = {uid: row.nodes for uid, row in shown.items()}
    assert nodes["pending0"] == ("n1", "n2")
    assert nodes["gated000"] == nodes["requeued"] == ()


def test_a_stranger_with_our_comment_keeps_its_key() -> None:
    (row,) = [row for row in reading.queue(captured("22.05/squeue.txt")) if read_name(row.object.name) is None]
    assert (row.object.name, row.key) == ("a|b, not ours", "job of strange0")


@pytest.mark.parametrize("cut", [2, 30, 90, 200])
def test_a_queue_that_was_cut_off_shows_only_whole_rows(cut: int) -> None:
    whole, text = reading.queue(captured("22.05/squeue.txt")), captured("22.05/squeue.txt")
    assert reading.queue(text[:-cut]) == whole[: len(reading.queue(text[:-cut]))]
    assert len(reading.queue(text[:-cut])) < len(whole)


@pytest.mark.case("T28")
@pytest.mark.parametrize("word", ["HIBERNATING", "", "failed?"])
def test_a_state_that_is_not_known(word: str) -> None:
    text = captured("22.05/squeue.txt").replace(
        f"{reading.GAP}COMPLETED{reading.GAP}", f"{reading.GAP}{word}{reading.GAP}"
    )
    shown = by_uid(reading.queue(text))["completed"]
    assert (shown.state, shown.end) == (State.UNRECOGNIZED, None)


# --- accounting


@pytest.mark.case("T26")
def test_accounting() -> None:
    accounts = {object.name: account for object, account in accounting.accounts(captured("22.05/sacct.txt")).items()}
    ends = {uid: told(accounts[object_name(uid, 1, 1)].ends[-1]) for uid in ("completed", "exit0003", "signal09")}
    assert ends == {uid: ENDS[uid] for uid in ends}
    assert told(accounts[object_name("nostart0", 1, 1)].ends[-1]) == ENDS["nostart0"]
    assert told(accounts[object_name("cancelled", 1, 1)].ends[-1]) == ENDS["cancelled"]
    assert accounts[object_name("pending0", 1, 1)].nodes == (("n1", "n2"),)


def test_accounting_of_a_requeued_run() -> None:
    """What was requeued lives; how its run ended is known by its exit code only."""
    accounts = {object.name: account for object, account in accounting.accounts(captured("22.05/sacct.txt")).items()}
    again, rerun = accounts[object_name("requeued", 1, 1)], accounts[object_name("rerunning", 1, 1)]
    assert again.alive
    assert rerun.alive
    assert again.sighting(Object("12", object_name("requeued", 1, 1)), frozenset()) is None
    assert [told(end) for end in again.ends] == [(Cause.EXIT, 4, None)]
    assert rerun.ends == (None,)


@pytest.mark.case("T39")
def test_accounting_takes_128_from_an_exit_code() -> None:
    """sacct of 22.05 prints 9 for 137: of a job that left the queue unseen, nobody can tell which it was."""
    accounts = {object.name: account for object, account in accounting.accounts(captured("22.05/sacct.txt")).items()}
    assert told(accounts[object_name("exit0137", 1, 1)].ends[-1]) == (Cause.EXIT, 9, None)


@pytest.mark.case("T26")
def test_half_a_row_of_accounting_is_nobodys() -> None:
    """Its first seconds show another name (seen on 22.05); a job of that number and our name is not found in it."""
    mine = Object("5", object_name("completed", 1, 1))
    text = captured("22.05/sacct.txt").replace(mine.name, "allocation")
    assert mine not in accounting.accounts(text)
    assert accounting.accounts(text[:7]) == {}


# --- newer Slurms: by hand, after the schema that their slurmrestd documents, since none runs here


def number(value: int, *, set_: bool = True, infinite: bool = False) -> dict[str, object]:
    return {"set": set_, "infinite": infinite, "number": value}


def newer(states: list[str], **more: Any) -> dict[str, Any]:
    """One job of `squeue --json` as 23.11 and newer write it."""
    code, signal = more.pop("code", 0), more.pop("signal", 0)
    return {
        "job_id": 42,
        "name": object_name("newer000", 1, 1),
        "comment": "dispatch:a key",
        "job_state": states,
        "state_reason": "None",
        "priority": number(1),
        "restart_cnt": 0,
        "eligible_time": number(1795993816),
        "start_time": number(1795993816),
        "end_time": number(1795993820),
        "exit_code": {
            "status": ["ERROR" if code or signal else "SUCCESS"],
            "return_code": number(code),
            "signal": {"id": number(signal, set_=bool(signal)), "name": "KILL" if signal == 9 else ""},
        },
        "nodes": "n1",
    } | more


def read_newer(job: dict[str, Any]) -> Sighting:
    (row,) = reading.queue_of_json(json.dumps({"jobs": [job], "errors": [], "warnings": []}).encode(), CAPTURED)
    return reading.sighting(row)


@pytest.mark.parametrize(
    ("states", "more", "state", "end"),
    [
        (["PENDING"], {"priority": number(0), "start_time": number(0)}, State.GATED, None),
        (["PENDING"], {"priority": number(0, set_=False)}, State.GATED, None),
        (["PENDING"], {}, State.PENDING, None),
        (["PENDING"], {"eligible_time": number(2145916800)}, State.HELD, None),
        (["PENDING", "SPECIAL_EXIT"], {"priority": number(0)}, State.GATED, None),
        (["RUNNING"], {"end_time": number(0, infinite=True)}, State.RUNNING, None),
        (["RUNNING", "COMPLETING"], {}, State.ENDING, None),
        (["FAILED", "COMPLETING"], {"code": 3}, State.ENDING, (Cause.EXIT, 3, None)),
        (["COMPLETED"], {}, State.ENDED, (Cause.COMPLETED, 0, None)),
        (["FAILED"], {"code": 137}, State.ENDED, (Cause.EXIT, 137, None)),
        (["FAILED"], {"signal": 9}, State.ENDED, (Cause.SIGNAL, None, 9)),
        (["OUT_OF_MEMORY"], {"code": 0}, State.ENDED, (Cause.OUT_OF_MEMORY, 0, None)),
        (["OUT_OF_MEMORY"], {"signal": 125}, State.ENDED, (Cause.OUT_OF_MEMORY, None, None)),
        (["TIMEOUT"], {}, State.ENDED, (Cause.TIME_LIMIT, None, None)),
        (["NODE_FAIL"], {}, State.ENDED, (Cause.NODE_FAILURE, None, None)),
        (["PREEMPTED"], {"signal": 15}, State.ENDED, (Cause.PREEMPTED, None, None)),
        (["DEADLINE"], {}, State.ENDED, (Cause.DEADLINE, None, None)),
        (["HIBERNATING"], {}, State.UNRECOGNIZED, None),
        ([], {}, State.UNRECOGNIZED, None),
    ],
)
@pytest.mark.case("T39")
def test_a_newer_row(
    states: list[str], more: dict[str, Any], state: State, end: tuple[Cause, int | None, int | None]
) -> None:
    shown = read_newer(newer(states, **more))
    assert (shown.state, told(shown.end)) == (state, end)
    assert (shown.id, shown.key) == (f"42:{object_name('newer000', 1, 1)}", "a key")


def as_text(**told: str) -> reading.Row:
    """One job of `squeue -O`, by hand."""
    usual = {
        "JobID": "7",
        "PriorityLong": "1",
        "RestartCnt": "0",
        "EligibleTime": "2026-11-29T23:10:16",
        "Reason": "None",
    }
    usual |= {"TimeUsed": "0:00", "exit_code": "0", "NodeList": "n1", "Comment": "dispatch:k"}
    usual |= {
        "StartTime": "2026-11-29T23:10:16",
        "EndTime": "2026-11-29T23:10:16",
        "Name": object_name("byhand00", 1, 1),
    }
    (row,) = reading.queue("".join(f"{(usual | told)[field]}{reading.GAP}" for field in reading.FIELDS) + "\n")
    return row


@pytest.mark.case("T39")
@pytest.mark.parametrize(("raw", "code"), [(0, 0), (137 << 8, 137), (125, None)])
def test_out_of_memory_as_text(raw: int, code: int | None) -> None:
    """By hand: the cause is the state's own word, whatever the exit code says."""
    row = as_text(State="OUT_OF_MEMORY", exit_code=str(raw), Reason="OutOfMemory")
    assert told(reading.sighting(row).end) == (Cause.OUT_OF_MEMORY, code, None)


@pytest.mark.parametrize(
    ("restarts", "used", "end", "run"),
    [
        ("0", "0:00", "2026-11-29T23:10:16", 1),
        ("1", "0:00", "2026-11-29T23:10:16", 2),
        ("1", "0:07", "2026-11-29T23:10:23", 2),
        ("1", "0:00", "2026-11-30T23:10:16", 1),
        ("1", "0:00", "Unknown", 1),
        ("2", "0:00", "2163-01-05T00:30:58", 2),
    ],
)
def test_which_run_is_completing(restarts: str, used: str, end: str, run: int) -> None:
    """A requeue counts up at once, and plans the next run's end; one of no second ended where it began."""
    row = as_text(State="COMPLETING", RestartCnt=restarts, TimeUsed=used, EndTime=end)
    assert (reading.sighting(row).state, reading.sighting(row).run) == (State.ENDING, run)


@pytest.mark.parametrize("text", ['{"jobs": null}', '{"jobs": [null, 3, {"job_id": "x"}]}', "[]", '{"errors": []}'])
def test_json_without_jobs_of_ours(text: str) -> None:
    assert reading.queue_of_json(text.encode(), CAPTURED) == []


# --- configuration, lists and times


def test_configuration() -> None:
    told = reading.configuration(captured("22.05/config.txt"))
    assert (told.cluster, told.release, told.accounting) == ("test", "22.05.8", True)
    assert (told.message_timeout, told.credential) == (2.0, 20.0)
    without = reading.configuration(captured("22.05/config.txt").replace("_storage/slurmdbd", "_storage/none"))
    assert not without.accounting
    assert reading.configuration("") == reading.Configuration()


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("", ()),
        ("(null)", ()),
        ("None assigned", ()),
        ("gpu1,n[1-2]", ("gpu1", "n1", "n2")),
        ("r[1-2]c[08-09]", ("r1c08", "r1c09", "r2c08", "r2c09")),
        ("n[a-b]", ("n[a-b]",)),
    ],
)
def test_nodes(text: str, nodes: tuple[str, ...]) -> None:
    assert reading.nodes_of(text) == nodes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0:07", 7.0), ("1:02:03", 3723.0), ("1-00:00:00", 86400.0), ("INVALID", None), ("", None), ("UNLIMITED", None)],
)
def test_times(text: str, seconds: float | None) -> None:
    assert reading.seconds_of(text) == seconds
