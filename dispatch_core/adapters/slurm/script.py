"""The batch script of one object, what `sbatch` is told beside it, and which specs Slurm cannot launch.

One rule: nothing that a user writes can open the gate, change a tag or make more than one object. Options are taken
one by one, and what dispatch sets itself is refused in one line. Values travel inside the script, quoted, never on a
command line; secrets travel in a file that the user alone can read.
"""

from __future__ import annotations

import os.path
import re
import shlex
from collections.abc import Iterator, Mapping
from datetime import datetime

from dispatch_core.adapters.contract import Launch
from dispatch_core.adapters.slurm import cleaning, progress
from dispatch_core.adapters.slurm.guard import bounded, comment_of, nanoseconds
from dispatch_core.adapters.slurm.progress import PROGRESS_FILE, PROGRESS_PATTERN
from dispatch_core.plan import Spec

Problem = tuple[tuple[str | int, ...], str]

OPTIONS: Mapping[str, tuple[str, type]] = {
    "nodes": ("nodes", int),
    "tasks": ("ntasks", int),
    "tasks_per_node": ("ntasks-per-node", int),
    "cpus_per_task": ("cpus-per-task", int),
    "memory_per_cpu": ("mem-per-cpu", str),
    "gpus": ("gpus", str),
    "gpus_per_node": ("gpus-per-node", str),
    "gres": ("gres", str),
    "account": ("account", str),
    "qos": ("qos", str),
    "constraint": ("constraint", str),
    "reservation": ("reservation", str),
    "output": ("output", str),
    "error": ("error", str),
}
"""Options of a spec, each with sbatch's name for it and the type that it has; a whole number may stand for a text."""

BATCH_SCRIPT, EXTRA = "batch_script", "sbatch"

SET_HERE: Mapping[str, str] = {
    "array": "an array is many jobs under one id; make one job a member, like mapped tasks do",
    "begin": "the begin time is dispatch's hold",
    "chdir": "write it as working_directory",
    "clusters": "name the cluster as the job's scheduler",
    "comment": "it carries the job's key",
    "deadline": "Slurm would end the job while it is gated; write a time_limit, or a rule",
    "error": "write it as the option error",
    "exclude": "write it as exclude",
    "export": "write it as environment",
    "export-file": "write it as environment",
    "get-user-env": "write it as environment",
    "gid": "the job is the user's who submits it",
    "help": "it submits nothing",
    "hold": "dispatch holds every job by itself",
    "job-name": "it is what dispatch knows the job by",
    "mem": "write it as memory",
    "nice": "Slurm opens a held job whose nice value is changed",
    "no-requeue": "a plan with a requeue rule makes a job that can be requeued",
    "open-mode": "dispatch appends, so that no run's output is lost",
    "output": "write it as the option output",
    "parsable": "dispatch reads the answer",
    "partition": "write it as queue",
    "priority": "a priority of 0 is dispatch's gate",
    "quiet": "dispatch reads the answer",
    "requeue": "a plan with a requeue rule makes a job that can be requeued",
    "signal": "write it as signal_before_limit",
    "test-only": "it submits nothing",
    "time": "write it as time_limit",
    "uid": "the job is the user's who submits it",
    "usage": "it submits nothing",
    "verbose": "dispatch reads the answer",
    "version": "it submits nothing",
    "wait": "dispatch waits by itself",
    "wrap": "write it as command",
}
"""Options of sbatch that dispatch sets, or that would break the gate or a tag, and what to do instead."""

KNOWN = frozenset(
    (
        *("account", "acctg-freq", "bb", "bbf", "cluster-constraint", "constraint", "container", "contiguous"),
        *("core-spec", "cores-per-socket", "cpu-freq", "cpus-per-gpu", "cpus-per-task", "delay-boot", "dependency"),
        *("distribution", "exclusive", "extra-node-info", "gpu-bind", "gpu-freq", "gpus", "gpus-per-node"),
        *("gpus-per-socket", "gpus-per-task", "gres", "gres-flags", "hint", "input", "kill-on-invalid-dep"),
        *("licenses", "mail-type", "mail-user", "mcs-label", "mem-bind", "mem-per-cpu", "mem-per-gpu", "mincpus"),
        *("network", "no-kill", "nodefile", "nodelist", "nodes", "ntasks", "ntasks-per-core", "ntasks-per-gpu"),
        *("ntasks-per-node", "ntasks-per-socket", "overcommit", "oversubscribe", "power", "prefer", "profile"),
        *("propagate", "qos", "reboot", "reservation", "sockets-per-node", "spread-job", "switches", "thread-spec"),
        *("threads-per-core", "time-min", "tmp", "tres-bind", "tres-per-task", "use-min-nodes", "wckey"),
    )
)
"""Options that may be passed on as they are. sbatch takes abbreviations too; here they are not taken."""

