"""The demo, ended early: at whatever moment, by Ctrl-C or SIGTERM, it leaves no program and no file."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dispatch_core.environments import Environment

ENDING_SECONDS = 60.0


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    """The demo, which puts everything that it makes into this folder, and itself into a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "dispatch_core", "demo", *options],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def left(folder: Path) -> list[str]:
    """What is alive and has this folder in its environment, and what is in the folder."""
    found = [str(path) for path in folder.iterdir()]
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            environment = Path(f"/proc/{name}/environ").read_bytes()
        except OSError:
            continue
        if os.fsencode(folder) in environment and int(name) != os.getpid():
            found.append(name)
    return found


def end_early(folder: Path, seconds: float, number: signal.Signals) -> tuple[int, str, str]:
    """End the demo so long after it began to make something, and wait until nothing of it is left; what it said."""
    with start(folder, "-o", "json") as demo:
        wait("it has begun", lambda: any(folder.iterdir()))
        time.sleep(seconds)
        demo.send_signal(number)
        out, err = demo.communicate(timeout=ENDING_SECONDS)
    wait(f"nothing is left after {number.name} at {seconds:.1f} s; {err}", lambda: not left(folder))
    return demo.returncode, out, err


def wait(what: str, condition: Callable[[], bool]) -> None:
    until = time.monotonic() + ENDING_SECONDS
    while not condition():
        assert time.monotonic() < until, f"waited in vain until {what}"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("seconds", "number"), [(0.0, signal.SIGINT), (1.0, signal.SIGTERM), (6.0, signal.SIGKILL), (14.0, signal.SIGINT)]
)
def test_ended_during_start_up_it_leaves_nothing(
    engine: Environment, tmp_path: Path, seconds: float, number: signal.Signals
) -> None:
    code, out, err = end_early(tmp_path, seconds, number)
    if number is signal.SIGKILL:
        assert code == -number
        return
    assert code == 130, err
    assert (json.loads(out)["ok"], json.loads(out)["problem"]) == (False, "interrupted")
    assert "Traceback" not in err


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_ended_at_any_moment_it_leaves_nothing(engine: Environment, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    number = dice.choice([signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    end_early(tmp_path, dice.uniform(0.0, 120.0), number)


@pytest.mark.long
def test_the_demo_shows_what_it_is_for(engine: Environment, tmp_path: Path) -> None:
    with start(tmp_path, "-o", "json") as demo:
        out, err = demo.communicate(timeout=420.0)
    told = json.loads(out)
    assert (demo.returncode, told["ok"]) == (0, True), err
    assert all(check["held"] for check in told["checks"])
    assert left(tmp_path) == []
