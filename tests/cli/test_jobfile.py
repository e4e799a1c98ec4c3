"""A job file with each kind of mistake, and the one line that each gets."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import yaml

from dispatch_core.amounts import read_bytes, say_seconds
from dispatch_core.errors import BadInput
from dispatch_core.jobfile import read_job, read_plan, read_seconds, read_spec
from dispatch_core.plan import Action, Cause, Changes, Delay, Plan, Rule, Secret, Spec, When

WHOLE = """\
key: nightly
scheduler: local
spec:
  command: [python, "train.py", "--seed", "1"]
  working_directory: /data
  time_limit: 1d 12h
  signal_before_limit: {signal: SIGUSR1, seconds: 2m}
  memory: 16GiB
  queue: gpu
  exclude: [node7]
  environment: {SEED: "1", ON: "yes"}
  secret_environment:
    TOKEN: {variable: MY_TOKEN}
    KEY: {file: /run/secrets/key}
    PASS: {connection: warehouse}
  options: {gres: "gpu:2", nice: 5, fast: true, licenses: [a, b], share: 0.5}
plan:
  unmatched: manual
  foreign: stop
  rules:
    - {name: node, when: {cause: [node_failure, preempted]}, do: resubmit, budget: 3, delay: 10s}
    - name: memory
      when: {cause: out_of_memory, shorter_than: PT1H}
      do: resubmit
      delay: {first: 10s, factor: 2, cap: 10m, jitter: 0.1}
      changes: {memory_factor: 1.5, memory_cap: 64GiB, exclude_nodes: true}
    - {name: crash, when: {signal: [SEGV, 9], message: "cuda.*lost"}, do: requeue}
    - {name: stuck, when: {pending_longer_than: 2h}, do: hold}
