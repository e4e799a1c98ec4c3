"""Engine environments: made once however many ask, from this checkout's lock, with one clear line where they cannot be.

uv is replaced by a small script where what it would install does not matter.
"""

import multiprocessing
import os
from pathlib import Path

import pytest

from dispatch_core import environments
from dispatch_core.environments import make_environment, outside
from dispatch_core.errors import BadInput, DispatchError

FAKE_UV = """#!/bin/sh
sleep 0.3
echo "$@" >>"$ASKED"
[ -z "$VIRTUAL_ENV" ] || exit 9
mkdir -p "$UV_PROJECT_ENVIRONMENT/bin"
mkdir "$UV_PROJECT_ENVIRONMENT/busy" || exit 8
echo made >"$UV_PROJECT_ENVIRONMENT/pyvenv.cfg"
sleep 0.1
rmdir "$UV_PROJECT_ENVIRONMENT/busy"
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, and a uv that writes down what it was asked for; the file it writes to."""
    uv = tmp_path / "uv"
    uv.write_text(FAKE_UV)
    uv.chmod(0o755)
    monkeypatch.setenv("UV", str(uv))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    monkeypatch.setenv("VIRTUAL_ENV", "/somewhere/else")
    return tmp_path / "asked"


def make_quietly(engine: str) -> None:
    make_environment(engine, say=lambda text: None)


def test_an_environment_is_made_from_the_lock_and_says_so(asked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make_environment("airflow", dev=True)
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 2)
    assert made.folder.is_relative_to(environments.cache_directory())
    assert made.python == made.folder / "bin" / "python"
    words = asked.read_text().split()
    assert {"--locked", "--inexact", "airflow", "dev"} <= set(words)
    assert "--all-extras" not in words


def test_one_that_is_there_is_brought_up_to_date_without_a_word(
    asked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = make_environment("airflow")
    capsys.readouterr()
    assert make_environment("airflow") == first
    assert capsys.readouterr() == ("", "")
    assert len(asked.read_text().splitlines()) == 2


def test_two_at_once_take_turns(asked: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    both = [spawn.Process(target=make_quietly, args=("airflow",)) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join(60)
    assert [one.exitcode for one in both] == [0, 0]
    assert len(asked.read_text().splitlines()) == 2


def test_what_it_was_made_from_is_in_its_name(asked: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = make_environment("airflow").folder
    assert make_environment("prefect").folder != here
    assert make_environment("airflow", python="/usr/bin/env").folder != here
    other = tmp_path / "other"
    other.mkdir()
    (other / "uv.lock").write_bytes((environments.checkout() / "uv.lock").read_bytes())
    monkeypatch.setattr(environments, "checkout", lambda: other)
    assert make_environment("airflow").folder != here, "it would import the project from the first checkout"


def test_those_of_checkouts_that_are_gone_are_removed(
    asked: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "uv.lock").write_bytes((environments.checkout() / "uv.lock").read_bytes())
    with monkeypatch.context() as there:
        there.setattr(environments, "checkout", lambda: other)
        gone = make_environment("airflow").folder
    kept = make_environment("airflow").folder
    assert (gone.exists(), kept.exists()) == (True, True)
    (other / "uv.lock").unlink()
    make_environment("prefect")
    assert (gone.exists(), kept.exists()) == (False, True)


def test_without_a_checkout_it_says_what_is_needed(
    asked: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(environments, "__file__", str(tmp_path / "site-packages" / "dispatch_core" / "environments.py"))
    with pytest.raises(BadInput, match=r"no uv\.lock in .*checkout"):
        make_environment("airflow")
    assert not asked.exists()


def test_without_uv_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("UV", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(BadInput, match="pip install uv"):
        make_environment("airflow")


def test_without_a_network_it_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "packages"))
    monkeypatch.setenv("UV_OFFLINE", "1")
    with pytest.raises(DispatchError, match=r"environment could not be made: .*[Nn]etwork") as told:
        make_environment("airflow")
    assert "\n" not in str(told.value)


def test_an_unwritable_cache_is_one_line(asked: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DispatchError, match="cannot be made"):
        make_environment("airflow")


def test_an_unknown_engine_is_refused(asked: Path) -> None:
    with pytest.raises(BadInput, match="airflow, prefect"):
        make_environment("dagster")


def test_leftovers_stay_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", "/a")
    monkeypatch.setenv("PYTHONPATH", "/b")
    monkeypatch.setenv("UV_CACHE_DIR", "/kept")
    assert not {"VIRTUAL_ENV", "PYTHONPATH"} & outside().keys()
    assert outside()["UV_CACHE_DIR"] == "/kept"
    assert outside()["PATH"] == os.environ["PATH"]
