"""Rights as Airflow's auth manager has them, and the DAG that a key names."""

import warnings
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from airflow_provider import authorization
from airflow_provider.identity import key, stem
from dispatch_core.stores import migrations
from dispatch_core.stores.messages import PREFIX
from dispatch_core.stores.sql import open_store
from dispatch_core.web import pages
from dispatch_core.web.access import Right
from dispatch_core.web.app import application
from dispatch_core.web.listing import Which
from tests.stores.records import created, fresh

KEY = key(stem("etl", "manual", "train", -1), 0)


@pytest.fixture(scope="module", autouse=True)
def server() -> Any:
    """Airflow's API server, imported: of its libraries, some warn of others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module("airflow.api_fastapi.app")


@pytest.mark.parametrize("about", [KEY, "nightly", ""])
def test_each_role_of_the_simple_auth_manager(server: Any, about: str) -> None:
    user = import_module("airflow.api_fastapi.auth.managers.simple.user").SimpleAuthManagerUser
    server.create_auth_manager()
    may = {
        role: [right for right in Right if authorization._may(user(username="ann", role=role), right, about)]
        for role in ("VIEWER", "USER", "OP", "ADMIN")
    }
    everything = [Right.READ, Right.ACT, Right.STORE]
    assert may == {"VIEWER": [Right.READ], "USER": [Right.READ, Right.ACT], "OP": everything, "ADMIN": everything}


class PerDag:
    """An auth manager whose user has every right on one DAG, and on no other; another may change connections."""

    def __init__(self, *, connections: bool = False) -> None:
        self.connections = connections

    def is_authorized_dag(self, *, method: str, user: object, access_entity: object = None, details: object) -> bool:
        return getattr(details, "id", None) == "etl"

    def is_authorized_connection(self, *, method: str, user: object, details: object) -> bool:
        return self.connections and method == "PUT"


@pytest.mark.parametrize(
    ("about", "may"),
    [(KEY, True), (key(stem("other", "manual", "train", -1), 0), False), ("nightly", False), ("", False)],
)
def test_a_right_on_one_dag_is_no_right_on_the_others(monkeypatch: pytest.MonkeyPatch, about: str, may: bool) -> None:
    monkeypatch.setattr("airflow.api_fastapi.app.get_auth_manager", PerDag)
    for right in (Right.READ, Right.ACT):
        assert authorization._may(None, right, about) is may  # type: ignore[arg-type]
    assert not authorization._may(None, Right.STORE, about)  # type: ignore[arg-type]


class AnyDag(PerDag):
    """Asked without a DAG, it says whether there is any that the user may read, as FAB's does."""

    def is_authorized_dag(self, *, method: str, user: object, access_entity: object = None, details: object) -> bool:
        return details is None or getattr(details, "id", None) == "etl"


OTHERS = [key(stem("other", "manual", "train", -1), 0), "nightly", key(stem("x" * 100, "y" * 100, "z" * 100, -1), 0)]


def test_a_list_shows_what_one_may_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may read one DAG is let in to the list, and sees neither the jobs of others nor those of none."""
    monkeypatch.setattr("airflow.api_fastapi.app.get_auth_manager", AnyDag)
    assert authorization._may(None, Right.READ, "")  # type: ignore[arg-type]
    for about in OTHERS:
        assert not authorization._may(None, Right.READ, about)  # type: ignore[arg-type]
        assert not authorization._may(None, Right.ACT, about)  # type: ignore[arg-type]
    assert authorization._readable(None, frozenset({KEY, *OTHERS})) == {KEY}  # type: ignore[arg-type]


async def test_neither_page_nor_store_lists_the_jobs_of_another_dag(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    await migrations.upgrade(url)
    store = open_store(url)
    records = [await created(store, fresh(about)) for about in (KEY, *OTHERS)]

    async def known(request: object) -> object:
        return SimpleNamespace(get_name=lambda: "ann")

    monkeypatch.setattr("airflow.api_fastapi.app.get_auth_manager", AnyDag)
    monkeypatch.setattr(authorization, "_user", known)
    access = authorization.AuthManagerAccess()
    app = application(lambda: store, access, pages=lambda opened, who: pages.routes(opened, who, secret=b"secret"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
        shown = [(await client.get("/", params={"show": show})).text for show in Which]
        shown.append((await client.post(f"{PREFIX}/jobs", json={})).text)
        asked = [[record.key, record.uid] for record in records]
        told = (await client.post(f"{PREFIX}/revisions", json={"records": asked})).json()
    await store.close()
    assert sum(KEY in text for text in shown) == 4, "the open, the unattended, all, and the store's own list"
    assert told == {records[0].uid: 1}
    for record in records[1:]:
        assert not any(record.key in text or record.uid in text for text in shown)


def test_a_service_user_needs_no_right_on_any_dag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow.api_fastapi.app.get_auth_manager", lambda: PerDag(connections=True))
    assert all(authorization._may(None, right, "nightly") for right in Right)  # type: ignore[arg-type]


@pytest.mark.parametrize("dag", ["etl", "a/b", "100%", "x" * 60, "größe"])
def test_the_dag_of_a_key(dag: str) -> None:
    assert authorization._dag(key(stem(dag, "manual__2026", "a/b", 3), 2)) == dag


@pytest.mark.parametrize(
    "about",
    [
        *("", "nightly", "airflow/etl", "airflow/etl/r/t/-1/0/more", "other/etl/r/t/-1/0", "airflow/etl/r/t/x/0"),
        *("airflow/etl/r/t/-1/x", "airflow/a%2fb/r/t/-1/0"),
    ],
)
def test_no_dag(about: str) -> None:
    assert authorization._dag(about) == authorization.EVERY


def test_a_dag_whose_name_was_cut_is_none() -> None:
    """It could be taken for another one's."""
    assert authorization._dag(key(stem("x" * 100, "y" * 100, "z" * 100, -1), 0)) == authorization.EVERY
