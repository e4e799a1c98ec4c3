"""The job file: key, scheduler, spec and plan as a person writes them, and the same fields as an engine is given them.

One rule: strict, and before anything is written. A field that is not known, a value of another type, a number out of
range and a rule that can never match are refused in one line that begins with file and line number (or the field's
path) and says what to do. Names here are those of the file: `time_limit` is `time_limit_seconds` in the spec.
"""

from __future__ import annotations

import re
import shlex
import signal
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dispatch_core.amounts import read_seconds
from dispatch_core.errors import BadInput
from dispatch_core.fields import (
    Reader,
    boolean,
    factor,
    fields_of,
    finite,
    listed,
    many,
    mapping,
    one_of,
    seconds,
    size,
    string,
    whole,
)
from dispatch_core.parts import Part, from_fields, from_yaml
from dispatch_core.plan import (
    NOT_MATCHABLE,
    Action,
    Cause,
    Changes,
    Delay,
    Plan,
    Rule,
    Secret,
    Spec,
    When,
    problems,
)
from dispatch_core.record import KEY_LENGTH

__all__ = ["JobFile", "read_fields", "read_job", "read_plan", "read_seconds", "read_spec"]

CAUSES = tuple(cause.value for cause in Cause if cause not in NOT_MATCHABLE)


@dataclass(frozen=True)
class JobFile:
    """One job as its file has it."""

    key: str
    scheduler: str
    spec: Spec
    plan: Plan
    written: Part = field(repr=False)

    def refuse(self, path: tuple[str | int, ...], why: str) -> BadInput:
        """The error for a field of spec or plan, by its path in the records, at its line in the file."""
        return _placed(self.written, path, why)


def read_job(text: str, name: str) -> JobFile:
    """The job in a YAML text; `name` is what its lines are counted under. Raises BadInput."""
    written = from_yaml(text, name)
    fields = fields_of(written, {"key": _key, "scheduler": string, "spec": _spec, "plan": _plan}, ("key", "spec"))
    job = JobFile(
        key=fields["key"],
        scheduler=fields.get("scheduler", "local"),
        spec=fields["spec"],
        plan=fields.get("plan", Plan()),
        written=written,
    )
    for path, problem in problems(job.spec, job.plan):
        raise job.refuse(path, problem)
    return job


def read_spec(fields: Mapping[str, object]) -> Spec:
    """The spec in fields named as in a job file. Raises BadInput, naming the field."""
    part = from_fields(fields, "spec")
    spec = _spec(part)
    for path, problem in problems(spec, Plan()):
        raise _placed(part, path[1:], problem)
    return spec


def read_plan(fields: Mapping[str, object]) -> Plan:
    """The plan in fields named as in a job file. Raises BadInput, naming the field."""
    part = from_fields(fields, "plan")
    plan = _plan(part)
    for path, problem in problems(Spec(command=("true",)), plan):
        raise _placed(part, path[1:], problem)
    return plan


def read_fields(text: str, name: str) -> dict[str, Any]:
    """The fields of a spec or a plan in a YAML text, as an engine would be given them; `name`: where the text is from.
    Raises BadInput, with the line."""
    written = from_yaml(text, name, needs="leave it out, or write its fields")
    if not isinstance(written.value, dict):
        raise written.refuse(f"it is {written.shown}; write a mapping of fields")
    return {key: _bare(inner) for key, inner in written.value.items()}


def _bare(part: Part) -> Any:
    """A value without its place."""
    match part.value:
        case dict() as inner:
            return {key: _bare(value) for key, value in inner.items()}
        case list() as inner:
            return [_bare(value) for value in inner]
    return part.value


def _placed(written: Part, path: tuple[str | int, ...], why: str) -> BadInput:
    units = re.compile(r"_(seconds|bytes)\b")
    there = tuple(units.sub("", step) if isinstance(step, str) else step for step in path)
    return written.at(there).refuse(units.sub("", why))


