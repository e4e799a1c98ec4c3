"""Scripts on this machine: they arrive whole or not at all, with few variables, and nothing outlives its time."""

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dispatch_core.adapters.slurm import transport
from dispatch_core.adapters.slurm.transport import INHERITED, LocalTransport, Lost, whole
from dispatch_core.errors import SchedulerUnavailable

PATIENCE = 60.0
"""Seconds that a test waits for what takes a moment."""

AWKWARD = {
    "quotes": """it's "quoted" and `ticked` ''' \"\"\" """,
    "shell": r"$HOME $(id) ${x:-y} \ \\ \n %s !! * ? [a-z] ~ # & | ; < > ( ) { }",
    "lines": "one\n\n\ttwo\r\n  three, four,, five\n",
    "dashes": "-n\n--help\n-- -e -",
    "signs": "Zoë, Łódź, 東京, 🚀, \u00a0, \u2028, \x01\x07\x1b[31m\x7f",
    "end": "}\nexit 7\ndispatch_script\nEOF\n",
    "a megabyte": "0123456789 abcde\n" * 2**16,
}


def copying(text: str) -> str:
    """A script that prints the text, which it holds as a here-document behind a line of quotes."""
    return f"set -eu\nx='it'\\''s'\ncat <<'THE_TEXT_ENDS'\n{text}\nTHE_TEXT_ENDS\nprintf '%s' \"$x\"\n"


def alive(pid: int) -> bool:
    """Whether it still runs; what has ended, and nobody has looked at, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def number_in(file: Path) -> int:
    """A pid that a script writes down."""
    until = time.monotonic() + PATIENCE
    while not (text := written(file)).endswith("\n"):
        assert time.monotonic() < until, f"{file} was not written"
        await asyncio.sleep(0.01)
    return int(text)


def written(file: Path) -> str:
    return file.read_text() if file.exists() else ""


async def ended(pid: int) -> bool:
    until = time.monotonic() + PATIENCE
    while alive(pid) and time.monotonic() < until:
        await asyncio.sleep(0.01)
    return not alive(pid)


@pytest.fixture
async def local() -> AsyncIterator[LocalTransport]:
    here = LocalTransport()
    yield here
    await here.close()


@pytest.mark.parametrize("text", AWKWARD.values(), ids=AWKWARD)
async def test_text_arrives_whole(local: LocalTransport, text: str) -> None:
    assert await local.run(copying(text), PATIENCE) == (0, f"{text}\nit's".encode(), b"")


async def test_what_a_script_leaves_behind(local: LocalTransport) -> None:
    assert await local.run("echo out; echo err >&2; exit 3", PATIENCE) == (3, b"out\n", b"err\n")
    assert (await local.run("kill -9 $$", PATIENCE)).code == -9
    assert (await local.run("cat", PATIENCE)).out == b"", "a script reads nothing of itself"


def test_a_script_that_is_cut_off_does_nothing(tmp_path: Path) -> None:
    """Or, cut within the last line, all of it."""
    script = whole(f"touch {tmp_path}/1\ntouch {tmp_path}/2")
    acting = script.index("\n}\n")
    for end in range(len(script)):
        subprocess.run(["/bin/sh"], input=script[:end].encode(), check=False, capture_output=True)
        done = {path.name for path in tmp_path.iterdir()}
        assert done == set() or (done == {"1", "2"} and end > acting), script[:end]
        for name in done:
            (tmp_path / name).unlink()


async def test_few_variables_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPATCH_BAIT", "a secret")
    monkeypatch.setenv("SLURM_CONF", "/elsewhere/slurm.conf")
    local = LocalTransport()
    lines = (await local.run("env", PATIENCE)).out.decode().splitlines()
    made_by_sh = {"PWD", "OLDPWD", "SHLVL", "_"}
    assert {line.partition("=")[0] for line in lines} - made_by_sh <= set(INHERITED)
    assert "SLURM_CONF=/elsewhere/slurm.conf" in lines
    assert f"PATH={os.environ['PATH']}" in lines

    chosen = LocalTransport({"PATH": "/bin:/usr/bin", "ONLY": "this"})
    assert b"ONLY=this" in (await chosen.run("env", PATIENCE)).out
    assert b"SLURM_CONF" not in (await chosen.run("env", PATIENCE)).out


@pytest.mark.parametrize("last", ["wait", "exit 0"], ids=["script-waits", "script-is-over"])
async def test_time_out_ends_all_that_was_started(local: LocalTransport, tmp_path: Path, last: str) -> None:
    file = tmp_path / "pid"
    with pytest.raises(Lost, match="no answer within 1 s"):
        await local.run(f"sleep 600 & echo $! >{file}\n{last}", 1)
    assert await ended(await number_in(file))


async def test_cancelling_ends_the_script(local: LocalTransport, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    run = asyncio.create_task(local.run(f"sleep 600 & echo $! >{file}; wait", PATIENCE))
    pid = await number_in(file)
    assert alive(pid)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert await ended(pid)


async def test_closing_gives_up_what_is_under_way(tmp_path: Path) -> None:
    local, file = LocalTransport(), tmp_path / "pid"
    run = asyncio.create_task(local.run(f"sleep 600 & echo $! >{file}; wait", PATIENCE))
    pid = await number_in(file)
    await local.close()
    assert await ended(pid)
    with pytest.raises(Lost):
        await run
    with pytest.raises(SchedulerUnavailable, match="closed"):
        await local.run(f"touch {tmp_path}/more", PATIENCE)
    assert not (tmp_path / "more").exists()


async def test_large_output(local: LocalTransport) -> None:
    finished = await local.run("head -c 30000000 /dev/zero; head -c 3000000 /dev/zero >&2", PATIENCE)
    assert (len(finished.out), len(finished.err)) == (30_000_000, 3_000_000)


async def test_many_at_once(local: LocalTransport) -> None:
    runs = await asyncio.gather(*(local.run(f"echo {number}", PATIENCE) for number in range(30)))
    assert [run.out for run in runs] == [f"{number}\n".encode() for number in range(30)]


async def test_no_shell_here(local: LocalTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(transport.asyncio, "create_subprocess_exec", refuse)
    with pytest.raises(SchedulerUnavailable, match="cannot be started here: no more"):
        await local.run("true", PATIENCE)
