"""Each command for real: a SQLite store, the local scheduler, and what a person or a script reads."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.adapters.contract import Launch, Target
from dispatch_core.adapters.local.scheduler import LocalScheduler
from dispatch_core.errors import KeyTaken, StoreUnavailable
from dispatch_core.plan import Spec
from dispatch_core.record import Answer, Kind, Record, Reply, State
from dispatch_core.stores.sql import SqlStore
from tests.cli.conftest import Cli, quick

EXIT_RULE = """\
plan:
  rules:
    - {name: again, when: {exit_code: 3}, do: resubmit, budget: 1}
"""
HOLD_RULE = """\
plan:
  rules:
    - {name: look, when: {exit_code: 3}, do: hold}
"""


def is_running(record: Record) -> bool:
    return any(object.state is State.RUNNING for object in record.objects)


def waits_for_a_person(record: Record) -> bool:
    return record.wait is not None


# --- run, submit, check


def test_run_supervises_until_settled_and_tells_what_happens(cli: Cli) -> None:
    ran = cli("run", cli.job("nightly", "echo hello"))
    assert ran.code == 0
    assert ran.out == "job 'nightly' has succeeded by dispatch:default: 1 submission, 1 run\n"
    told = [line[10:] for line in ran.err.splitlines()]
    assert told[0].startswith("created: sh -c 'echo hello'") or told[0] == "the job was created"
    assert "submission 1 is authorized: first" in told
    assert told[-1] == "settled"
    assert cli("logs", "nightly").out == "hello\n"


def test_run_again_says_that_it_is_settled_and_exits_with_its_outcome(cli: Cli) -> None:
    file = cli.job("nightly", "exit 3")
    assert cli("run", file).code == 20
    ran = cli("run", file)
    assert ran.code == 20
    assert "job 'nightly' is settled since" in ran.err
    assert "--new makes the next record" in ran.err
    assert cli.read("nightly").revision == cli("history", "nightly", "-o", "json").json[-1]["revision"]
    first = cli.read("nightly").uid
    assert cli("run", file, "--new").code == 20
    assert cli.read("nightly").uid != first


def test_a_rule_launches_it_again_and_its_budget_is_shown(cli: Cli) -> None:
    ran = cli("run", cli.job("k", "exit 3", EXIT_RULE))
    assert ran.code == 20
    assert "2 submissions, 2 runs" in ran.out
    shown = cli("status", "k")
    assert shown.code == 20
    assert "again  1 of 1" in shown.out
    assert "exit (code 3)" in shown.out


def test_run_follows_a_job_that_another_supervises_and_takes_over(cli: Cli) -> None:
    file = cli.job("k", "true")
    cli("submit", file)
    record = cli.read("k")
    cli.with_store(lambda store: store.acquire(record, "supervisor there", 1))
    ran = cli("run", file)
    assert ran.code == 0
    assert "supervisor there supervises it: this follows, and takes over when that one leaves" in ran.err
    assert cli.read("k").settled


def test_submit_launches_nothing_and_says_so(cli: Cli) -> None:
    ran = cli("submit", cli.job("k", "true"))
    assert ran.code == 0
    assert ran.out.startswith("job 'k' is submitted (record ")
    assert ran.err == "nobody supervises it yet: dispatch supervise k\n"
    assert cli.read("k").submissions == ()
    again = cli("submit", str(cli.folder / "job.yaml"))
    assert "has its record already" in again.out
    assert cli.read("k").revision == 1


def test_a_key_with_another_job_is_refused(cli: Cli) -> None:
    cli("submit", cli.job("k", "true"))
    ran = cli("submit", cli.job("k", "false"))
    assert ran.code == KeyTaken.exit_code == 5
    assert ran.err.startswith("dispatch: the key 'k' belongs to a job with another spec; nothing was written")
    assert cli("run", cli.job("k", "true"), "--new").code == 5


def test_check_reads_and_writes_nothing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPATCH_HOME", str(cli.folder / "nowhere"))
    ran = cli("check", cli.job("k", "true", EXIT_RULE))
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[1] == "  again: resubmit on exit code 3, 1 time"
    assert cli("check", str(cli.folder / "job.yaml"), "-o", "json").json["plan"]["rules"][0]["budget"] == 1
    assert not (cli.folder / "nowhere").exists()


@pytest.mark.parametrize("command", ["run", "submit", "check"])
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("key: k\nspec: {command: [a], gpus: 1}\n", "2: spec.gpus: there is no such field; there are command,"),
        (
            "key: k\nscheduler: slurmy\nspec: {command: [a]}\n",
            "2: scheduler: no cluster is named 'slurmy'; there is local, and no file ",
        ),
        (
            "key: k\nspec:\n  command: [a]\n  queue: gpu\n",
            "4: spec.queue: the local scheduler has no queues; leave it out",
        ),
        (
            "key: k\nspec:\n  command: [a]\n  secret_environment:\n    T: {connection: w}\n",
            "5: spec.secret_environment.T: the secret from connection 'w' cannot be read here",
        ),
        ("key: k\nspec: {command: [\xff]}\n", "2: it is not UTF-8 text; save it as UTF-8"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, command: str, text: str, line: str
) -> None:
    monkeypatch.setenv("DISPATCH_HOME", str(cli.folder / "nowhere"))
    file = cli.folder / "bad.yaml"
    file.write_bytes(text.encode("latin-1"))
    ran = cli(command, str(file))
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith(f"dispatch: {file}:{line}")
    assert ran.err.count("\n") == 1
    assert not (cli.folder / "nowhere").exists()


def test_a_file_that_is_not_there(cli: Cli) -> None:
    ran = cli("check", str(cli.folder / "none.yaml"))
    assert (ran.code, ran.err) == (
        2,
        f"dispatch: {cli.folder}/none.yaml: it cannot be read: No such file or directory; check the path\n",
    )


def test_run_wants_its_secrets_before_it_writes(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_TOKEN", raising=False)
    ran = cli("run", cli.job("k", "true", extra="  secret_environment: {T: {variable: MY_TOKEN}}\n"))
    assert ran.code == 2
    assert "job.yaml:5: spec.secret_environment.T: the secret from variable 'MY_TOKEN' is not there" in ran.err
    assert cli("ls", "-o", "json").json == []


# --- ls, status, explain, history, logs


@pytest.mark.promise("O3")
def test_a_job_that_nobody_supervises_is_unattended(cli: Cli) -> None:
    cli("submit", cli.job("k", "true", EXIT_RULE))
    record = cli.read("k")
    assert cli("status", "k", "-o", "json").json["unattended"] is True
    assert "none (unattended): dispatch supervise k" in cli("status", "k").out
    listed = cli("ls", "--attention")
    assert listed.code == 3
    assert "unattended" in listed.out
    lease = cli.with_store(lambda store: store.acquire(record, "supervisor here", 60))
    shown = cli("status", "k", "-o", "json").json
    assert (shown["unattended"], shown["supervisor"]) == (False, "supervisor here")
    assert cli("ls", "--attention").code == 0
    cli.with_store(lambda store: store.release(lease))
    assert cli("ls", "--attention", "-o", "json").json[0]["attention"] == ["unattended"]


@pytest.mark.promise("O3")
def test_a_settled_job_needs_nobody(cli: Cli) -> None:
    cli("run", cli.job("k", "true", EXIT_RULE))
    shown = cli("status", "k", "-o", "json").json
    assert (shown["settled"], shown["unattended"], shown["attention"]) == (True, False, [])
    ran = cli("ls", "--attention")
    assert (ran.code, ran.out, ran.err) == (0, "", "nothing needs attention\n")


def test_status_and_explain_of_a_running_job(cli: Cli) -> None:
    cli("submit", cli.job("k", "sleep 60"))
    record = cli.supervise_until("k", is_running)
    shown = cli("status", "k")
    assert shown.code == 0
    assert "state       running since" in shown.out
    assert record.objects[0].id in shown.out
    explained = cli("explain", "k")
    assert explained.code == 0
    assert f"{record.objects[0].id} is running  (running)" in explained.out
    assert cli("cancel", "k", "--wait").code == 0


def test_explain_prints_what_the_next_pass_would_do_and_changes_nothing(cli: Cli) -> None:
    cli("submit", cli.job("k", "true"))
    explained = cli("explain", "k")
    assert "    submission 1 is authorized: first" in explained.out
    assert "  then call: start attempt 1.1, until " in explained.out
    assert cli.read("k").revision == 1
    value = cli("explain", "k", "-o", "json").json
    assert value["notes"][0]["reason"] == "authorized"


@pytest.mark.promise("G8")
def test_explain_says_which_condition_keeps_a_gate_shut(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost(self: LocalScheduler, target: Target, deadline: datetime) -> Reply:
        return Reply(answer=Answer.UNKNOWN, text="the line broke")

    monkeypatch.setattr(LocalScheduler, "hold", lost)
    cli("submit", cli.job("k", "true"))
    cli("hold", "k", "--reason", "not yet")
    cli.supervise_until("k", lambda record: any(call.kind is Kind.HOLD for call in record.calls))
    out = cli("explain", "k").out
    assert "the gate is shut; it opens once every condition holds\n" in out
    assert "  NO   hold: the hold is not on yet\n" in out
    assert "  yes  duplicates: no duplicate is left\n" in out
    shown = {row["name"]: row["holds"] for row in cli("explain", "k", "-o", "json").json["gate"]}
    assert shown["hold"] is False
    assert shown["outcome"] is True
    assert cli("cancel", "k", "--wait").code == 0


def test_history_tells_every_commit(cli: Cli) -> None:
    cli("run", cli.job("k", "true"))
    changes = cli("history", "k", "-o", "json").json
    assert [change["revision"] for change in changes] == list(range(1, len(changes) + 1))
    out = cli("history", "k").out
    assert out.startswith("   1  ")
    assert out.endswith("settled\n")


def test_logs_of_a_submission_and_of_what_is_not_there(cli: Cli) -> None:
    cli("run", cli.job("k", 'echo "submission $DISPATCH_SUBMISSION"; exit 3', EXIT_RULE))
    assert cli("logs", "k", "--submission", "1").out == "submission 1\n"
    assert cli("logs", "k").out == "submission 2\n"
    assert cli("logs", "k", "-o", "json").json["text"] == "submission 2\n"
    for options in (("--submission", "3"), ("--run", "2")):
        ran = cli("logs", "k", *options)
        assert (ran.code, ran.out) == (2, "")
        assert "has launched no such run" in ran.err


def test_the_list_is_whole_where_it_is_not_a_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    key = "a-rather-long-key-" * 10
    cli("submit", cli.job(key, "true"))
    assert any(key in line for line in cli("ls").out.splitlines())


# --- cancel, hold, release, resolve, dispose


@pytest.mark.promise("X4")
def test_cancel_is_committed_and_final_though_nobody_supervises(cli: Cli) -> None:
    cli("submit", cli.job("k", "sleep 60", EXIT_RULE))
    cli.supervise_until("k", is_running)
    ran = cli("cancel", "k", "--reason", "a mistake")
    assert ran.code == 0
    assert ran.out.startswith("job 'k' is cancelled since ")
    assert "clean-up waits for: " in ran.out
    assert "dispatch cancel k --wait" in ran.err
    assert cli("status", "k").code == 21
    assert cli("ls", "--attention", "-o", "json").json[0]["attention"] == ["unattended", "unsettled"]
    first = cli("cancel", "k", "-o", "json").json
    assert (first["result"], first["clean"]) == ("cancelled", False)
    waited = cli("cancel", "k", "--wait", "-o", "json").json
    assert (waited["clean"], waited["at"], waited["uid"]) == (True, first["at"], first["uid"])
    assert cli.read("k").settled
    assert len(cli.read("k").submissions) == 1


def test_cancel_of_what_is_over_says_what_stands(cli: Cli) -> None:
    cli("run", cli.job("k", "true"))
    ran = cli("cancel", "k")
    assert (ran.code, ran.err) == (0, "")
    assert "was over before: it has succeeded" in ran.out
    assert cli("status", "k").code == 0


def test_a_person_decides_about_a_job_that_waits(cli: Cli) -> None:
    cli("submit", cli.job("k", "exit 3", HOLD_RULE))
    cli.supervise_until("k", waits_for_a_person)
    shown = cli("status", "k")
    assert shown.code == 22
    assert "state       needs a person since" in shown.out
    assert "you can     release launches it again, resolve says how it came out, cancel ends it" in shown.out
    revision = cli.read("k").revision
    stale = cli("resolve", "k", "succeeded", "--revision", str(revision - 1))
    assert stale.code == 8
    assert "nothing was changed; look again" in stale.err
    ran = cli("resolve", "k", "succeeded", "--revision", str(revision))
    assert ran.out == f"job 'k': resolved: it has succeeded (revision {revision + 1}); it is succeeded\n"
    assert "nobody supervises it: dispatch supervise k" in ran.err
    assert cli("supervise", "k").code == 0
    assert cli.read("k").settled


@pytest.mark.promise("C1")
@pytest.mark.parametrize("command", [("release", "k"), ("resolve", "k", "failed"), ("dispose", "k", "1.1")])
def test_what_was_shown_must_still_be_so(cli: Cli, command: tuple[str, ...]) -> None:
    cli("submit", cli.job("k", "exit 3", HOLD_RULE))
    cli.supervise_until("k", waits_for_a_person)
    before = cli.read("k")
    ran = cli(*command, "--revision", "1")
    assert (ran.code, ran.out) == (8, "")
    assert cli.read("k") == before


def test_hold_and_release(cli: Cli) -> None:
    cli("submit", cli.job("k", "true"))
    ran = cli("hold", "k", "--reason", "disk full")
    assert ran.out == "job 'k': hold: disk full (revision 2); it is held\n"
    assert cli("status", "k").code == 22
    assert "disk full" in cli("status", "k").out
    assert cli("ls", "--attention", "-o", "json").json[0]["attention"] == ["held", "unattended"]
    assert cli("release", "k").out == "job 'k': released (revision 3); it is submitted\n"
    nothing = cli("release", "k")
    assert (nothing.code, nothing.out) == (2, "")
    assert cli("supervise", "k").code == 0


def test_a_stranger_is_shown_and_disposed_of(cli: Cli) -> None:
    """Something else carries the job's key: the record does not settle until a person says that it does not matter."""

    async def make(store: SqlStore) -> str:
        scheduler = quick()
        launch = Launch(key="k", uid="f" * 16, submission=1, attempt=1, name="f" * 9, spec=Spec(command=("true",)))
        reply = await scheduler.start(launch, {}, datetime.now(UTC) + timedelta(seconds=30))
        await scheduler.close()
        return reply.text

    stranger = cli.with_store(make)
    cli("submit", cli.job("k", "true"))
    cli.supervise_until("k", lambda record: record.outcome is not None and record.wait is not None)
    shown = cli("status", "k")
    assert f"{stranger}  foreign  gated" in shown.out
    assert "you can     once you know what it is: dispose of it by its id" in shown.out
    assert "foreign" in cli("ls", "--attention", "-o", "json").json[0]["attention"]
    assert cli("dispose", "k", stranger).code == 0
    assert cli("supervise", "k").code == 0
    assert cli.read("k").settled


