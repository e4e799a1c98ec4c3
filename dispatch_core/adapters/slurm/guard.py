"""The shell that every command on the scheduler's host runs in, and how what it says is read back.

One rule: a call looks at the host's clock, at the object's identity and at its run, and acts right after that, in one
script; it is `refused` or `late` only where nothing was sent to Slurm. What a script prints counts between its own two
marks only: a login shell may print what it likes around them. Variables that would bend what Slurm's commands do
(`SQUEUE_STATES`, `SBATCH_PARTITION`, ...) are taken away first.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from urllib.parse import quote, unquote

from dispatch_core.adapters.contract import Target
from dispatch_core.adapters.slurm.cluster import SlurmCluster
from dispatch_core.errors import SchedulerUnavailable
from dispatch_core.record import Answer, Reply

ENDED = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT"),
)
"""States that a job has once nothing of it is left on a node."""

KEY_TAG = "dispatch:"
"""What the comment of every object begins with; the job's key comes after it."""


def comment_of(key: str) -> str:
    """A job's comment: its key, with what would break a line, or cannot be printed, written as in a URL.

    >>> comment_of("50% of a\\nkey")
    'dispatch:50%25 of a%0Akey'
    """
    return KEY_TAG + "".join(quote(c) if c == "%" or not c.isprintable() else c for c in key)


def key_of(comment: str) -> str:
    """The key in a comment; "" where it has none."""
    return unquote(comment.removeprefix(KEY_TAG)) if comment.startswith(KEY_TAG) else ""


HELD_UNTIL = "2038-01-01"
"""The begin time that is the hold bit."""

QUIET_FAILURES = re.compile(
    r"timed out|unable to contact|connect|communication|unexpected message|zero bytes|message (send|receive)"
    r"|backup controller|authentication|temporarily|try again|standby|shutting down|broken pipe|no route"
    r"|incompatible versions|i/o error|not responding|unable to resolve|cannot allocate|out of memory",
    re.IGNORECASE,
)
"""What Slurm's commands say of a message that may have arrived all the same, or of a controller that judged nothing."""


class Object(NamedTuple):
    """A Slurm job as an object: its number is given to others later, so the name is in its id."""

    number: str
    name: str

    @property
    def id(self) -> str:
        return f"{self.number}:{self.name}"


def object_of(id: str) -> Object | None:
    """The number and the name in an object's id; None where it is none of Slurm's."""
    number, _, name = id.partition(":")
    return Object(number, name) if name and re.fullmatch(r"[1-9][0-9]{0,9}", number) else None


def prelude(cluster: SlurmCluster) -> str:
    """What every script begins with."""
    lines = [
        "for dispatch_name in $(env | sed -n -E 's/^((S(QUEUE|BATCH|CANCEL|ACCT|CONTROL|LURM)_[A-Z0-9_]*)=.*/\\1/p')",
        'do case $dispatch_name in SLURM_CONF) ;; *) unset "$dispatch_name" ;; esac; done',
    ]
    if cluster.bin is not None:
        lines.append(f"PATH={shlex.quote(cluster.bin)}:$PATH")
    if cluster.slurm_conf is not None:
        lines.append(f"SLURM_CONF={shlex.quote(cluster.slurm_conf)}; export SLURM_CONF")
    home, rest = ('"$HOME"/', cluster.directory[2:]) if cluster.directory.startswith("~/") else ("", cluster.directory)
    lines.append(f"directory={home}{shlex.quote(rest)}")
    lines.append('cd "$HOME" || cd /')
    return "\n".join(lines)


class Marked:
    """One script with marks around what it says, and the reading of it."""

    def __init__(self, cluster: SlurmCluster, nonce: str) -> None:
        self._nonce = f"dispatch-{nonce}"
        self.head = f"""{prelude(cluster)}
say() {{ printf '\\n%s %s %s\\n' {self._nonce} "$*" "$(date +%s%N)"; }}
in_time() {{ [ "$(date +%s%N)" -le "$deadline" ]; }}
say began"""

    def script(self, body: str) -> str:
        return f"{self.head}\n{body}\n"

    def read(self, out: bytes) -> list[Section]:
        """The marks of a script in their order, each with what was printed after it."""
        found = []
        for part in out.split(f"\n{self._nonce} ".encode())[1:]:
            head, _, printed = part.partition(b"\n")
            *words, time = head.decode(errors="replace").split(" ")
            if not time.isdecimal():
                raise SchedulerUnavailable("the host's `date` does not know +%s%N, and its time is needed")
            found.append(Section(" ".join(words), moment(int(time)), printed))
        return found


class Section(NamedTuple):
    """A mark, the host's time at it, and what was printed after it."""

    mark: str
    at: datetime
    printed: bytes

    @property
    def body(self) -> str:
        return self.printed.decode(errors="replace")


