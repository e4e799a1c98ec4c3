"""What Slurm says of its jobs, read into sightings: the queue as text and as JSON, accounting, configuration.

One rule: reading is total. A row that is not understood is nobody's, a state that is not known is `unrecognized`, and
neither ever becomes an end. Pure: it is fed by tests with what real releases printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from dispatch_core.adapters.slurm.guard import ENDED, KEY_TAG, Object, key_of
from dispatch_core.evidence import Sighting
from dispatch_core.names import read_name
from dispatch_core.plan import Cause, End
from dispatch_core.record import State

GAP = "\x1f"
"""Between two fields: no name or comment that was printable holds it."""

FIELDS = (
    *("JobID", "State", "PriorityLong", "RestartCnt", "EligibleTime", "TimeUsed", "exit_code", "Reason", "NodeList"),
    *("StartTime", "EndTime", "Comment", "Name"),
)
QUEUE_FORMAT = ",".join(f"{field}:{GAP}" for field in FIELDS)

FAR = "2037-12-30"
"""An eligible time from here on is the hold bit, whatever the time zone."""

ALIVE = {
    **dict.fromkeys(("RUNNING", "SUSPENDED", "STOPPED", "CONFIGURING", "RESIZING", "SIGNALING"), State.RUNNING),
    **dict.fromkeys(("COMPLETING", "STAGE_OUT"), State.ENDING),
    **dict.fromkeys(("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD"), State.PENDING),
    "SPECIAL_EXIT": State.PENDING,
}

CAUSES = {
    "COMPLETED": Cause.COMPLETED,
    "CANCELLED": Cause.STOPPED_OUTSIDE,
    "TIMEOUT": Cause.TIME_LIMIT,
    "DEADLINE": Cause.DEADLINE,
    "NODE_FAIL": Cause.NODE_FAILURE,
    "BOOT_FAIL": Cause.NODE_FAILURE,
    "PREEMPTED": Cause.PREEMPTED,
    "OUT_OF_MEMORY": Cause.OUT_OF_MEMORY,
    "LAUNCH_FAILED": Cause.CANNOT_START,
    "RECONFIG_FAIL": Cause.CANNOT_START,
}

LAUNCH_FAILURE = 53
"""The signal that Slurm reports for a batch script which it could not start, its output path for instance."""


class Row(NamedTuple):
    """One job as Slurm shows it, whatever it was asked in."""

    object: Object
    states: tuple[str, ...]
    """The state, and in newer releases what is true beside it."""
    priority: int
    restarts: int
    eligible: str
    """ISO 8601; "" or N/A where it has none."""
    ran: float | None
    """Seconds of the run so far."""
    raw: int
    """The exit code times 256, and the signal."""
    reason: str
    nodes: str
    ended: datetime | None
    """When the run ended, by the host's clock."""
    key: str
    requeued: bool
    """It counts as its next run already, and has not begun it: what may still be completing is the run before."""


# --- the queue


def queue(text: str) -> list[Row]:
    """The rows of `squeue -O` that may be ours: by their name, or by the key in their comment."""
    found = []
    for line in text.split("\n"):
        parts = line.split(GAP, len(FIELDS) - 1)
        if len(parts) == len(FIELDS) and parts[-1].endswith(GAP):
            row = _queue_row(dict(zip(FIELDS, parts, strict=True)))
            if row is not None:
                found.append(row)
    return found


def _queue_row(told: Mapping[str, str]) -> Row | None:
    name, comment = told["Name"][: -len(GAP)], told["Comment"]
    ours = read_name(name) is not None or comment.startswith(KEY_TAG)
    numbers = told["JobID"], told["PriorityLong"], told["RestartCnt"], told["exit_code"]
    if not ours or not all(number.isdecimal() for number in numbers):
        return None
    return Row(
        object=Object(told["JobID"], name),
        states=states_of(told["State"]),
        priority=int(told["PriorityLong"]),
        restarts=int(told["RestartCnt"]),
        eligible=told["EligibleTime"],
        ran=seconds_of(told["TimeUsed"]),
        raw=int(told["exit_code"]),
        reason=told["Reason"],
        nodes=told["NodeList"],
        ended=time_of(told["EndTime"]),
        key=key_of(comment),
        requeued=_is_requeued(told),
    )


