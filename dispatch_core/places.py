"""Where things are by default, and which scheduler a name means: the user's data directory, its store and its spool.

One rule: whoever runs `dispatch` as the same user meets the same records and the same local scheduler, from the command
line, from Airflow and from Prefect, unless told otherwise.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from dispatch_core.adapters.contract import Adapter
from dispatch_core.errors import BadInput
from dispatch_core.plan import Spec

SCHEDULERS = ("local",)
"""The names that `scheduler:` may have."""


def data_directory() -> Path:
    """`$DISPATCH_HOME`, else `dispatch` in the user's data directory (XDG)."""
    told = os.environ.get("DISPATCH_HOME")
    if told:
        return Path(told).absolute()
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data).absolute() / "dispatch"


def default_store() -> str:
    """The SQLAlchemy URL of the user's own SQLite file."""
    return f"sqlite:///{data_directory() / 'dispatch.db'}"


def default_spool() -> Path:
    """The spool of the user's own local scheduler."""
    return data_directory() / "spool"


def open_scheduler(name: str, spool: Path | None = None) -> Adapter:
    """A connection to the scheduler that a job names; who opens it closes it. Raises BadInput for an unknown name."""
    if name not in SCHEDULERS:
        raise BadInput(f"no scheduler is named {name!r}; this version knows {', '.join(SCHEDULERS)}")
    from dispatch_core.adapters.local.scheduler import LocalScheduler  # most commands need no scheduler

    return LocalScheduler(spool or default_spool())


def problems_on(name: str, spec: Spec) -> list[tuple[tuple[str | int, ...], str]]:
    """What the scheduler that a job names cannot launch, without making anything that stays. Raises BadInput."""
    with TemporaryDirectory(prefix="dispatch-check-") as scratch:
        return open_scheduler(name, Path(scratch)).problems(spec)
