"""Where things are by default: what one user meets from the command line, from Airflow and from Prefect."""

from pathlib import Path

import pytest

from dispatch_core import places
from dispatch_core.errors import BadInput
from dispatch_core.plan import Spec


def test_the_defaults_are_the_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DISPATCH_HOME", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert places.default_spool() == tmp_path / "dispatch" / "spool"
    assert places.default_store() == f"sqlite:///{tmp_path}/dispatch/dispatch.db"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert places.default_spool() == tmp_path / ".local" / "share" / "dispatch" / "spool"
    monkeypatch.setenv("DISPATCH_HOME", str(tmp_path / "elsewhere"))
    assert places.default_spool() == tmp_path / "elsewhere" / "spool"


async def test_a_scheduler_is_opened_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DISPATCH_HOME", str(tmp_path))
    await places.open_scheduler("local").close()
    with pytest.raises(BadInput, match="no cluster is named 'elsewhere'; there is local, and no file"):
        places.open_scheduler("elsewhere")


def test_what_a_scheduler_cannot_launch_is_told_without_making_anything(tmp_path: Path) -> None:
    ((path, text),) = places.problems_on("local", Spec(command=("true",), queue="gpu"))
    assert path == ("spec", "queue")
    assert text
    assert list(tmp_path.iterdir()) == []
