"""`dispatch serve` as a program of its own, and the command line over HTTP."""

import asyncio
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from dispatch_core.errors import BadInput, StoreUnavailable
from dispatch_core.stores.http import HttpStore
from dispatch_core.stores.line import Token
from tests.cli.conftest import Cli
from tests.refusals import Refused, assert_refused, refusals, send
from tests.stores.records import committed, created, fresh, held

TOKENS = {"ann": "read-" + "a" * 20, "act": "act-" + "b" * 20, "sup": "store-" + "c" * 20}
LINES = f"# who may do what\n\nread ann {TOKENS['ann']}\nact act {TOKENS['act']}\n  store sup {TOKENS['sup']}\n"


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    file.touch(0o600)
    file.write_text(LINES)
    return file


@contextmanager
def serving(*words: str, ends_with: int = 0) -> Iterator[str]:
    """Where `dispatch serve` answers."""
    command = [sys.executable, "-m", "dispatch_core", "serve", "--bind", "127.0.0.1:0", *words]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DISPATCH_TOKEN")}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as child:
        try:
            assert child.stderr is not None
            first = child.stderr.readline()
            found = re.search(r"at (http://127\.0\.0\.1:\d+);", first)
            assert found is not None, first + child.stderr.read()
            yield found[1]
            child.send_signal(signal.SIGTERM)
            rest = child.stderr.read()
            assert child.wait(30) == ends_with, rest
            assert not any(token in first + rest for token in TOKENS.values())
            assert "Traceback" not in rest
        finally:
            child.kill()


def rows(cli: Cli) -> list[object]:
    """All that the store holds."""
    with closing(sqlite3.connect(cli.home / "dispatch.db")) as connection:
        tables = ("dispatch_job", "dispatch_history")
        return [connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in tables]


def ask(address: str, token: str, work: Callable[[HttpStore], Awaitable[Any]]) -> Any:
    async def asked() -> Any:
        store = HttpStore(address, Token(token))
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(asked())


def test_it_refuses_and_nothing_is_written(cli: Cli, tokens: Path) -> None:
    async def work(store: HttpStore) -> object:
        return await committed(store, held(await created(store), "ada"))

    with serving("--token-file", str(tokens)) as address:
        record = ask(address, TOKENS["sup"], work)
        before = rows(cli)
        known = {name: f"Bearer {token}" for name, token in TOKENS.items()}
        cases = list(refusals(record, reader="ann", actor="act", writer="sup"))
        cases.append(Refused("another token", "nobody", "POST", "/jobs", 401, "Denied", {}))
        with httpx.Client(base_url=address) as client:
            for refused in cases:
                assert_refused(send(client, refused, {**known, "nobody": "Bearer " + "d" * 24}), refused)
                assert rows(cli) == before, refused.what
            right = send(client, cases[0]._replace(who="sup"), known)
            assert right.status_code == 204
            assert rows(cli) != before, "what was refused would have been written with the right"


def test_what_is_too_long_is_refused_before_it_is_sent(cli: Cli, tokens: Path) -> None:
    """The head alone, with a length; whoever waits for the body first never answers."""

    async def work() -> bytes:
        host, port = address.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = [f"POST /api/record HTTP/1.1\r\nHost: {host}", f"Authorization: Bearer {TOKENS['sup']}"]
        head += ["Content-Type: application/json", "Content-Length: 10000000", "\r\n"]
        writer.write("\r\n".join(head).encode())
        async with asyncio.timeout(20):
            answer = await reader.readline()
        writer.close()
        return answer

    with serving("--token-file", str(tokens)) as address:
        assert asyncio.run(work()).split()[1] == b"413"


def test_without_tokens_it_shows_and_changes_nothing(cli: Cli) -> None:
    record = cli.with_store(lambda store: created(store))
    before = rows(cli)
    with serving() as address, httpx.Client(base_url=address) as client:
        assert record.key in client.get("/").text
        assert record.key in client.post("/api/jobs", json={}).text
        for refused in refusals(record, reader="x", actor="x", writer="x"):
            if refused.who is None and refused.what not in ("a read", "a history", "a list", "revisions"):
                assert send(client, refused, {}).status_code == 403, refused.what
        named = client.get("/", headers={"host": "evil.example.org"})
        assert named.status_code == 403
        assert record.key not in named.text
        assert client.post("/job/hold", data={"key": record.key}).status_code in (400, 403)
    assert rows(cli) == before