def _key(part: Part) -> str:
    key = string(part)
    if not 1 <= len(key) <= KEY_LENGTH:
        raise part.refuse(f"it has {len(key)} characters; a key has 1 to {KEY_LENGTH}")
    if not key.isprintable():
        raise part.refuse("it holds a character that cannot be printed; leave it out")
    return key


# --- the spec and what is in it


def _spec(part: Part) -> Spec:
    readers: dict[str, Reader] = {
        "command": _command,
        "working_directory": string,
        "time_limit": seconds,
        "signal_before_limit": _warning,
        "memory": size,
        "queue": string,
        "exclude": many(string),
        "environment": mapping(string),
        "secret_environment": mapping(_secret),
        "options": mapping(_option),
    }
    fields = fields_of(part, readers, ("command",))
    warning = fields.get("signal_before_limit", {})
    if warning and "time_limit" not in fields:
        raise part.at(("signal_before_limit",)).refuse("there is no time limit to warn of; add time_limit")
    if warning and not warning["seconds"] < fields["time_limit"]:
        raise part.at(("signal_before_limit",)).refuse("it comes before the run begins; make it less than time_limit")
    return Spec(
        command=fields["command"],
        working_directory=fields.get("working_directory"),
        time_limit_seconds=fields.get("time_limit"),
        signal_before_limit=warning.get("signal"),
        signal_before_limit_seconds=warning.get("seconds", 60.0),
        memory_bytes=fields.get("memory"),
        queue=fields.get("queue"),
        exclude=fields.get("exclude", ()),
        environment=fields.get("environment", {}),
        secret_environment=fields.get("secret_environment", {}),
        options=fields.get("options", {}),
    )


def _command(part: Part) -> tuple[str, ...]:
    if isinstance(part.value, str):
        try:
            words = shlex.split(part.value)
        except ValueError:
            words = []
        shown = f"[{', '.join(_yaml_word(word) for word in words)}]" if words else "[bash, train.sh]"
        raise part.refuse(f"it is one text, and no shell splits it; write a list: command: {shown}")
    return listed(part, string)


def _yaml_word(word: str) -> str:
    """A word as it stands in a YAML list: quoted wherever a plain one could be read as anything but this text."""
    plain = re.fullmatch(r"[A-Za-z./_][\w./@%+=-]*", word, re.ASCII)
    special = word.lower() in ("yes", "no", "on", "off", "true", "false", "null", "y", "n") or ".inf" in word.lower()
    return word if plain and not special and word != "." else '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _warning(part: Part) -> dict[str, Any]:
    if isinstance(part.value, str):
        return {"signal": _signal_name(part), "seconds": 60.0}
    fields = fields_of(part, {"signal": _signal_name, "seconds": seconds}, ("signal",))
    return {"seconds": 60.0, **fields}


def _signal_name(part: Part) -> str:
    name = string(part).upper().removeprefix("SIG")
    if f"SIG{name}" not in signal.Signals.__members__:
        raise part.refuse(f"{part.shown} is no signal; USR1 would be one")
    return name


def _secret(part: Part) -> Secret:
    sources = "{variable: NAME}, {file: PATH} or {connection: ID}"
    if isinstance(part.value, str):
        # What stands here may be the secret itself: it is not shown.
        raise part.refuse(f"it is text; write where it is read from: {sources}")
    fields = fields_of(part, {"variable": string, "file": string, "connection": string}, ())
    if len(fields) != 1:
        raise part.refuse(f"name one source of the secret: {sources}")
    ((source, name),) = fields.items()
    if not name or "\0" in name:
        raise part.refuse(f"the {source} has no name; write it, like {{{source}: NAME}}")
    if source == "file" and not name.startswith("/"):
        raise part.at(("file",)).refuse("the path is not absolute, and a supervisor may run anywhere; begin it with /")
    return Secret(source=source, name=name)  # type: ignore[arg-type] # one of the three readers above