IN_SCRIPT = ("array", "begin", "clusters", "deadline", "gid", "nice", "priority", "test-only", "uid", "wait")
"""What no `#SBATCH` line of a user's script may say, since no option on the command line takes it back."""


def problems(spec: Spec) -> list[Problem]:
    """What Slurm cannot launch of a spec, without asking any cluster."""
    return [*_field_problems(spec), *_option_problems(spec)]


def _field_problems(spec: Spec) -> Iterator[Problem]:
    limit, before = spec.time_limit_seconds, spec.signal_before_limit_seconds
    if spec.signal_before_limit is not None and not 1 <= before <= 65535:
        yield ("spec", "signal_before_limit_seconds"), f"Slurm takes 1 to 65535 seconds, and this is {before:g}"
    if spec.signal_before_limit is not None and limit is not None and before >= limit:
        text = f"the signal would come {before:g} seconds before a limit of {limit:g}: when the run begins"
        yield ("spec", "signal_before_limit_seconds"), text
    if spec.working_directory is not None and not os.path.isabs(spec.working_directory):
        yield ("spec", "working_directory"), "it is not absolute; a run has no directory to start from"
    given: list[tuple[tuple[str | int, ...], str | None]] = [
        (("spec", "working_directory"), spec.working_directory),
        (("spec", "queue"), spec.queue),
        *((("spec", "exclude", index), node) for index, node in enumerate(spec.exclude)),
    ]
    for path, word in given:
        if word is not None and (not word or not word.isprintable() or word.startswith("-")):
            yield path, f"{word!r} cannot be given to sbatch: it is empty, begins with a dash, or cannot be printed"


def _option_problems(spec: Spec) -> Iterator[Problem]:
    at: tuple[str | int, ...] = ("spec", "options")
    for name, value in spec.options.items():
        if name == EXTRA:
            given = value if isinstance(value, tuple) else (value,)
            yield from (((*at, EXTRA, index), text) for index, text in _extra_problems(given))
        elif name == BATCH_SCRIPT:
            if not isinstance(value, bool):
                yield (*at, name), "it is true, where command names a batch script with #SBATCH lines, or false"
            elif value and not os.path.isabs(spec.command[0] if spec.command else ""):
                yield ("spec", "command", 0), "a batch script is named by its absolute path on the cluster"
        elif name == PROGRESS_PATTERN and PROGRESS_FILE in spec.options:
            yield (*at, name), "progress is shown by a file or by a pattern, not both; leave one of them out"
        elif name in (PROGRESS_FILE, PROGRESS_PATTERN):
            yield from (((*at, name), text) for text in _progress_problems(name, value))
        elif name not in OPTIONS:
            known = ", ".join([*OPTIONS, BATCH_SCRIPT, PROGRESS_FILE, PROGRESS_PATTERN, EXTRA])
            yield (*at, name), f"Slurm jobs have no option {name!r} here; there are {known}"
        else:
            yield from (((*at, name), text) for text in _value_problems(name, value))


def _value_problems(name: str, value: object) -> Iterator[str]:
    wanted = OPTIONS[name][1]
    if isinstance(value, bool) or not isinstance(value, int if wanted is int else (int, str)):
        yield f"it is {value!r}; write {'a whole number' if wanted is int else 'text'}"
    elif isinstance(value, int) and value < 1:
        yield f"it is {value}; write a number above 0"
    elif isinstance(value, str) and (not value or not value.isprintable()):
        yield f"{value!r} cannot be given to sbatch: it is empty, or cannot be printed"
    elif name in ("output", "error") and not os.path.isabs(str(value)):
        yield "it is not absolute; a run has no directory to start from"


def _progress_problems(name: str, value: object) -> Iterator[str]:
    if not isinstance(value, str) or not value or not value.isprintable():
        yield "write a text that can be printed"
    elif name == PROGRESS_FILE and not os.path.isabs(value):
        yield "it is not absolute; a run has no directory to start from"


def _extra_problems(given: tuple[object, ...]) -> Iterator[tuple[int, str]]:
    for index, option in enumerate(given):
        found = re.fullmatch(r"--([a-z][a-z-]*)(?:=(.+))?", option) if isinstance(option, str) else None
        if found is None or not str(option).isprintable():
            yield index, f"{option!r} is no long option; write it like --exclusive or --licenses=foo:1"
        elif found[1] in SET_HERE:
            yield index, f"--{found[1]} is not passed on: {SET_HERE[found[1]]}"
        elif found[1] not in KNOWN:
            yield index, f"--{found[1]} is not known here; write an option of sbatch in full"


