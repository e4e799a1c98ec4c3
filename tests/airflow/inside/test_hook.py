"""The connection type: what its fields mean, and one line for what they lack."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Connection

from airflow_provider.hook import DispatchHook, asettings, forget, read_settings, settings
from airflow_provider.login import UNTOLD_SECONDS, ends
from airflow_provider.secrets import read_secret, secrets
from dispatch_core.errors import BadInput
from dispatch_core.plan import Secret
from dispatch_core.stores.http import HttpStore
from tests.airflow.inside.conftest import Deployment


def connection(extra: Any = None, **fields: Any) -> Connection:
    text = extra if isinstance(extra, str) or extra is None else json.dumps(extra)
    return Connection(conn_id="dispatch_default", **{"conn_type": "dispatch", "extra": text, **fields})


def test_a_whole_url() -> None:
    found = read_settings(connection({"url": "sqlite:////var/jobs.db", "spool": "/var/spool/jobs"}))
    assert (found.url, found.spool) == ("sqlite:////var/jobs.db", Path("/var/spool/jobs"))


def test_the_fields_of_a_connection() -> None:
    fields = {"host": "db", "port": 5433, "schema": "airflow", "login": "app", "password": "p@ss/word"}
    found = read_settings(connection({"tables_schema": "jobs"}, **fields))
    assert found.url == "postgresql://app:p%40ss%2Fword@db:5433/airflow"
    assert (found.tables_schema, found.spool) == ("jobs", None)
    assert "word" not in repr(found)


def test_a_sqlite_file() -> None:
    assert read_settings(connection({"driver": "sqlite"}, schema="/var/jobs.db")).url == "sqlite:////var/jobs.db"


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({"host": "https://af.example.org/dispatch/"}, "https://af.example.org/dispatch"),
        ({"host": "http://af/base/dispatch", "port": 8080}, "http://af:8080/base/dispatch"),
        ({"host": "http://af:81/dispatch", "port": 8080}, "http://af:81/dispatch"),
        ({"extra": {"url": "https://af/dispatch", "spool": "/var/spool"}}, "https://af/dispatch"),
    ],
)
def test_the_address_of_a_server(given: dict[str, Any], url: str) -> None:
    found = read_settings(connection(given.pop("extra", None), login="svc", password="marker", **given))
    assert (found.url, found.user, found.served) == (url, "svc", True)
    store = found.open_store()
    assert isinstance(store, HttpStore)
    assert url in repr(store)
    shown = (found, store, store._line, vars(store._line), store._line._credential)
    assert "marker" not in "".join(map(repr, shown))


def test_a_token_for_a_server() -> None:
    found = read_settings(connection({"url": "http://here:8642"}, password="marker"))
    assert (found.user, found.password) == (None, "marker")
    assert "marker" not in repr(found) + repr(found.open_store())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"host": "https://af/dispatch"}, "wants a password"),
        ({"host": "https://u:marker@af/dispatch", "password": "marker"}, "holds a name or a password"),
        ({"host": "https://af", "login": "svc", "password": "marker"}, "which ends in /dispatch"),
        ({"extra": {"url": "https://af/dispatch", "tables_schema": "x"}, "password": "marker"}, "is a database's"),
    ],
)
def test_one_line_for_a_server_that_cannot_be_asked(given: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said) as raised:
        read_settings(connection(given.pop("extra", None), **given))
    assert "marker" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_when_a_token_ends() -> None:
    claims = base64.urlsafe_b64encode(b'{"exp": 1234.5}').decode().rstrip("=")
    assert ends(f"h.{claims}.s", 0) == 1234.5
    for token in ("", "x", "a.b.c", "a.!.c", "a.e30.c", "a.bnVsbA.c"):
        assert ends(token, 1000.0) == 1000.0 + UNTOLD_SECONDS


def test_empty_fields_are_none() -> None:
    assert read_settings(connection({"url": "sqlite:////x", "spool": "", "driver": None})).spool is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "fill in host and schema"),
        ({"host": "db"}, "fill in schema"),
        ({"conn_type": "postgres"}, "make it one of type 'dispatch'"),
        ({"extra": "{"}, "is not JSON"),
        ({"extra": "[1]"}, "is not a mapping"),
        ({"extra": {"ulr": "sqlite:////x"}}, "no field 'ulr'"),
        ({"extra": {"url": 3}}, "url in its extra is not a text"),
        ({"extra": {"driver": "oracle"}}, "'oracle' databases are not served"),
        ({"extra": {"driver": "sqlite"}}, "the path of its file, is empty"),
        ({"extra": {"url": "sqlite:////x", "spool": "here"}}, "is not absolute"),
    ],
)
def test_one_line_for_what_is_wrong(given: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said) as raised:
        read_settings(connection(given.pop("extra", None), password="hunter2", **given))
    assert "\n" not in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_a_connection_that_is_not_there() -> None:
    with pytest.raises(BadInput, match="AIRFLOW_CONN_NOWHERE="):
        settings("nowhere")


async def test_a_connection_of_the_environment_is_looked_up_once(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await asettings("dispatch_default")
    monkeypatch.delenv("AIRFLOW_CONN_DISPATCH_DEFAULT")
    assert await asettings("dispatch_default") is found
    assert settings("dispatch_default") is found
    forget("dispatch_default")
    with pytest.raises(BadInput):
        await asettings("dispatch_default")


async def test_airflows_own_database_is_never_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", f"sqlite:///{tmp_path}/airflow.db")
    with pytest.raises(BadInput):
        await asettings("dispatch_default")


def test_a_connection_can_be_tested(deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert DispatchHook().test_connection() == (True, "the database answers, and its tables are at 0001")
    (tmp_path / "empty.db").touch()
    extra = {"url": f"sqlite:///{tmp_path}/empty.db"}
    monkeypatch.setenv("AIRFLOW_CONN_DISPATCH_DEFAULT", json.dumps({"conn_type": "dispatch", "extra": extra}))
    fine, said = DispatchHook().test_connection()
    assert not fine
    assert "airflow db migrate" in said


async def test_secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_HUB", json.dumps({"conn_type": "http", "password": "from-connection"}))
    monkeypatch.setenv("AIRFLOW_VAR_TOKEN", "from-variable")
    (tmp_path / "token").write_text("from-file\n")
    assert await secrets(Secret(source="connection", name="hub")) == "from-connection"
    assert await secrets(Secret(source="variable", name="token")) == "from-variable"
    assert await secrets(Secret(source="file", name=str(tmp_path / "token"))) == "from-file"


@pytest.mark.parametrize("source", ["connection", "variable", "file"])
def test_a_secret_that_is_not_there(source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOWHERE", "a triggerer's own variable is no secret of a job")
    with pytest.raises(BadInput, match=f"the secret in {source} 'NOWHERE' cannot be read"):
        read_secret(Secret(source=source, name="NOWHERE"))
