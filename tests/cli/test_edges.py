"""Hostile text, wrong usage, broken pipes, signals, secrets, and how quick help is."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from dispatch_core import errors
from dispatch_core.cli import exits
from dispatch_core.cli.screen import Screen, clean, json_text
from dispatch_core.cli.session import Session, is_current
from dispatch_core.stores.migrations import newest
from tests.cli.conftest import Cli

HOSTILE = "k[red]\u202e[/]"
"""Markup, and a character that turns the direction of what follows."""


def test_hostile_text_is_shown_as_text(cli: Cli) -> None:
    cli("submit", cli.job("k[red]x[/]", "true"))
    cli("hold", "k[red]x[/]", "--reason", "\x1b[31mred\x07\n[bold]")
    for command in (("ls",), ("status", "k[red]x[/]"), ("history", "k[red]x[/]"), ("explain", "k[red]x[/]")):
        ran = cli(*command)
        assert "\x1b" not in ran.out + ran.err
        assert "\x07" not in ran.out + ran.err
        assert "k[red]x[/]" in ran.out or command[0] == "history"
    assert "\\x1b[31mred\\x07\\n[bold]" in cli("status", "k[red]x[/]").out
    assert "\\x1b" in cli("status", "\x1b[31mk").err
    assert "\x1b" not in cli("status", "k[red]x[/]", "-o", "json").out


def test_what_cannot_be_printed_is_escaped() -> None:
    assert clean("a\x1b]0;t\x07\x9b\u202e\ud800\n") == r"a\x1b]0;t\x07\x9b\u202e\ud800\n"
    assert json_text({"a": "\x9b\x7f\u202eé"}).isascii()
    assert "\x7f" not in json_text("\x7f")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("statsu", "k"), "No such command 'statsu'"),
        (("status",), "Missing argument 'KEY'"),
        (("status", "k", "--frobnicate"), "No such option: --frobnicate"),
        (("hold", "k"), "Missing option '--reason'"),
        (("resolve", "k", "maybe"), "'maybe' is not"),
        (("status", "k", "-o", "xml"), "'xml' is not"),
        (("release", "k", "--revision", "0"), "--revision"),
    ],
)
def test_wrong_usage_is_one_line(cli: Cli, arguments: tuple[str, ...], text: str) -> None:
    ran = cli(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("dispatch: ")
    assert text in ran.err
    assert ran.err.count("\n") == 1


def test_wrong_usage_with_json(cli: Cli) -> None:
    ran = cli("status", "-o", "json")
    assert ran.json["error"]["exit_code"] == ran.code == 2


def test_what_is_unexpected_is_one_line_too(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(session: Session, key: str) -> int:
        raise ValueError("a\x1b[31mb")

    monkeypatch.setattr("dispatch_core.cli.looking.status", fail)
    ran = cli("status", "k")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "dispatch: unexpected ValueError: a\\x1b[31mb; DISPATCH_TRACEBACK=1 shows where\n"


def test_every_code_is_in_the_table_of_help(cli: Cli) -> None:
    ran = cli("--help")
    assert ran.code == 0
    codes = {int(code) for code in re.findall(r"^ {2,}(\d+)  ", ran.out, re.MULTILINE)}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    assert {kind.exit_code for kind in kinds} <= codes
    assert {exits.FAILED, exits.CANCELLED, exits.NEEDS_A_PERSON, exits.ATTENTION, exits.UNEXPECTED} <= codes
    assert {exits.FAILED, exits.CANCELLED, exits.NEEDS_A_PERSON}.isdisjoint(range(1, 13))


def test_every_command_has_its_options(cli: Cli) -> None:
    commands = re.findall(r"^  ([a-z]+)  ", cli("--help").out.partition("Commands:")[2], re.MULTILINE)
    assert len(commands) >= 14
    for command in sorted({*commands} - {"db", "demo", "simulate"}):  # these have worlds of their own
        text = cli(command, "--help").out
        for option in ("--spool", "--clusters", "--output", "DISPATCH_SPOOL", "DISPATCH_CLUSTERS"):
            assert option in text, command
        for option in ("--store", "DISPATCH_STORE"):
            assert (option in text) is (command not in ("clusters", "doctor")), command


def test_a_command_to_paste_holds_no_password() -> None:
    session = Session(store="postgresql://me:hunter2@host/db", spool=Path("/s p"), screen=Screen(as_json=False))
    assert session.command("cancel", "a b") == "dispatch cancel 'a b' --store URL --spool '/s p'"
    session = Session(store=None, spool=None, screen=Screen(as_json=False), clusters=Path("/c.yaml"))
    assert session.command("ls") == "dispatch ls --clusters /c.yaml"


def test_the_newest_tables_are_told_by_file_name(empty_store: Path, tmp_path: Path) -> None:
    assert is_current(empty_store)
    assert not is_current(tmp_path / "none.db")
    (tmp_path / "odd.db").write_bytes(b"not a database at all, but long enough to look at")
    assert not is_current(tmp_path / "odd.db")
    assert newest() == "0001"


@pytest.mark.case("T53")
def test_a_secret_is_in_nothing_that_is_written(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The payload has both secrets; no record, log, error or answer of a command has either."""
    caplog.set_level("DEBUG")
    bait = {"variable": "hunter2-in-a-variable", "file": "hunter2-in-a-file"}
    monkeypatch.setenv("MY_TOKEN", bait["variable"])
    secret = cli.folder / "secret.txt"
    secret.write_text(bait["file"] + "\n")
    extra = f"  secret_environment:\n    A: {{variable: MY_TOKEN}}\n    B: {{file: {secret}}}\n"
    proof = cli.folder / "proof"
    file = cli.job("k", f'printf "%s %s" "$A" "$B" > {proof}; echo ${{#A}}; exit 3', extra=extra)
    answers = [cli("check", file), cli("run", file)]
    assert proof.read_text() == f"{bait['variable']} {bait['file']}"
    for command in ("status", "history", "explain", "logs", "cancel"):
        answers += [cli(command, "k"), cli(command, "k", "-o", "json")]
    answers += [cli("ls"), cli("ls", "-o", "json"), cli("run", file, "--new", "-o", "json")]
    monkeypatch.delenv("MY_TOKEN")
    answers += [cli("run", file, "--new")]
    secret.write_bytes(b"hunter2\xff")
    monkeypatch.setenv("MY_TOKEN", "hunter2")
    answers += [cli("run", file, "--new")]
    assert "is not UTF-8 text" in answers[-1].err
    said = "".join(ran.out + ran.err for ran in answers) + caplog.text + repr(cli.read("k"))
    assert "hunter2" not in said
    kept = [path for path in cli.home.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]
    assert kept == []