# --- what sbatch is told


def arguments(launch: Launch) -> list[str]:
    """sbatch's options, the two paths of its output aside."""
    spec = launch.spec
    told = [
        *("--parsable", "--hold", "--open-mode=append", f"--job-name={launch.name}"),
        f"--comment={comment_of(launch.key)}",
        "--requeue" if launch.may_requeue else "--no-requeue",
    ]
    for name, (option, _) in OPTIONS.items():
        if name in spec.options and name not in ("output", "error"):
            told.append(f"--{option}={spec.options[name]}")
    extra = spec.options.get(EXTRA, ())
    told += extra if isinstance(extra, tuple) else (str(extra),)
    if spec.working_directory is not None:
        told.append(f"--chdir={spec.working_directory}")
    if spec.queue is not None:
        told.append(f"--partition={spec.queue}")
    if spec.exclude:
        told.append(f"--exclude={','.join(spec.exclude)}")
    if spec.memory_bytes is not None:
        told.append(f"--mem={-(-spec.memory_bytes // 2**20)}M")
    if spec.time_limit_seconds is not None:
        told.append(f"--time={_time(spec.time_limit_seconds)}")
    if spec.signal_before_limit is not None:
        told.append(f"--signal=B:{spec.signal_before_limit}@{int(spec.signal_before_limit_seconds)}")
    return told


