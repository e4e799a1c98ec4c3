"""`db prune` as whoever keeps the database uses it, and what every command does with a record of a later release."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dispatch_core.amounts import read_moment
from dispatch_core.errors import BadInput
from tests.cli.conftest import Cli

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def rewrite(cli: Cli, statement: str, *values: object) -> int:
    """Change the store behind its back; the number of rows changed."""
    with closing(sqlite3.connect(cli.home / "dispatch.db")) as connection, connection:
        return connection.execute(statement, values).rowcount


@pytest.fixture
def jobs(cli: Cli) -> Cli:
    """An old settled job, a settled job of today, and a job of last year that is not settled."""
    for key in ("old", "today", "open"):
        cli("submit", cli.job(key, "true"))
    for key in ("old", "today"):
        assert cli("cancel", key, "--wait").code == 0
    for table, column in (("dispatch_job", "updated"), ("dispatch_history", "at")):
        back = f"UPDATE {table} SET {column} = '2025-01-02 03:04:05.678000' WHERE uid <> ?"
        assert rewrite(cli, back, cli.read("today").uid)
    return cli


def keys(cli: Cli) -> set[str]:
    return {row["key"] for row in cli("ls", "-o", "json").json}


def history_rows(cli: Cli) -> int:
    with closing(sqlite3.connect(cli.home / "dispatch.db")) as connection:
        return int(connection.execute("SELECT count(*) FROM dispatch_history").fetchone()[0])


def test_what_is_settled_and_old_is_deleted(jobs: Cli) -> None:
    gone, before = jobs.read("old").revision, history_rows(jobs)
    ran = jobs("db", "prune", "--settled-before", "30d")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("1 record deleted: settled, and unchanged since 20")
    assert keys(jobs) == {"today", "open"}
    assert history_rows(jobs) == before - gone
    assert jobs("status", "old").code == 4
    assert jobs("db", "prune", "--settled-before", "30d").out.startswith("0 records deleted")


def test_a_dry_run_deletes_nothing(jobs: Cli) -> None:
    ran = jobs("db", "prune", "--settled-before", "2025-06-01", "--dry-run")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("1 record would be deleted: ")
    told = jobs("db", "prune", "--settled-before", "2025-06-01T00:00:00Z", "--dry-run", "-o", "json").json
    assert told == {"settled_before": "2025-06-01T00:00:00Z", "dry_run": True, "deleted": 1, "unreadable": 0}
    assert keys(jobs) == {"old", "today", "open"}


@pytest.mark.parametrize(
    "when", ["", "yesterday-ish", "30", "2025-13-01", "2025-01-01T99:00", "-3d", "9999-01-01", "5000d", "P1Y", "\udcff"]
)
def test_bad_input_is_one_line_and_deletes_nothing(jobs: Cli, when: str) -> None:
    ran = jobs("db", "prune", "--settled-before", when)
    if when == "30":
        assert ran.code == 0  # seconds, as everywhere
        return
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("dispatch: --settled-before: ")
    assert "nothing was deleted" in ran.err
    assert ran.err.count("\n") == 1
    assert jobs("db", "prune", "--settled-before", when, "-o", "json").json["error"]["exit_code"] == 2
    assert keys(jobs) == {"old", "today", "open"}


def test_it_must_be_said_when(jobs: Cli) -> None:
    ran = jobs("db", "prune")
    assert (ran.code, ran.out) == (2, "")
    assert "--settled-before" in ran.err


def test_a_store_that_is_not_there(cli: Cli) -> None:
    missing = Path(cli.folder / "none.db")
    ran = cli("db", "prune", "--settled-before", "1d", "--store", f"sqlite:///{missing}")
    assert (ran.code, ran.out) == (10, "")
    assert not missing.exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30d", NOON - timedelta(days=30)),
        (" 2h ago ", NOON - timedelta(hours=2)),
        ("PT90S", NOON - timedelta(seconds=90)),
        ("0s", NOON),
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        ("20260131", datetime(2026, 1, 31, tzinfo=UTC)),
        ("2026-01-31 18:30", datetime(2026, 1, 31, 18, 30, tzinfo=UTC)),
        ("2026-01-31T18:30:00+02:00", datetime(2026, 1, 31, 16, 30, tzinfo=UTC)),
    ],
)
def test_moments(text: str, expected: datetime) -> None:
    assert read_moment(text, NOON) == expected


def test_a_moment_to_come_is_refused() -> None:
    with pytest.raises(BadInput, match="still to come"):
        read_moment("2026-03-02", NOON)


# --- a record of a later release


@pytest.mark.parametrize(
    ("known", "later"), [('"format":1', '"format":2'), ('"key":', '"colour":"green","key":')], ids=["format", "field"]
)
def test_a_newer_record_is_left_alone_by_every_command(cli: Cli, known: str, later: str) -> None:
    for key in ("strange", "other"):
        cli("submit", cli.job(key, "true"))
    assert rewrite(
        cli, "UPDATE dispatch_job SET document = replace(document, ?, ?) WHERE key = 'strange'", known, later
    )
    with closing(sqlite3.connect(cli.home / "dispatch.db")) as connection:
        before = connection.execute("SELECT * FROM dispatch_job WHERE key = 'strange'").fetchall()

    listed = {row["key"]: row for row in cli("ls", "-o", "json").json}
    assert listed["strange"]["state"] == "unreadable"
    assert listed["strange"]["revision"] == 1
    assert "strange" in listed["strange"]["problem"]
    assert listed["other"]["state"] != "unreadable"
    assert cli("ls", "--attention").code == 3

    commands: list[tuple[str, ...]] = [("status", "strange"), ("supervise", "strange"), ("explain", "strange")]
    commands += [("cancel", "strange"), ("hold", "strange", "--reason", "x"), ("submit", cli.job("strange", "true"))]
    for command in commands:
        ran = cli(*command)
        assert (ran.code, ran.out) == (12, ""), command
        assert ran.err.startswith("dispatch: job 'strange' (record "), command
        assert ran.err.count("\n") == 1, command

    ran = cli("supervise", "--once")
    assert ran.code == 0
    assert ran.err.count("job 'strange' (record ") == 1
    assert cli.read("other").settled
    with closing(sqlite3.connect(cli.home / "dispatch.db")) as connection:
        assert connection.execute("SELECT * FROM dispatch_job WHERE key = 'strange'").fetchall() == before


# --- what is no text


@pytest.mark.parametrize(
    "arguments",
    [
        ("status", "x\udcff"),
        ("supervise", "x\udcff"),
        ("cancel", "x\udcff"),
        ("history", "x\udcff"),
        ("hold", "job", "--reason", "x\udcff"),
        ("ls", "--store", "sqlite:///x\udcff"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_an_argument_that_is_not_utf_8_is_one_line(cli: Cli, arguments: tuple[str, ...]) -> None:
    cli("submit", cli.job("job", "true"))
    ran = cli(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("dispatch: ")
    assert "unexpected" not in ran.err
    assert ran.err.count("\n") == 1
    assert cli(*arguments, "-o", "json").json["error"]["kind"] == "BadInput"
    assert cli.read("job").revision == 1