def test_a_record_that_cannot_be_read_hides_no_other(cli: Cli) -> None:
    for key in ("bad", "good"):
        cli("submit", cli.job(key, "true"))
    with closing(sqlite3.connect(cli.home / "dispatch.db")) as connection, connection:
        connection.execute("UPDATE dispatch_job SET document = '{}' WHERE key = 'bad'")
    rows = {row["key"]: row for row in cli("ls", "-o", "json").json}
    assert rows["bad"]["attention"] == ["unreadable"]
    assert rows["good"]["state"] == "submitted"
    assert "unreadable" in cli("ls").out
    assert cli("status", "bad").code == 12


def test_dispose_of_what_is_not_there(cli: Cli) -> None:
    cli("submit", cli.job("k", "true"))
    ran = cli("dispose", "k", "2.1")
    assert ran.code == 2
    assert "has no foreign object and no attempt '2.1'" in ran.err


# --- supervise, db upgrade


def test_the_janitor_settles_what_nobody_supervises(cli: Cli) -> None:
    for key in ("a", "b"):
        cli("submit", cli.job(key, "true"))
    ran = cli("supervise", "--once", "-o", "json")
    assert ran.code == 0
    assert ran.json == {"supervised": ["a", "b"], "unsettled": []}
    assert cli.read("a").settled
    assert cli.read("b").settled
    assert any(line[10:] == "a: settled" for line in ran.err.splitlines())
    assert cli("supervise", "a", "--once").code == 2


