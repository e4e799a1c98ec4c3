"""What the command line and the pages say in the same words: a rule, a call, where a secret comes from.

One rule: it words a value and judges nothing; times are printed by whoever asks, in their own zone.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from dispatch_core.amounts import say_seconds
from dispatch_core.plan import Rule
from dispatch_core.record import Kind
from dispatch_core.turn import Send, Start


def rule_words(rule: Rule) -> str:
    """A rule in a line: what it does, when, how often."""
    when = rule.when
    told = [f"cause {' or '.join(when.cause)}"] if when.cause else []
    told += [f"exit code {' or '.join(map(str, when.exit_code))}"] if when.exit_code else []
    told += [f"signal {' or '.join(map(str, when.signal))}"] if when.signal else []
    told += [f"message matches {when.message!r}"] if when.message is not None else []
    for name in ("shorter_than", "pending_longer_than", "no_progress_for"):
        seconds = getattr(when, f"{name}_seconds")
        told += [f"{name.replace('_', ' ')} {say_seconds(seconds)}"] if seconds is not None else []
    often = "without limit" if rule.limit is None else f"{rule.limit} time{'' if rule.limit == 1 else 's'}"
    delay = f", after {say_seconds(rule.delay.seconds)}" if rule.delay.seconds else ""
    return f"{rule.do} on {' and '.join(told)}, {often}{delay}"


def call_words(call: Start | Send, say: Callable[[datetime], str]) -> str:
    """A call in a few words, with the time after which the scheduler's host refuses it."""
    if isinstance(call, Start):
        return f"start attempt {call.submission}.{call.attempt}, until {say(call.deadline)}"
    what = "the whole job" if call.call.kind is Kind.STOP_JOB else f"{call.call.object}, run {call.call.run}"
    kind = "stop" if call.call.kind is Kind.STOP_JOB else call.call.kind
    return f"{kind} {what}, until {say(call.call.deadline)}"