# --- from outside


def outside(cli: Cli, *arguments: str, stdout: int | IO[str] = subprocess.PIPE) -> subprocess.Popen[str]:
    """A command as a shell starts it; its local scheduler is as slow to settle as a real one."""
    command = [sys.executable, "-m", "dispatch_core", *arguments]
    environment = {**os.environ, "DISPATCH_HOME": str(cli.home), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(command, env=environment, stdout=stdout, stderr=subprocess.PIPE, text=True)


def test_a_signal_takes_the_supervisor_and_leaves_the_job(cli: Cli) -> None:
    marker = cli.folder / "goes on"
    with outside(cli, "run", cli.job("k", f"sleep 60 & echo $! > '{marker}'; wait"), "-o", "json") as child:
        assert child.stderr is not None
        for line in child.stderr:
            if "is running" in line:
                break
        child.send_signal(signal.SIGINT)
        rest = child.stderr.read()
        assert child.stdout is not None
        assert child.stdout.read() == ""
    assert child.returncode == 130
    assert "detached from job 'k'" in rest
    assert "dispatch supervise k\n" in rest
    assert "dispatch cancel k --wait\n" in rest
    os.kill(int(marker.read_text()), 0)
    shown = cli("status", "k", "-o", "json").json
    assert (shown["state"], shown["unattended"]) == ("running", True)
    with outside(cli, "run", str(cli.folder / "job.yaml")) as attached:
        assert attached.stderr is not None
        assert "job 'k' is under way (running): attached at revision" in attached.stderr.readline()
        attached.send_signal(signal.SIGTERM)
        attached.stderr.read()
    assert attached.returncode == 143
    assert len(cli.read("k").submissions) == 1
    assert cli("cancel", "k", "--wait").code == 0


def test_the_janitor_leaves_on_a_signal(cli: Cli) -> None:
    with outside(cli, "supervise") as child:
        assert child.stderr is not None
        assert "Ctrl-C leaves" in child.stderr.readline()
        child.send_signal(signal.SIGINT)
        assert "left: what is open on the scheduler runs on" in child.stderr.read()
    assert child.returncode == 130


def test_a_reader_that_left_is_no_error(cli: Cli) -> None:
    cli("submit", cli.job("k" * 200, "true"))
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe, outside(cli, "ls", stdout=pipe) as child:
        assert child.stderr is not None
        assert child.stderr.read() == ""
    assert child.returncode == 141


def test_codes_reach_the_shell(cli: Cli) -> None:
    with outside(cli, "status", "none") as child:
        _, err = child.communicate()
    assert (child.returncode, err) == (4, "dispatch: there is no job 'none'\n")


def test_help_needs_nothing_slow() -> None:
    script = "import sys; from dispatch_core.cli import main; main(['--help']); print(sorted(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = ran.stdout.splitlines()[-1]
    for slow in ("sqlalchemy", "alembic", "pendulum", "yaml", "rich", "asyncio", "msgspec"):
        assert f"'{slow}'" not in loaded, slow


def test_status_needs_nothing_that_it_does_not_use(cli: Cli) -> None:
    cli("submit", cli.job("k", "true"))
    script = "import sys; from dispatch_core.cli import main; main(['status', 'k']); print(sorted(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = ran.stdout.splitlines()[-1]
    for slow in ("alembic", "pendulum", "yaml", "dispatch_core.supervisor", "dispatch_core.adapters.local.scheduler"):
        assert f"'{slow}'" not in loaded, slow
