"""Nothing outlives whoever opened a shelter: however that one ends, and whatever the programs in it do."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dispatch_core.demo.shelter import Shelter
from dispatch_core.errors import DispatchError

# Forks a child that leaves the session, forks again and ignores what can be ignored; all write their pids down.
STUBBORN = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
for depth in range(3):
    with open(sys.argv[1], "a") as file:
        file.write(f"{os.getpid()}\\n")
    if depth < 2 and os.fork() == 0:
        os.setsid()
    elif depth < 2:
        break
time.sleep(600)
"""

# Opens a shelter with one stubborn program in it, says where it is, and waits to be ended.
OPENER = """
import json, sys, time
from dispatch_core.demo.shelter import Shelter
with Shelter("dispatch-test-") as shelter:
    print(shelter.folder, flush=True)
    shelter.start("stubborn", [sys.executable, "-c", sys.argv[1], sys.argv[2]], {})
    time.sleep(600)
"""


def wait(condition: Callable[[], object], seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)


def written(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def start_stubborn(shelter: Shelter, name: str, pids: Path) -> list[int]:
    shelter.start(name, [sys.executable, "-c", STUBBORN, str(pids)], dict(os.environ))
    wait(lambda: len(written(pids)) == 3)
    return written(pids)


def test_close_ends_what_left_its_session_and_removes_the_folder(tmp_path: Path) -> None:
    with Shelter("dispatch-test-") as shelter:
        pids = start_stubborn(shelter, "stubborn", tmp_path / "pids")
        assert all(map(alive, pids))
        (shelter.folder / "deep").mkdir()
    assert not any(map(alive, pids))
    assert not shelter.folder.exists()
    shelter.close()


def test_a_crash_ends_one_session_and_no_other(tmp_path: Path) -> None:
    with Shelter("dispatch-test-") as shelter:
        one = shelter.start("one", ["sh", "-c", "sleep 600 & sleep 600"], {"PATH": os.environ["PATH"]})
        two = shelter.start("two", ["sleep", "600"], {"PATH": os.environ["PATH"]})
        shelter.crash("one")
        assert not alive(one)
        assert alive(two)
        assert shelter.ended() == {"one": -signal.SIGKILL}


def test_signals_reach_the_whole_session(tmp_path: Path) -> None:
    script = f"import os, time; os.fork(); open('{tmp_path}/' + str(os.getpid()), 'w').close(); time.sleep(600)"
    with Shelter("dispatch-test-") as shelter:
        shelter.start("both", [sys.executable, "-c", script], {})
        wait(lambda: len(list(tmp_path.iterdir())) == 2)
        pids = [int(path.name) for path in tmp_path.iterdir()]
        for number, state in ((signal.SIGSTOP, "T"), (signal.SIGCONT, "S")):
            shelter.signal("both", number)
            for pid in pids:
                wait(lambda pid=pid, state=state: f") {state}" in Path(f"/proc/{pid}/stat").read_text())


def test_a_program_that_fails_is_told_with_its_last_lines() -> None:
    with Shelter("dispatch-test-") as shelter:
        with pytest.raises(DispatchError, match=r"(?s)bad failed with exit code 3.*sorry"):
            shelter.run("bad", ["/bin/sh", "-c", "echo sorry; exit 3"], {}, 20)
        with pytest.raises(DispatchError, match="slow has not ended"):
            shelter.run("slow", ["/bin/sleep", "600"], {}, 0.2)
        with pytest.raises(DispatchError, match="none could not be started"):
            shelter.start("none", ["/nowhere"], {})


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_the_opener_ends_nothing_is_left(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OPENER, STUBBORN, str(tmp_path / "pids")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as opener:
        assert opener.stdout is not None
        folder = Path(opener.stdout.readline().strip())
        wait(lambda: len(written(tmp_path / "pids")) == 3)
        opener.send_signal(number)
        opener.wait(30)
    wait(lambda: not folder.exists() and not any(map(alive, written(tmp_path / "pids"))))


@pytest.mark.parametrize("at", range(0, 300, 20))
def test_an_opener_ended_at_any_moment_leaves_nothing(tmp_path: Path, at: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OPENER, STUBBORN, str(tmp_path / "pids")],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as opener:
        time.sleep(at / 1000)
        opener.send_signal(signal.SIGINT if at % 40 else signal.SIGTERM)
        opener.wait(30)
    # Whatever had begun goes on to its end: the folder, if it came to be, goes, and so does what ran in it.
    wait(lambda: not list(tmp_path.glob("dispatch-test-*")) and not any(map(alive, written(tmp_path / "pids"))))