def _is_requeued(told: Mapping[str, str]) -> bool:
    """A requeue counts up at once, and sets the times that the next run would have; those of a run that took no second
    lie closer together."""
    if told["RestartCnt"] == "0" or seconds_of(told["TimeUsed"]):
        return False
    start, end = time_of(told["StartTime"]), time_of(told["EndTime"])
    return start is None or end is None or (end - start).total_seconds() >= SHORTEST_LIMIT_SECONDS


SHORTEST_LIMIT_SECONDS = 60
"""Slurm counts time limits in minutes."""


def time_of(text: str) -> datetime | None:
    """`2026-01-31T18:00:00` as Slurm's commands print it under TZ=UTC0; None where it is no time."""
    if re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", text) is None:
        return None
    return datetime.fromisoformat(f"{text}+00:00")


def states_of(told: object) -> tuple[str, ...]:
    """State words, from `CANCELLED by 1000`, from `RUNNING+COMPLETING`, and from the list that newer JSON has."""
    words = told if isinstance(told, list) else re.split(r"[+,]", str(told))
    return tuple(str(word).split(" ")[0].upper() for word in words if str(word))


def seconds_of(text: str) -> float | None:
    """`1-02:03:04` in seconds; None where it is no time."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d\d)", text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


# --- the queue as JSON, with a state beside what is true of it


def queue_of_json(text: bytes, now: float) -> list[Row]:
    """The rows of `squeue --json` that may be ours, of 22.05 and of newer releases. Raises msgspec.DecodeError.

    `now`: the host's time, in seconds; an end that lies after it is only planned.
    """
    told = msgspec.json.decode(text)
    jobs = told.get("jobs") if isinstance(told, dict) else None
    return [row for job in jobs or () if isinstance(job, dict) and (row := _json_row(job, now)) is not None]


def _json_row(job: Mapping[str, Any], now: float) -> Row | None:
    name, comment = str(job.get("name", "")), str(job.get("comment", "") or "")
    number = str(job.get("job_id", ""))
    if not number.isdecimal() or (read_name(name) is None and not comment.startswith(KEY_TAG)):
        return None
    start, end = _number(job.get("start_time")), _number(job.get("end_time"))
    eligible = _number(job.get("eligible_time"))
    return Row(
        object=Object(number, name),
        states=states_of(job.get("job_state", "")),
        priority=_number(job.get("priority")),
        restarts=_number(job.get("restart_cnt")),
        eligible=datetime.fromtimestamp(eligible, UTC).isoformat() if eligible else "",
        ran=float(end - start) if 0 < start <= end <= now else None,
        raw=_raw(job.get("exit_code")),
        reason=str(job.get("state_reason", "")),
        nodes=str(job.get("nodes", "")),
        ended=datetime.fromtimestamp(end, UTC) if 0 < end <= now else None,
        key=key_of(comment),
        requeued=_number(job.get("restart_cnt")) > 0 and not 0 < start <= end <= now,
    )


def _number(told: Any) -> int:
    """A number, plain or as newer releases wrap it: {"set": true, "infinite": false, "number": 3}."""
    if isinstance(told, dict):
        told = told.get("number", 0) if told.get("set", True) and not told.get("infinite") else 0
    return told if isinstance(told, int) else 0


def _raw(told: Any) -> int:
    if isinstance(told, dict) and "return_code" in told:
        signal = told.get("signal") or {}
        return _number(told["return_code"]) * 256 + _number(signal.get("id", signal.get("signal_id", 0)))
    return _number(told)


# --- sightings


def sighting(row: Row, silent: frozenset[str] = frozenset()) -> Sighting:
    """What a row says of an object; `silent`: the nodes that do not answer."""
    state, run = _state(row), row.restarts + 1
    if state is State.ENDING and row.requeued:
        run -= 1
    pending = state is State.PENDING
    hold = row.eligible[: len(FAR)] >= FAR and row.eligible[:1].isdecimal()
    if pending and row.priority == 0:
        state = State.GATED
    elif pending and hold:
        state = State.HELD
    return Sighting(
        id=row.object.id,
        name=row.object.name,
        key=row.key,
        state=state,
        run=run,
        hold=hold and pending,
        nodes=() if pending else nodes_of(row.nodes),
        end=_end(row, silent)
        if state is State.ENDED or (state is State.ENDING and _ended_word(row) is not None)
        else None,
    )


def _state(row: Row) -> State:
    for word in row.states:
        if ALIVE.get(word) is State.ENDING:
            return State.ENDING
    known = [State.ENDED if word in ENDED else ALIVE.get(word) for word in row.states]
    return next((state for state in known if state is not None), State.UNRECOGNIZED)


def _ended_word(row: Row) -> str | None:
    return next((word for word in row.states if word in ENDED), None)


def _end(row: Row, silent: frozenset[str]) -> End:
    lost = row.ended if not silent.isdisjoint(nodes_of(row.nodes)) else None
    return end_of(_ended_word(row) or "", row.raw, row.reason, row.ran, lost)


def end_of(state: str, raw: int, reason: str, ran: float | None, lost_since: datetime | None = None) -> End:
    """How a run ended: state, exit code and signal in one number, reason, seconds, and since when it is lost."""
    code, signal = raw >> 8, raw & 127
    cause = CAUSES.get(state, Cause.UNRECOGNIZED)
    if state == "FAILED":
        cause = Cause.EXIT if signal == 0 else Cause.SIGNAL
        if signal == LAUNCH_FAILURE or (raw == 0 and reason == "JobLaunchFailure"):
            cause = Cause.CANNOT_START
    # A held job's reason says nothing of its end: the gate was shut behind the run.
    told = "" if reason in ("None", "(null)") or reason.startswith("JobHeld") else reason
    return End(
        cause=cause,
        exit_code=code if signal == 0 and cause in (Cause.COMPLETED, Cause.EXIT, Cause.OUT_OF_MEMORY) else None,
        signal=signal if cause is Cause.SIGNAL else None,
        message=f"Slurm: {state}{f' ({told})' if told else ''}",
        seconds=ran,
        lost_since=lost_since if cause is Cause.NODE_FAILURE else None,
    )


def silent_nodes(text: str) -> frozenset[str]:
    """The nodes that do not answer, in what `sinfo -h -N -o '%N|%T'` printed: a star after the state says so, and one
    that is down may be silent as well."""
    rows = (line.split("|", 1) for line in text.split("\n") if "|" in line)
    return frozenset(node for node, state in rows if state.endswith("*") or state.startswith(SILENT))


SILENT = ("down", "unknown", "fail", "power", "reboot")


def nodes_of(text: str) -> tuple[str, ...]:
    """The nodes in a list as Slurm writes it.

    >>> nodes_of("n[1-3,07-09],gpu1")
    ('gpu1', 'n07', 'n08', 'n09', 'n1', 'n2', 'n3')
    """
    return tuple(sorted({node for part in _parts(text) for node in _spread(part)}))[:LARGEST_NODES]


LARGEST_NODES = 1024


def _parts(text: str) -> Iterator[str]:
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        if part not in ("(null)", "None assigned", "N/A"):
            yield part


def _spread(part: str) -> Iterator[str]:
    found = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", part)
    if found is None:
        yield part
        return
    head, ranges, tail = found.groups()
    for one in ranges.split(","):
        low, _, high = one.partition("-")
        if not low.isdecimal() or (high and not high.isdecimal()) or int(high or low) - int(low) > LARGEST_NODES:
            yield f"{head}[{one}]{tail}"
            continue
        for number in range(int(low), int(high or low) + 1):
            yield from _spread(f"{head}{number:0{len(low)}}{tail}")


# --- configuration


class Configuration(NamedTuple):
    """What the cluster is set up with."""

    cluster: str = ""
    release: str = ""
    """Of Slurm, as `22.05.8`."""
    message_timeout: float | None = None
    credential: float | None = None
    """How long munge's credentials are good for, where slurm.conf says it."""
    accounting: bool = False
    told: Mapping[str, str] = {}


def configuration(text: str) -> Configuration:
    """What `scontrol show config` printed."""
    told = {}
    for line in text.split("\n"):
        name, equals, value = line.partition("=")
        if equals:
            told[name.strip()] = value.strip()
    ttl = re.search(r"(?:^|,)ttl=(\d+)", told.get("AuthInfo", ""))
    timeout = re.match(r"\d+", told.get("MessageTimeout", ""))
    return Configuration(
        cluster=told.get("ClusterName", ""),
        release=told.get("SLURM_VERSION", ""),
        message_timeout=float(timeout[0]) if timeout else None,
        credential=float(ttl[1]) if ttl else None,
        accounting=told.get("AccountingStorageType", "").rpartition("/")[2] not in ("", "none", "(null)"),
        told=told,
    )
