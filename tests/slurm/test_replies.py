"""What a call's reply is made of, from what Slurm's commands print: without a cluster."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from dispatch_core.adapters.contract import Target
from dispatch_core.adapters.slurm.cluster import SlurmCluster
from dispatch_core.adapters.slurm.scheduler import SlurmScheduler
from dispatch_core.adapters.slurm.transport import Finished
from dispatch_core.record import Answer

NAME = "dispatch-0123456789abcdef-1-1"
UNKNOWN_JOB = "scancel: error: Kill job error on job id 5: Invalid job id specified"


class Says:
    """A host whose guard got as far as its command, which ended with 1 and this text."""

    def __init__(self, text: str) -> None:
        self.text = text

    async def run(self, script: str, seconds: float) -> Finished:
        found = re.search("dispatch-[0-9a-f]{16}(?= )", script)
        assert found is not None
        return Finished(1, f"\n{found[0]} began 1\n\n{found[0]} did 1 2\n{self.text}".encode(), b"")

    async def close(self) -> None:
        pass


def scheduler(text: str) -> SlurmScheduler:
    return SlurmScheduler(SlurmCluster(name="alps"), Says(text))


async def test_one_job_that_is_refused_does_not_say_that_nothing_was_stopped() -> None:
    reply = await scheduler(UNKNOWN_JOB).stop_job((NAME,), datetime.now(UTC))
    assert (reply.answer, "Invalid job id" in reply.text) == (Answer.UNKNOWN, True)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (UNKNOWN_JOB, Answer.REFUSED),
        ("scancel: error: Kill job error on job id 5: Socket timed out on send/recv operation", Answer.UNKNOWN),
        ("Unexpected message received for job 5", Answer.UNKNOWN),
        ("", Answer.UNKNOWN),
    ],
)
async def test_a_stop_of_one_object(text: str, answer: Answer) -> None:
    reply = await scheduler(text).stop(Target(id=f"5:{NAME}", name=NAME, run=1), datetime.now(UTC))
    assert reply.answer is answer