def _option(part: Part) -> str | int | float | bool | tuple[str, ...]:
    if isinstance(part.value, list):
        return listed(part, string)
    if isinstance(part.value, bool):
        return part.value
    if isinstance(part.value, int):
        return whole(part)
    if isinstance(part.value, float):
        return finite(part)
    return string(part)


# --- the plan and what is in it


def _plan(part: Part) -> Plan:
    readers = {
        "rules": lambda rules: listed(rules, _rule),
        "unmatched": one_of("expire", "manual"),
        "foreign": one_of("report", "ignore", "stop"),
        "lost_node": one_of("wait", "go", "hold"),
        "lost_node_wait": seconds,
    }
    names = {"lost_node_wait": "lost_node_seconds"}
    return Plan(**{names.get(name, name): value for name, value in fields_of(part, readers, ()).items()})


def _rule(part: Part) -> Rule:
    readers: dict[str, Reader] = {
        "name": string,
        "when": _when,
        "do": one_of(*(action.value for action in Action)),
        "budget": _budget,
        "delay": _delay,
        "changes": _changes,
    }
    fields = fields_of(part, readers, ("name", "when", "do"))
    return Rule(**{**fields, "do": Action(fields["do"])})


def _when(part: Part) -> When:
    readers: dict[str, Reader] = {
        "cause": many(_cause),
        "exit_code": many(_exit_code),
        "signal": many(_signal_number),
        "message": _pattern,
        "shorter_than": seconds,
        "pending_longer_than": seconds,
        "no_progress_for": seconds,
    }
    return When(**{_unit(name): value for name, value in fields_of(part, readers, ()).items()})


def _unit(name: str) -> str:
    return f"{name}_seconds" if name in ("shorter_than", "pending_longer_than", "no_progress_for") else name


def _cause(part: Part) -> Cause:
    name = string(part)
    if name in NOT_MATCHABLE:
        raise part.refuse(f"the rule can never match: no rule is asked about {name}; leave it out")
    return Cause(one_of(*CAUSES)(part))


def _exit_code(part: Part) -> int:
    code = whole(part)
    if not 0 <= code <= 255:
        raise part.refuse(f"the rule can never match: {code} is no exit code; they go from 0 to 255")
    return code


def _signal_number(part: Part) -> int:
    if isinstance(part.value, str):
        return int(signal.Signals[f"SIG{_signal_name(part)}"])
    number = whole(part)
    if not 1 <= number <= 64:
        raise part.refuse(f"the rule can never match: {number} is no signal; they go from 1 to 64")
    return number


def _pattern(part: Part) -> str:
    pattern = string(part)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise part.refuse(f"it is not a regular expression: {error}; escape what is meant as it stands") from None
    return pattern


def _budget(part: Part) -> int:
    budget = whole(part)
    if budget < 0:
        raise part.refuse(f"a budget cannot be negative, and this is {budget}; write how often the rule may be used")
    return budget


def _delay(part: Part) -> Delay:
    if not isinstance(part.value, dict):
        return Delay(seconds=seconds(part))
    readers = {"first": seconds, "factor": factor, "cap": seconds, "jitter": finite}
    fields = fields_of(part, readers, ("first",))
    names = {"first": "seconds", "cap": "cap_seconds"}
    return Delay(**{names.get(name, name): value for name, value in fields.items()})


def _changes(part: Part) -> Changes:
    readers: dict[str, Reader] = {
        "memory_factor": factor,
        "memory_cap": size,
        "time_limit_factor": factor,
        "time_limit_cap": seconds,
        "queue": string,
        "exclude_nodes": boolean,
    }
    names = {"memory_cap": "memory_cap_bytes", "time_limit_cap": "time_limit_cap_seconds"}
    return Changes(**{names.get(name, name): value for name, value in fields_of(part, readers, ()).items()})
