"""Whatever stands in a job file, or is given by an engine, is read or refused; nothing else is ever raised."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.errors import BadInput
from dispatch_core.jobfile import read_job, read_plan, read_spec
from dispatch_core.record import Record, decode, encode

NAMES = st.sampled_from(
    [
        *("key", "scheduler", "spec", "plan", "command", "time_limit", "memory", "environment", "secret_environment"),
        *("options", "signal_before_limit", "rules", "name", "when", "do", "budget", "delay", "changes", "cause"),
        *("exit_code", "signal", "message", "shorter_than", "first", "factor", "cap", "jitter", "variable", "file"),
        *("memory_factor", "memory_cap", "exclude", "queue", "unmatched", "foreign"),
    ]
)
WORDS = st.sampled_from(
    [
        *("local", "exit", "node_failure", "resubmit", "requeue", "hold", "fail", "manual", "report", "2h", "PT5S"),
        *("-1s", "16GiB", "USR1", "yes", "~", "(a", "a{99999999999}", "[[:x:]]", "\ud800", "1:30", "2026-01-01"),
    ]
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), WORDS)
JUNK = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(NAMES, st.text(max_size=5)), inner, max_size=5)
    ),
    max_leaves=15,
)
STRANGE = st.one_of(
    JUNK, st.binary(max_size=3), st.sets(st.integers(), max_size=2), st.dictionaries(st.integers(), JUNK)
)


def reads_or_refuses(text: str) -> bool:
    """Whether what is read can be stored and read back, or is refused in one line with its place."""
    try:
        job = read_job(text, "job.yaml")
    except BadInput as error:
        return str(error).startswith("job.yaml:") and "\n" not in str(error)
    record = Record(key=job.key, uid="0f3a9c21b7d4e865", scheduler=job.scheduler, spec=job.spec, plan=job.plan)
    return decode(encode(record)) == record


@given(JUNK)
def test_no_junk_mapping_raises_anything_but_bad_input(junk: Any) -> None:
    assert reads_or_refuses(yaml.safe_dump(junk, allow_unicode=True))
    assert reads_or_refuses(yaml.safe_dump({"key": "k", "spec": {"command": ["a"]}, "plan": junk}))
    assert reads_or_refuses(yaml.safe_dump({"key": "k", "spec": junk}))


@given(st.text(alphabet=st.sampled_from("ab:-?![]{}&*#|>%@'\"\\,\t\n ~0.1<=\ud800\x00é")))
def test_no_junk_text_raises_anything_but_bad_input(text: str) -> None:
    assert reads_or_refuses(text)


@given(st.dictionaries(st.one_of(NAMES, st.text(max_size=5)), STRANGE, max_size=6))
def test_no_junk_of_an_engine_raises_anything_but_bad_input(junk: Any) -> None:
    for read in (read_spec, read_plan):
        with warnings.catch_warnings(), suppress(BadInput):
            warnings.simplefilter("error")
            read(junk)
    with suppress(BadInput):
        read_spec({"command": ["a"], **junk})
    with suppress(BadInput):
        read_plan({"rules": [{"name": "r", "when": junk, "do": "resubmit"}]})
    with suppress(BadInput):
        read_plan({"rules": [{"name": "r", "when": {"cause": "exit"}, "do": "resubmit", **junk}]})
