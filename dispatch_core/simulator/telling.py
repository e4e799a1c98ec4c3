"""A simulated history in the language of `tests/histories`: its trace as commands that lead to the same record.

One rule: nothing is told but what happened, in its order and at its times, to the millisecond. What changed nothing is
left out: passes that commit and send nothing, reads while waiting, leases while nobody is displaced.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from dispatch_core.simulator.history import Told
from dispatch_core.simulator.sentences import Sentences
from dispatch_core.simulator.trace import Event
from dispatch_core.simulator.voices import Voices
from dispatch_core.simulator.wording import job_lines, seconds
from dispatch_core.simulator.world import World

WIDTH = 118
GAP_SECONDS = 3.0
"""After so long a block of commands ends, and its steps are shown."""
SHORT_SECONDS = 1.0
"""A shorter time that passes before a sentence that no clock has a part in is told with the next sentence."""
BLOCK = 4
"""The shortest block."""


def history(told: Told, law: str | None = None, removed: tuple[str, ...] = ()) -> str:
    """The text of a history, up to where it breaks this law; without a law, the whole of it."""
    assert told.world is not None  # noqa: S101 - whoever asks has just run it
    broken = next((v for v in told.violations if v.law == law), None)
    trace = told.world.trace
    if broken is not None:
        trace = [event for event in trace if event.at <= broken.at]
    without = f", without {', '.join(removed)}" if removed else ""
    says = f": the law {broken.law} is broken: {broken.text}" if broken is not None else ""
    header = textwrap.wrap(f"Seed {told.seed}{without}{says}.", WIDTH)
    return "\n".join([*(f"# {line}" for line in header), *commands(told.world, trace)]) + "\n"


def commands(world: World, trace: Sequence[Event]) -> Iterator[str]:
    """The commands of a history that was simulated in this world."""
    sentences = Sentences()
    Voices(sentences, world.bounds).hear(trace)
    first = world.revision(1)
    yield from job_lines(first.spec, first.plan, world.bounds, world.capabilities)
    now, block = 0, 1
    for said in sentences.told():
        at = round(said.at * 1000)
        if at > now and not (said.timeless and at - now < SHORT_SECONDS * 1000):
            if at - now >= GAP_SECONDS * 1000 and block >= BLOCK:
                yield ""
                block = 0
            yield f"time +{seconds((at - now) / 1000)}"
            now, block = at, block + 1
        yield said.text
        block += 1
        now += said.lasts