"""


def test_a_whole_job_is_read() -> None:
    job = read_job(WHOLE, "job.yaml")
    assert (job.key, job.scheduler) == ("nightly", "local")
    assert job.spec == Spec(
        command=("python", "train.py", "--seed", "1"),
        working_directory="/data",
        time_limit_seconds=129600.0,
        signal_before_limit="USR1",
        signal_before_limit_seconds=120.0,
        memory_bytes=16 * 1024**3,
        queue="gpu",
        exclude=("node7",),
        environment={"SEED": "1", "ON": "yes"},
        secret_environment={
            "TOKEN": Secret(source="variable", name="MY_TOKEN"),
            "KEY": Secret(source="file", name="/run/secrets/key"),
            "PASS": Secret(source="connection", name="warehouse"),
        },
        options={"gres": "gpu:2", "nice": 5, "fast": True, "licenses": ("a", "b"), "share": 0.5},
    )
    memory = Rule(
        name="memory",
        when=When(cause=(Cause.OUT_OF_MEMORY,), shorter_than_seconds=3600.0),
        do=Action.RESUBMIT,
        delay=Delay(seconds=10.0, factor=2.0, cap_seconds=600.0, jitter=0.1),
        changes=Changes(memory_factor=1.5, memory_cap_bytes=64 * 1024**3, exclude_nodes=True),
    )
    node = When(cause=(Cause.NODE_FAILURE, Cause.PREEMPTED))
    assert job.plan == Plan(
        rules=(
            Rule(name="node", when=node, do=Action.RESUBMIT, budget=3, delay=Delay(seconds=10.0)),
            memory,
            Rule(name="crash", when=When(signal=(11, 9), message="cuda.*lost"), do=Action.REQUEUE),
            Rule(name="stuck", when=When(pending_longer_than_seconds=7200.0), do=Action.HOLD),
        ),
        unmatched="manual",
        foreign="stop",
    )


def test_an_engine_gives_the_same_fields() -> None:
    given = yaml.safe_load(WHOLE.replace("ON:", '"ON":'))  # the trap that a job file does not have
    job = read_job(WHOLE, "job.yaml")
    assert read_spec(given["spec"]) == job.spec
    assert read_plan(given["plan"]) == job.plan
    assert read_spec({"command": ("true",), "time_limit": timedelta(minutes=1)}).time_limit_seconds == 60.0


def rule(text: str) -> str:
    return "key: k\nspec: {command: [a]}\nplan:\n  rules:\n    - {name: r, " + text + "}\n"


def spec(text: str) -> str:
    return "key: k\nspec:\n  command: [a]\n  " + text + "\n"


DURATIONS = "write it like 90s, 10m, 2h, 1d 12h or PT2H"
UP_TO_HERE = "check the indentation, brackets and quotes up to here"
SIZES = "write it like 512M, 16GiB or 2T"
SPEC_FIELDS = (
    "command, working_directory, time_limit, signal_before_limit, memory, queue, exclude, environment,"
    " secret_environment, options"
)

MISTAKES = {
    # the whole
    "empty": ("", "1: it is empty; a job needs at least key and spec"),
    "only a comment": ("# nothing\n", "1: it is empty; a job needs at least key and spec"),
    "a text": ("run it\n", '1: it is "run it"; write a mapping of key, scheduler, spec, plan'),
    "a list": ("- a\n", "1: it is a list; write a mapping of key, scheduler, spec, plan"),
    "no spec": ("key: k\n", "1: spec is missing; add it"),
    "no key": ("spec: {command: [a]}\n", "1: key is missing; add it"),
    "a tab": ("key: k\nspec:\n\tcommand: [a]\n", "3: there is a tab; YAML is indented and spaced with spaces only"),
    "a second document": (
        spec("queue: q") + "---\nkey: b\n",
        "5: a second document begins; keep one of them in the file",
    ),
    "an alias": ("key: &a k\nspec: *a\n", "2: aliases are not read; write the value out"),
    "a tag": (
        "key: !!python/name:os.system k\n",
        "1: key: the tag !!python/name:os.system is not read here; leave it out",
    ),
    "an open bracket": (
        "key: k\nspec: {command: [a\n",
        f"3: it is not YAML: expected ',' or ']', but got '<stream end>'; {UP_TO_HERE}",
    ),
    "a bad escape": (
        'key: "\\q"\n',
        f"1: it is not YAML: found unknown escape character 'q'; {UP_TO_HERE}",
    ),
    "a control character": (
        "key: k\nspec: \x07\n",
        "2: the character U+0007 is not allowed; write it as an escape in quotes",
    ),
    "half a character": (
        'key: "\\ud800"\nspec: {command: [a]}',
        "1: key: it holds half a character, which cannot be stored; write it as UTF-8",
    ),
    "too deep": (
        "[" * 30,
        f"1: it is not YAML: expected the node content, but found '<stream end>'; {UP_TO_HERE}",
    ),
    "a list as a name": ("? [a]\n: b\n", "1: a field is named by a list or a mapping; names are text"),
    "twice": ("key: k\nspec: {command: [a]}\nkey: l\n", "3: key is given twice, first in line 1; keep one of them"),
    "twice, inside": (spec("queue: a\n  queue: b"), "5: spec: queue is given twice, first in line 4; keep one of them"),
    # the key
    "an empty key": ('key: ""\nspec: {command: [a]}', "1: key: it has 0 characters; a key has 1 to 250"),
    "a long key": (f"key: {'k' * 251}\nspec: {{command: [a]}}", "1: key: it has 251 characters; a key has 1 to 250"),
    "an escape in the key": (
        'key: "a\\eb"\nspec: {command: [a]}',
        "1: key: it holds a character that cannot be printed; leave it out",
    ),
    "a number as key": (
        "key: 7\nspec: {command: [a]}",
        '1: key: text is needed, and this is the number 7; quote it: "7"',
    ),
    "yes": ("key: yes\n", '1: key: YAML reads yes as a boolean; quote it: "yes", or write true or false'),
    "a date": ("key: 2026-01-31\n", '1: key: YAML reads 2026-01-31 as a date; quote it: "2026-01-31"'),
    "nothing": ("key:\nspec: {command: [a]}", "1: key: it has no value; give it one, or leave it out"),
    "an unknown field": ("key: k\nspecs: {}\n", "2: specs: there is no such field; did you mean spec?"),
    # the spec
    "an unknown field of spec": (spec("gpus: 2"), f"4: spec.gpus: there is no such field; there are {SPEC_FIELDS}"),
    "a misspelt field": (spec("time_limt: 2h"), "4: spec.time_limt: there is no such field; did you mean time_limit?"),
    "a command as text": (
        'key: k\nspec:\n  command: python train.py --seed 1 "a b"\n',
        "3: spec.command: it is one text, and no shell splits it;"
        ' write a list: command: [python, train.py, "--seed", "1", "a b"]',
    ),
    "a number in the command": (
        "key: k\nspec:\n  command:\n    - sleep\n    - 1.10\n",
        '5: spec.command[1]: text is needed, and this is the number 1.10; quote it: "1.10"',
    ),
    "an empty command": (
        "key: k\nspec: {command: []}\n",
        "2: spec.command: the command is empty; name the program to run",
    ),
    "sexagesimal": (
        spec("time_limit: 1:30"),
        '4: spec.time_limit: YAML reads 1:30 as a number, and not everywhere as the same; quote it: "1:30"',
    ),
    "a clock as duration": (spec('time_limit: "1:30"'), f"4: spec.time_limit: '1:30' is no duration; {DURATIONS}"),
    "octal": (
        spec("environment: {MODE: 0644}"),
        '4: spec.environment.MODE: YAML reads 0644 as a number, and not everywhere as the same; quote it: "0644"',
    ),
    "a number in the environment": (
        spec("environment: {SEED: 1}"),
        '4: spec.environment.SEED: text is needed, and this is the number 1; quote it: "1"',
    ),
    "on in the environment": (
        spec("environment:\n    DEBUG: on"),
        '5: spec.environment.DEBUG: YAML reads on as a boolean; quote it: "on", or write true or false',
    ),
    "true in the environment": (
        spec("environment: {DEBUG: true}"),
        '4: spec.environment.DEBUG: text is needed, and this is the boolean true; quote it: "true"',
    ),
    "an environment as list": (
        spec("environment: [A=1]"),
        "4: spec.environment: it is a list; write a mapping, like {NAME: ...}",
    ),
    "a bad variable": (
        spec('environment: {A-B: "1"}'),
        "4: spec.environment.A-B: 'A-B' is not a name that an environment variable can have",
    ),
    "a negative limit": (spec("time_limit: -2h"), f"4: spec.time_limit: '-2h' is negative; {DURATIONS}"),
    "no limit": (spec("time_limit: 0"), "4: spec.time_limit: time_limit is 0.0; it must be above 0"),
    "a month": (
        spec("time_limit: P1M"),
        "4: spec.time_limit: 'P1M' counts months or years, which are not equally long; write days, like P30D",
    ),
    "an endless limit": (
        spec("time_limit: 99999d"),
        "4: spec.time_limit: '99999d' is longer than 3650 days; write a shorter one",
    ),
    "a list as limit": (
        spec("time_limit: [1]"),
        f"4: spec.time_limit: a duration is needed, and this is a list; {DURATIONS}",
    ),
    "memory without unit": (
        spec("memory: 16"),
        f"4: spec.memory: a size is needed, and this is the number 16; {SIZES}",
    ),
    "memory in words": (spec("memory: lots"), f"4: spec.memory: 'lots' is no size; {SIZES}"),
    "no memory": (spec("memory: 0M"), "4: spec.memory: memory is 0; it must be above 0"),
    "no such signal": (
        spec("time_limit: 2h\n  signal_before_limit: USR9"),
        '5: spec.signal_before_limit: "USR9" is no signal; USR1 would be one',
    ),
    "a warning of nothing": (
        spec("signal_before_limit: USR1"),
        "4: spec.signal_before_limit: there is no time limit to warn of; add time_limit",
    ),
    "a warning too early": (
        spec("time_limit: 30s\n  signal_before_limit: {signal: USR1, seconds: 60}"),
        "5: spec.signal_before_limit: it comes before the run begins; make it less than time_limit",
    ),
    "a secret as it is": (
        spec("secret_environment: {TOKEN: hunter2}"),
        "4: spec.secret_environment.TOKEN: it is text; write where it is read from:"
        " {variable: NAME}, {file: PATH} or {connection: ID}",
    ),
    "a secret from two": (
        spec("secret_environment: {TOKEN: {variable: A, file: /b}}"),
        "4: spec.secret_environment.TOKEN: name one source of the secret:"
        " {variable: NAME}, {file: PATH} or {connection: ID}",
    ),
    "a secret's file that moves": (
        spec("secret_environment: {TOKEN: {file: token.txt}}"),
        "4: spec.secret_environment.TOKEN.file: the path is not absolute, and a supervisor may run anywhere;"
        " begin it with /",
    ),
    # the plan
    "a negative budget": (
        rule("when: {cause: exit}, do: resubmit, budget: -1"),
        "5: plan.rules[0].budget: a budget cannot be negative, and this is -1; write how often the rule may be used",
    ),
    "half a budget": (
        rule("when: {cause: exit}, do: resubmit, budget: 1.5"),
        "5: plan.rules[0].budget: a whole number is needed, and this is the number 1.5",
    ),
    "a budget of yes": (
        rule("when: {cause: exit}, do: resubmit, budget: true"),
        "5: plan.rules[0].budget: a whole number is needed, and this is the boolean true",
    ),
    "rules as a mapping": (
        "key: k\nspec: {command: [a]}\nplan: {rules: {name: r}}\n",
        "3: plan.rules: it is a mapping; write a list, like [a, b]",
    ),
    "a rule without do": (rule("when: {cause: exit}"), "5: plan.rules[0]: do is missing; add it"),
    "no such action": (
        rule("when: {cause: exit}, do: restart"),
        '5: plan.rules[0].do: "restart" is not known here; write one of resubmit, requeue, hold, fail, succeed',
    ),
    "no such cause": (
        rule("when: {cause: node_fail}, do: fail"),
        '5: plan.rules[0].when.cause: "node_fail" is not known here; did you mean node_failure?',
    ),
    "our own stop": (
        rule("when: {cause: stopped}, do: fail"),
        "5: plan.rules[0].when.cause: the rule can never match: no rule is asked about stopped; leave it out",
    ),
    "no such exit code": (
        rule("when: {exit_code: [1, 300]}, do: fail"),
        "5: plan.rules[0].when.exit_code[1]: the rule can never match: 300 is no exit code; they go from 0 to 255",
    ),
    "no such signal number": (
        rule("when: {signal: 99}, do: fail"),
        "5: plan.rules[0].when.signal: the rule can never match: 99 is no signal; they go from 1 to 64",
    ),
    "signal and exit code": (
        rule("when: {signal: 9, exit_code: 1}, do: fail"),
        "5: plan.rules[0].when.signal: rule 'r' can never match: a run ends by a signal or with an exit code",
    ),
    "an exit code of a signal": (
        rule("when: {cause: signal, exit_code: 1}, do: fail"),
        "5: plan.rules[0].when.exit_code: rule 'r' can never match: such an end has no exit code but 0",
    ),
    "an end and a wait": (
        rule("when: {cause: exit, pending_longer_than: 1h}, do: fail"),
        "5: plan.rules[0].when: rule 'r' can never match: it asks for an end and for a run that has not ended",
    ),
    "no condition": (
        rule("when: {}, do: fail"),
        "5: plan.rules[0].when: rule 'r' has no condition; say when it applies",
    ),
    "in the shade of another": (
        rule("when: {cause: exit}, do: fail") + "    - {name: s, when: {cause: exit, exit_code: 3}, do: resubmit}\n",
        "6: plan.rules[1]: rule 's' can never match: 'r', above it, takes all that it would",
    ),
    "two of a name": (
        rule("when: {cause: exit}, do: resubmit") + "    - {name: r, when: {cause: signal}, do: resubmit}\n",
        "6: plan.rules[1].name: two rules are named 'r'; budgets are counted by name",
    ),
    "a pattern": (
        rule('when: {message: "(a"}, do: fail'),
        "5: plan.rules[0].when.message: it is not a regular expression: missing ), unterminated subpattern at"
        " position 0; escape what is meant as it stands",
    ),
    "a delay of a hold": (
        rule("when: {cause: exit}, do: hold, delay: 10s"),
        "5: plan.rules[0].delay: rule 'r' does hold, which has no delay",
    ),
    "a shrinking delay": (
        rule("when: {cause: exit}, do: resubmit, delay: {first: 1s, factor: 0.5}"),
        "5: plan.rules[0].delay: the delay of 'r' needs seconds and cap from 0, factor from 1, jitter from 0 to 1",
    ),
    "a delay without first": (
        rule("when: {cause: exit}, do: resubmit, delay: {factor: 2}"),
        "5: plan.rules[0].delay: first is missing; add it",
    ),
    "a factor of nothing": (
        rule("when: {cause: exit}, do: resubmit, changes: {memory_factor: 0}"),
        "5: plan.rules[0].changes.memory_factor: it is the number 0; a factor is above 0 and at most 1000",
    ),
    "off as a policy": (
        "key: k\nspec: {command: [a]}\nplan: {unmatched: off}\n",
        '3: plan.unmatched: YAML reads off as a boolean; quote it: "off", or write true or false',
    ),
}


@pytest.mark.parametrize(("text", "line"), MISTAKES.values(), ids=MISTAKES)
def test_each_mistake_gets_its_line(text: str, line: str) -> None:
    with pytest.raises(BadInput) as raised:
        read_job(text, "job.yaml")
    assert str(raised.value) == f"job.yaml:{line}"


def test_an_engines_mistake_names_its_field() -> None:
    with pytest.raises(BadInput, match=r"^spec\.time_limit: '2 ours' is no duration; write it like"):
        read_spec({"command": ["a"], "time_limit": "2 ours"})
    with pytest.raises(BadInput, match=r"^plan\.rules\[0\]\.budget: a budget cannot be negative"):
        read_plan({"rules": [{"name": "r", "when": {"cause": "exit"}, "do": "resubmit", "budget": -1}]})
    with pytest.raises(BadInput, match=r"^spec\.command: the command is empty"):
        read_spec({"command": []})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2h", 7200), ("90s", 90), ("1d 12h", 129600), ("1d12h", 129600), ("10m", 600), ("PT90S", 90),
        ("P1DT2H", 93600),
        ("1.5h", 5400), ("500ms", 0.5), ("2 hours, 5 minutes", 7500), ("1w", 604800), (5, 5), (0, 0), (2.5, 2.5),
        ("45", 45),
        (timedelta(hours=1), 3600),
    ],
)  # fmt: skip
def test_durations(text: Any, seconds: float) -> None:
    assert read_seconds(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "h", "2x", "2h 2h", "1:30", "P", "P1M", "P1Y", "-1s", "-PT1S", "1e5", "nan", "2026-01-01", -1, float("nan"),
     float("inf"), 10**400, True, None, [1], timedelta(seconds=-1), "9" * 5000],
)  # fmt: skip
def test_what_is_no_duration(text: Any) -> None:
    with pytest.raises(BadInput):
        read_seconds(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("512M", 512 * 2**20), ("512MiB", 512 * 2**20), ("512MB", 512 * 10**6), ("16 GiB", 2**34), ("1.5g", 3 * 2**29),
     ("2T", 2**41), ("100B", 100)],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert read_bytes(text) == size


@pytest.mark.parametrize("text", ["", "16", "iB", "5iB", "M", "1 2M", "-1M", "1X", "99999999T"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(BadInput):
        read_bytes(text)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0s"), (0.2, "0.2s"), (59, "59s"), (61, "1m 1s"), (3600, "1h"), (90061, "1d 1h"), (86460, "1d")],
)  # fmt: skip
def test_durations_as_they_are_said(seconds: float, said: str) -> None:
    assert say_seconds(seconds) == said


def test_what_stands_in_a_file_is_in_no_repr_of_it() -> None:
    assert "written" not in repr(read_job(WHOLE, "job.yaml"))