def test_the_janitor_does_not_wait_for_persons_once(cli: Cli) -> None:
    cli("submit", cli.job("k", "exit 3", HOLD_RULE))
    ran = cli("supervise", "--once")
    told = "1 job supervised; 1 job not settled, which others have or a person must decide\n"
    assert (ran.code, ran.out) == (0, told)
    assert ran.err.endswith("1 job needs attention: dispatch ls --attention\n")
    assert cli("status", "k").code == 22


@pytest.mark.promise("O1")
def test_supervise_leaves_a_job_to_the_one_that_has_it(cli: Cli) -> None:
    cli("submit", cli.job("k", "true"))
    record = cli.read("k")
    cli.with_store(lambda store: store.acquire(record, "supervisor here", 60))
    ran = cli("supervise", "k")
    assert (ran.code, ran.out) == (6, "")
    assert ran.err.startswith("dispatch: job 'k' is supervised by supervisor here")


def test_supervise_waits_an_outage_of_the_store_out(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when another has the job by the time that the store answers again: it follows, and takes over."""
    monkeypatch.setattr("dispatch_core.supervisor.Supervisor.record_seconds", 0.1)
    cli("submit", cli.job("k", "true"))
    real, failures = SqlStore.commit, 0

    async def fail(self: SqlStore, record: Record, **how: Any) -> Record:
        nonlocal failures
        if record.submissions and failures < 3:
            failures += 1
            if failures == 3:
                await taken(self, record)
            raise StoreUnavailable("the database is restarting")
        return await real(self, record, **how)

    async def taken(store: SqlStore, record: Record) -> None:
        (listed,) = await store.jobs()
        assert listed.owner is not None
        await store.acquire(record, listed.owner, 0.0)
        await store.acquire(record, "supervisor there", 0.5)

    monkeypatch.setattr(SqlStore, "commit", fail)
    ran = cli("supervise", "k")
    assert failures == 3
    assert (ran.code, ran.out) == (0, "job 'k' has succeeded by dispatch:default: 1 submission, 1 run\n")
    assert ran.err.count("the database is restarting; trying again in 0.1 s") == 3
    assert cli.read("k").settled


def test_another_store_is_upgraded_by_name_only(cli: Cli) -> None:
    url = f"sqlite:///{cli.folder / 'other.db'}"
    ran = cli("ls", "--store", url)
    assert ran.code == 10
    assert "dispatch db upgrade" in ran.err
    assert not (cli.folder / "other.db").exists()
    assert cli("db", "upgrade", "--store", url).out.startswith("the store's tables are at revision ")
    assert cli("ls", "--store", url, "-o", "json").json == []


def test_the_default_store_makes_itself(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPATCH_HOME", str(cli.folder / "fresh"))
    ran = cli("ls")
    assert (ran.code, ran.out, ran.err) == (0, "", "there are no jobs\n")
    assert Path(cli.folder, "fresh", "dispatch.db").stat().st_size > 0


@pytest.mark.parametrize(
    "command",
    [
        ("status",), ("explain",), ("history",), ("cancel",), ("release",), ("logs",), ("supervise",),
        ("hold", "--reason", "r"), ("resolve", "none", "failed"), ("dispose", "none", "1.1"),
    ],
    ids=lambda command: command[0],
)  # fmt: skip
def test_no_such_job(cli: Cli, command: tuple[str, ...]) -> None:
    name, *rest = command
    arguments = [name, *rest] if "none" in rest else [name, "none", *rest]
    ran = cli(*arguments, "-o", "json")
    assert ran.code == 4
    assert ran.err == "dispatch: there is no job 'none'\n"
    assert ran.json == {"error": {"kind": "NotFound", "message": "there is no job 'none'", "exit_code": 4}}


def test_json_is_json_for_every_command(cli: Cli) -> None:
    file = cli.job("k", "true")
    for command in (("check", file), ("submit", file), ("run", file), ("status", "k"), ("ls",), ("explain", "k"),
                    ("history", "k"), ("logs", "k"), ("cancel", "k"), ("db", "upgrade")):  # fmt: skip
        ran = cli(*command, "-o", "json")
        assert ran.code == 0
        assert json.loads(ran.out) is not None