def _time(seconds: float) -> str:
    """As Slurm writes a time limit; it counts in minutes, and rounds up."""
    minutes = max(1, -int(-seconds // 60))
    return f"{minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}:00"


# --- what the object runs


def prologue(launch: Launch, has_secrets: bool) -> str:
    """The shell before the user's command; `dispatch_directory` is set above it, in the host's own words."""
    told = {
        "DISPATCH_KEY": launch.key,
        "DISPATCH_SUBMISSION": str(launch.submission),
        "DISPATCH_ATTEMPT": str(launch.attempt),
    }
    lines = [f"export {name}={shlex.quote(value)}" for name, value in told.items()]
    lines.append(_RUN.format(name=launch.name, cause=shlex.quote(launch.previous_cause)))
    if has_secrets:
        lines.append(f'. "$dispatch_directory/secrets/{launch.name}" || exit 1')
        if not launch.may_requeue:
            lines.append(f'rm -f "$dispatch_directory/secrets/{launch.name}"')
    lines.append("unset dispatch_directory dispatch_end")
    lines += [f"export {name}={shlex.quote(value)}" for name, value in launch.spec.environment.items()]
    if launch.spec.working_directory is not None:
        lines.append(f"cd {shlex.quote(launch.spec.working_directory)} || exit 1")
    return "\n".join(lines)


_RUN = """export DISPATCH_OBJECT="$SLURM_JOB_ID:{name}" DISPATCH_RUN=$((${{SLURM_RESTART_COUNT:-0}} + 1))
export DISPATCH_PREVIOUS_CAUSE={cause}
if [ "$DISPATCH_RUN" != 1 ]; then
    read -r dispatch_end 2>/dev/null <"$dispatch_directory/runs/{name}.$((DISPATCH_RUN - 1)).end" || :
    case $dispatch_end in
    'COMPLETED '*) DISPATCH_PREVIOUS_CAUSE=completed ;;
    'TIMEOUT '*) DISPATCH_PREVIOUS_CAUSE=time_limit ;;
    'OUT_OF_MEMORY '*) DISPATCH_PREVIOUS_CAUSE=out_of_memory ;;
    'NODE_FAIL '* | 'BOOT_FAIL '*) DISPATCH_PREVIOUS_CAUSE=node_failure ;;
    'PREEMPTED '*) DISPATCH_PREVIOUS_CAUSE=preempted ;;
    'CANCELLED '*) DISPATCH_PREVIOUS_CAUSE=stopped_outside ;;
    'FAILED '*) if [ $((${{dispatch_end#* }} & 127)) = 0 ]
        then DISPATCH_PREVIOUS_CAUSE=exit; else DISPATCH_PREVIOUS_CAUSE=signal; fi ;;
    *) DISPATCH_PREVIOUS_CAUSE=rerun ;;
    esac
fi
if mkdir -p "$dispatch_directory/runs"; then
    (for dispatch_end in 1 2; do
        readlink "/proc/$$/fd/$dispatch_end"
        stat -L -c %s "/proc/$$/fd/$dispatch_end"
    done) >"$dispatch_directory/runs/{name}.$DISPATCH_RUN.new" &&
        mv "$dispatch_directory/runs/{name}.$DISPATCH_RUN.new" "$dispatch_directory/runs/{name}.$DISPATCH_RUN.out"
fi"""


def start_body(launch: Launch, secrets: Mapping[str, str], deadline: datetime, seconds: float, cluster: str) -> str:
    """The body of Start: the claim of its name, the files on their way, the batch script, and sbatch. `cluster` is the
    cluster's own name.

    A script that is run a second time, however that comes, finds the claim, touches nothing and knows nothing of what
    the first one made. Nor does one sbatch make two jobs: a request that was sent is sent again only after an answer
    that it was not carried out (a controller in standby, a full queue, too many requests; read in Slurm's source), and
    one that times out is given up (seen on 22.05: one job). Whoever is ended between the claim and sbatch leaves an
    attempt that made nothing, like one that never arrived.
    """
    spec, name = launch.spec, launch.name
    paths = [
        f"--{stream}={shlex.quote(str(spec.options[stream]))}"
        for stream in ("output", "error")
        if stream in spec.options
    ]
    if "output" not in spec.options:
        paths.append(f'--output="$directory/logs/{name}.out"')
    told = " ".join([*map(shlex.quote, arguments(launch)), *paths])
    files = cleaning.claimed(cluster) + _secrets(name, secrets) + progress.noted(launch)
    inner = shlex.quote(prologue(launch, bool(secrets)) + "\n")
    return f"""deadline={nanoseconds(deadline)}
refuse() {{ say refused; printf '%s' "$1"; }}
in_time || {{ say late; return; }}
case $directory in *[%\\\\]*) refuse "the directory $directory has a percent sign or a backslash"; return ;; esac
made() {{ umask 077; mkdir -p "$directory" && cd "$directory" && mkdir -p logs runs secrets progress starts; }}
if ! told=$(made 2>&1); then
    refuse "the directory $directory cannot be made: $told"; return
fi
if ! told=$(mkdir "$directory/starts/{name}" 2>&1); then
    if [ -d "$directory/starts/{name}" ]; then say begun
    else refuse "the claim of {name} cannot be made below $directory: $told"; fi
    return
fi
{files}quoted=$(printf '%s' "$directory" | sed "s/'/'\\\\\\\\''/g")
{_composition(spec, inner)}
in_time || {{ {_taken_back(name, secrets)}say late; return; }}
told=$(compose | {bounded(seconds)} sbatch {told} 2>&1); code=$?
say did $code; printf '%s' "$told" """


def _secrets(name: str, secrets: Mapping[str, str]) -> str:
    if not secrets:
        return ""
    lines = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in secrets.items())
    return f"""if ! (umask 077 && printf '%s' {shlex.quote(lines)} >"$directory/secrets/{name}"); then
    refuse "the secrets cannot be written below $directory"; return
fi
"""


def _taken_back(name: str, secrets: Mapping[str, str]) -> str:
    return f'rm -f "$directory/secrets/{name}"; ' if secrets else ""


def _composition(spec: Spec, inner: str) -> str:
    """A shell function that prints the batch script."""
    where = 'printf "dispatch_directory=\'%s\'\\n" "$quoted"'
    if spec.options.get(BATCH_SCRIPT) is not True:
        command = shlex.quote(f"exec {shlex.join(spec.command)}\n")
        return f"compose() {{ echo '#!/bin/sh'; {where}; printf '%s' {inner}{command}; }}"
    forbidden = "|".join(f"{name[:cut]}" for name in IN_SCRIPT for cut in range(2, len(name) + 1))
    arguments = shlex.quote(f"set -- {shlex.join(spec.command[1:])}\n")
    return f"""script={shlex.quote(spec.command[0])}
if ! [ -f "$script" ] || ! [ -r "$script" ]; then refuse "the batch script $script cannot be read"; return; fi
case $(sed -n 1p "$script") in
'#!'*csh* | '#!'*fish*) refuse "the batch script $script is not for a POSIX shell; leave batch_script out"; return ;;
'#!'*sh*) ;;
*) refuse "the batch script $script does not begin with a shell, like #!/bin/bash; leave batch_script out"; return ;;
esac
header() {{ sed -n -e '1d' -e '/^#SBATCH/p' -e '/^[[:space:]]*[^#[:space:]]/q' "$script"; }}
if told=$(header | tr -d '"\\047\\134' |
    grep -E -m 1 '[[:space:]](--({forbidden})([=[:space:]]|$)|-[hHkOQsvVW]*[abMW]|hetjob|packjob)'); then
    refuse "$script says $told, which would break the gate or the tags; take the line out"; return
fi
compose() {{
    sed -n 1p "$script"; header | grep '^#SBATCH'; {where}; printf '%s' {inner}{arguments}; sed 1d "$script"
}}"""