def moment(nanoseconds: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=nanoseconds // 1000)


def nanoseconds(at: datetime) -> int:
    return (at - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1) * 1000


def bounded(seconds: float) -> str:
    """The beginning of a command that is ended after so long."""
    return f"timeout -k 1 {seconds:g}"


def of_object(target: Target, object: Object, deadline: datetime, seconds: float, steps: str) -> str:
    """The body of a call on one run of one object. `steps` see its $state, $priority and $reason, call `refuse TEXT`,
    `nothing` or `act COMMAND`, and come to their end after any of them."""
    row = "JobID:|,RestartCnt:|,State:|,PriorityLong:|,exit_code:|,Reason:|,Name:|"
    return f"""deadline={nanoseconds(deadline)} number={object.number} name={shlex.quote(target.name)} run={target.run}
refuse() {{ say refused; printf '%s' "$1"; }}
nothing() {{ say did 0; }}
act() {{
    in_time || {{ say late; return; }}
    told=$({bounded(seconds)} "$@" 2>&1); code=$?
    say did $code; printf '%s' "$told"
}}
in_time || {{ say late; return; }}
shown=$({bounded(seconds)} squeue -h -a -t all -j $number -O '{row}' 2>&1); code=$?
if [ $code != 0 ]; then
    case $shown in
    *'Invalid job id specified'*) refuse "there is no job $number" ;;
    *) say unseen; printf '%s' "$shown" ;;
    esac
    return
fi
IFS='|' read -r shown_number restarts state priority exit_code reason shown_name rest <<SHOWN
$shown
SHOWN
if [ "$shown_number" != "$number" ] || [ "$shown_name" != "$name" ]; then
    refuse "job $number is not $name; nothing was done"
    return
fi
if [ "$((restarts + 1))" != "$run" ]; then
    refuse "job $number is on run $((restarts + 1)), not on run $run; nothing was done"
    return
fi
case $state in {"|".join(ENDED)}) ended=yes ;; *) ended= ;; esac
{steps}"""


OPEN = """if [ "$ended" ] && [ "$priority" = 0 ]; then refuse "run $run of job $number has ended; it cannot be opened"
elif [ "$state" = PENDING ] && [ "$reason" = JobHeldAdmin ]; then refuse "job $number is held by an administrator"
elif [ "$state $reason" = 'PENDING BadConstraints' ]; then
    refuse "no node can run job $number as it asks (Slurm: BadConstraints); it was opened, and Slurm holds it"
elif [ "$state" = PENDING ] && [ "$priority" = 0 ]; then act scontrol release $number
elif [ "$state" = SPECIAL_EXIT ]; then act scontrol release $number
else nothing; fi"""

SHUT = """case $ended$state in
PENDING|yes*) refuse "run $run of job $number is $state; the gate is shut behind a running one only" ;;
*) act scontrol uhold $number ;;
esac"""
"""As a user's hold, also where root shuts it: an administrator's, which no Open lifts, is told apart by its reason."""

STOP = """if [ "$ended" ]; then nothing; else act scancel $number; fi"""

HOLD = f"""if [ "$state" = PENDING ]; then act scontrol update JobId=$number StartTime={HELD_UNTIL}
else refuse "run $run of job $number is $state; it cannot be held"; fi"""

RELEASE = """if [ "$state" = PENDING ]; then act scontrol update JobId=$number StartTime=now; else nothing; fi"""

REQUEUE = """if [ ! "$ended" ]; then refuse "run $run of job $number is $state, and has not ended"; return; fi
if mkdir -p "$directory/runs"; then
    printf '%s' "$state $exit_code" >"$directory/runs/$name.$run.end"
fi
act scontrol requeuehold $number"""


def of_job(names: Sequence[str], deadline: datetime, seconds: float) -> str:
    """The body of StopJob: everything with one of these names that has not ended."""
    listed = ",".join(names)
    forgotten = " ".join(f'"$directory/secrets/{name}"' for name in names)
    return f"""deadline={nanoseconds(deadline)}
in_time || {{ say late; return; }}
shown=$({bounded(seconds)} squeue -h -a -t all --name={shlex.quote(listed)} -O 'JobID:|,State:|' 2>&1); code=$?
if [ $code != 0 ]; then say unseen; printf '%s' "$shown"; return; fi
numbers=$(printf '%s\\n' "$shown" | grep -v -E '^[0-9]+[|]({"|".join(ENDED)})[|]' | sed -n -E 's/^([0-9]+)[|].*/\\1/p')
in_time || {{ say late; return; }}
rm -f {forgotten}
if [ -z "$numbers" ]; then say did 0; return; fi
told=$({bounded(seconds)} scancel $numbers 2>&1); code=$?
say did $code; printf '%s' "$told" """


def reply_of(sections: Sequence[Section], err: bytes) -> Reply:
    """What a call's script said."""
    if not sections:
        return Reply(answer=Answer.UNKNOWN, text=line(err.decode(errors="replace")) or "the host said nothing")
    last = sections[-1]
    text = line(last.body)
    match last.mark.split(" "):
        case ["late"]:
            return Reply(answer=Answer.LATE, text="the host got to it after its deadline; nothing was done")
        case ["refused"]:
            return Reply(answer=Answer.REFUSED, text=text)
        case ["did", "0"]:
            return Reply(answer=Answer.DONE, text=text)
        case ["did", code] if is_refusal(code, text):
            return Reply(answer=Answer.REFUSED, text=text)
        case ["begun"]:
            return Reply(
                answer=Answer.UNKNOWN, text="another copy of this call has begun the launch; this one did nothing"
            )
        case ["unseen"]:
            return Reply(answer=Answer.UNKNOWN, text=f"nothing was done: {text or 'squeue did not answer in time'}")
    return Reply(answer=Answer.UNKNOWN, text=text or "Slurm did not answer in time")


def is_refusal(code: str, text: str) -> bool:
    """Whether Slurm judged a request and said no. A command that was ended, or is not there, says nothing; nor does one
    whose message may have arrived."""
    return bool(text) and code not in ("124", "125", "126", "127", "137") and QUIET_FAILURES.search(text) is None


def line(text: str) -> str:
    """All of it in one line that can be stored and shown."""
    words = " ".join(re.sub(r"\b(sbatch|scontrol|scancel|squeue|slurm_\w+): (error: )?", "", text).split())
    return "".join(letter for letter in words if letter.isprintable())[:500]
