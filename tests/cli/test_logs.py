"""`dispatch logs` on the local scheduler: whole, the last lines, followed, and what is said beside it."""

import asyncio
import signal
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dispatch_core.adapters import logs
from dispatch_core.adapters.contract import Job, Log, Piece, Target
from dispatch_core.evidence import Listing, Sighting
from dispatch_core.record import Record, State
from tests.cli.conftest import Cli
from tests.cli.test_edges import outside

AGAIN = """plan:
  rules:
    - name: again
      when: {cause: exit}
      do: resubmit
      budget: 1
"""


def is_running(record: Record) -> bool:
    return any(object.state is State.RUNNING for object in record.objects)


def log_of(cli: Cli, name: str = "stdout") -> Path:
    (file,) = cli.home.rglob(name)
    return file


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LOOK_SECONDS", 0.5)


def test_the_last_lines(cli: Cli) -> None:
    cli("run", cli.job("k", "seq 5; printf 'no end'; seq 100 103 >&2"))
    assert cli("logs", "k").out == "1\n2\n3\n4\n5\nno end100\n101\n102\n103\n"
    assert cli("logs", "k", "--tail", "2").out == "5\nno end102\n103\n"
    assert cli("logs", "k", "--tail", "0").out == ""
    assert cli("logs", "k", "--tail", "99").out == cli("logs", "k").out
    assert cli("logs", "k", "--tail", "1", "-o", "json").json["text"] == "no end103\n"
    assert cli("logs", "k", "--tail", "-1").code == 2


def test_it_is_followed_until_its_end(cli: Cli) -> None:
    cli("submit", cli.job("k", "echo early; echo begun; sleep 2; echo late; echo error >&2"))
    cli.supervise_until("k", is_running)
    began = time.monotonic()
    ran = cli("logs", "k", "-f", "--tail", "1")
    assert (ran.code, ran.out, ran.err) == (0, "begun\nlate\nerror\n", "")
    assert 1 < time.monotonic() - began < 15


def test_a_later_run_is_told_and_not_followed(cli: Cli) -> None:
    cli("run", cli.job("k", 'echo "submission $DISPATCH_SUBMISSION"; exit 3', AGAIN))
    ran = cli("logs", "k", "--submission", "1", "--follow")
    assert ran.out == "submission 1\n"
    assert ran.err.endswith(" has ended, and submission 2 has followed: dispatch logs k\n")
    ran = cli("logs", "k", "--follow")
    assert (ran.out, ran.err) == ("submission 2\n", "")


def test_what_is_not_there_is_said(cli: Cli) -> None:
    cli("submit", cli.job("k", "true"))
    cli("hold", "k", "--reason", "later")
    cli.supervise_until("k", lambda record: bool(record.objects) and record.submissions[0].canonical is not None)
    ran = cli("logs", "k")
    assert (ran.code, ran.out, ran.err.count("\n")) == (0, "", 1)
    assert "has not begun; there is no log yet" in ran.err
    following = outside(cli, "logs", "k", "-f")
    assert following.stderr is not None
    assert "has not begun" in following.stderr.readline()
    following.send_signal(signal.SIGINT)
    assert following.communicate(timeout=20) == ("", "")
    assert following.returncode == 130
    assert cli("logs", "k", "-f", "-o", "json").code == 2


def test_a_log_that_was_removed_is_said(cli: Cli) -> None:
    cli("run", cli.job("k", "echo hello"))
    file = log_of(cli)
    file.unlink()
    ran = cli("logs", "k")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.endswith(f" wrote to {file}, which was removed, or cannot be read from here\n")
    assert cli("logs", "k", "-f").err.count("\n") == 1


def test_a_large_log_arrives_whole(cli: Cli) -> None:
    """Also as JSON, where characters lie across the pieces that it is read in."""
    cli("run", cli.job("k", "printf 'é\\n'"))
    text = "xé\x7f\x1b\n" * 500_000
    log_of(cli).write_text(text)
    assert cli("logs", "k", "-o", "json").json["text"] == text
    assert cli("logs", "k").out == text


def test_a_reader_that_has_enough_ends_it(cli: Cli) -> None:
    cli("submit", cli.job("k", "while echo line; do sleep 0.1; done"))
    cli.supervise_until("k", is_running)
    following = outside(cli, "logs", "k", "-f", stdout=subprocess.PIPE)
    assert following.stdout is not None
    assert following.stdout.readline() == "line\n"
    following.stdout.close()
    assert following.stderr is not None
    with following.stderr as err:
        assert err.read() == ""
    assert following.wait(timeout=20) == 141
    cli("cancel", "k", "--wait")


class Growing:
    """A run whose log is what a test says; how often it was asked is counted."""

    def __init__(self, data: bytes) -> None:
        self.data, self.asked, self.largest, self.ended = data, 0, 0, False

    async def read_log(self, target: Target, stream: int, begin: int, length: int) -> Piece:
        self.asked += 1
        self.largest = max(self.largest, length)
        if stream == 2:
            return Piece(log=Log.SHARED)
        return Piece(log=Log.THERE, data=self.data[begin : begin + length], size=len(self.data), path="/log")

    async def find(self, job: Job) -> Listing:
        state = State.ENDED if self.ended else State.RUNNING
        now = datetime.now(UTC)
        return Listing(objects=(Sighting(id="o", name="o", key="k", state=state),), began=now, ended=now)


def follow(run: Growing, change: list[tuple[float, bytes | None]], **options: object) -> tuple[bytes, list[str]]:
    """What is shown while the log becomes this after so many seconds; None: the run ends."""

    async def work() -> tuple[bytes, list[str]]:
        told: list[str] = []

        async def changes() -> None:
            for seconds, data in change:
                await asyncio.sleep(seconds)
                run.data, run.ended = (run.data, True) if data is None else (data, run.ended)

        changing = asyncio.create_task(changes())
        target = Target(id="o", name="o", run=1)
        pieces = logs.written(run, Job(key="k", uid="u"), target, told.append, follow=True, **options)  # type: ignore
        shown = b"".join([piece async for piece in pieces])
        await changing
        return shown, told

    return asyncio.run(work())


def test_a_log_that_became_shorter_is_shown_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LOOK_SECONDS", 0.1)
    shown, told = follow(Growing(b"first\nlines\n"), [(0.3, b"new\n"), (0.3, None)], seconds=0.05)
    assert shown == b"first\nlines\nnew\n"
    assert told == ["the log became shorter; it is shown from its beginning"]


def test_who_follows_reads_no_more_often_than_agreed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LOOK_SECONDS", 0.4)
    run = Growing(b"")
    shown, _ = follow(run, [(0.02, b"x" * number) for number in range(1, 40)] + [(0.0, None)], seconds=0.2)
    assert shown == b"x" * 39
    assert run.asked < 15
    assert run.largest <= logs.CHUNK


def test_the_last_lines_of_a_large_log_are_looked_for_from_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "CHUNK", 10)
    data = b"".join(b"line %d\n" % number for number in range(1000))
    for lines in (1, 2, 3, 50):
        run = Growing(data)
        run.ended = True
        shown, _ = follow(run, [], last_lines=lines)
        assert shown == b"".join(data.splitlines(keepends=True)[-lines:])
    monkeypatch.setattr(logs, "LOOKED_BACK", 100)
    run = Growing(b"x" * 5000)
    run.ended = True
    assert follow(run, [], last_lines=3)[0] == b"x" * 100