def test_the_command_line_over_http(cli: Cli, tokens: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with serving("--token-file", str(tokens)) as address:
        cli.with_store(lambda store: created(store, fresh("over there")))
        monkeypatch.setenv("DISPATCH_TOKEN", TOKENS["sup"])
        monkeypatch.setenv("DISPATCH_STORE", address)
        monkeypatch.setenv("DISPATCH_HOME", str(tmp_path / "elsewhere"))
        assert "over there" in cli("ls").out
        assert cli("hold", "over there", "--reason", "wait").code == 0
        assert "hold" in cli("history", "over there").out
        monkeypatch.setenv("DISPATCH_TOKEN", TOKENS["ann"])
        refused = cli("release", "over there")
        assert (refused.code, refused.out) == (StoreUnavailable.exit_code, "")
        assert "ann may read and not store" in refused.err
        monkeypatch.delenv("DISPATCH_TOKEN")
        monkeypatch.setenv("DISPATCH_TOKEN_FILE", str(tmp_path / "token"))
        (tmp_path / "token").touch(0o600)
        (tmp_path / "token").write_text(TOKENS["ann"] + "\n")
        assert "over there" in cli("ls").out
        assert cli("db", "upgrade").code == BadInput.exit_code
        assert not (tmp_path / "elsewhere" / "dispatch.db").exists()


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        (LINES, 0o644, "not yours alone"),
        (LINES, 0o620, "not yours alone"),
        ("", 0o600, "hold no token"),
        ("read ann", 0o600, "right name token"),
        ("write ann " + "x" * 20, 0o600, "right is read, act or store"),
        ("read ann short", 0o600, "shorter than 16"),
        (f"read a {'x' * 20}\nstore b {'x' * 20}", 0o600, "given twice"),
        ("read a/b " + "x" * 20, 0o600, "a name has"),
    ],
)
def test_token_files_that_are_not_taken(cli: Cli, tmp_path: Path, text: str, mode: int, said: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(text)
    file.chmod(mode)
    told = cli("serve", "--bind", "127.0.0.1:0", "--token-file", str(file))
    assert (told.code, told.err.count("\n")) == (BadInput.exit_code, 1)
    assert said in told.err
    assert "xxxx" not in told.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--bind", "0.0.0.0:0"), "only this machine"),
        (("--bind", "example.org:80"), "only this machine"),
        (("--bind", "8642"), "HOST:PORT"),
        (("--bind", "127.0.0.1:99999"), "HOST:PORT"),
        (("--store", "http://127.0.0.1:1"), "a server's address already"),
    ],
)
def test_what_it_does_not_serve(cli: Cli, words: tuple[str, ...], said: str) -> None:
    told = cli("serve", *words)
    assert told.code == BadInput.exit_code
    assert said in told.err


@pytest.mark.parametrize(
    "url", ["http://ann:s3cret@host/x", "https://host/x?token=s3cret", "https://host/#s3cret", "http://"]
)
def test_addresses_that_are_not_taken(cli: Cli, url: str) -> None:
    told = cli("ls", "--store", url)
    assert told.code == BadInput.exit_code
    assert "s3cret" not in told.err + told.out


def test_a_token_never_shows_itself() -> None:
    store = HttpStore("http://127.0.0.1:1", Token("marker-of-the-token"))
    assert "marker" not in repr(store) + repr(vars(store)) + repr(Token("marker-of-the-token"))
    with pytest.raises(BadInput) as caught:
        Token("marker of the\ntoken")
    assert "marker" not in str(caught.value)


def test_a_program_that_starts_it_is_told_where(cli: Cli) -> None:
    command = [sys.executable, "-m", "dispatch_core", "serve", "--bind", "127.0.0.1:0", "-o", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        try:
            assert child.stdout is not None
            told = child.stdout.readline()
            while "}" not in told:
                told += child.stdout.readline()
            answer = httpx.get(json.loads(told)["address"])
            assert answer.status_code == 200
        finally:
            child.kill()


def test_without_a_database_behind_it(cli: Cli, tmp_path: Path, tokens: Path) -> None:
    """The server's own words reach whoever asked, as the same error."""
    with serving("--token-file", str(tokens), "--store", f"sqlite:///{tmp_path / 'nothing.db'}") as address:

        async def work(store: HttpStore) -> object:
            return await store.jobs()

        with pytest.raises(StoreUnavailable, match="dispatch db upgrade"):
            ask(address, TOKENS["ann"], work)


def test_the_store_is_what_was_written(cli: Cli, tokens: Path) -> None:
    """Through the server and past it: the same record."""

    async def work(store: HttpStore) -> object:
        return await created(store, fresh("seen twice"))

    with serving("--token-file", str(tokens)) as address:
        made = ask(address, TOKENS["sup"], work)
    assert cli.with_store(lambda store: store.read("seen twice")) == made
