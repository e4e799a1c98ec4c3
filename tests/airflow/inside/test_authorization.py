"""Rights as Airflow's auth manager has them, and the DAG that a key names."""

import warnings
from importlib import import_module
from typing import Any

import pytest

from airflow_provider import authorization
from airflow_provider.authorization import dag_of
from airflow_provider.identity import key, stem
from dispatch_core.web.access import Right

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


def test_a_service_user_needs_no_right_on_any_dag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow.api_fastapi.app.get_auth_manager", lambda: PerDag(connections=True))
    assert all(authorization._may(None, right, "nightly") for right in Right)  # type: ignore[arg-type]


@pytest.mark.parametrize("dag", ["etl", "a/b", "100%", "x" * 60, "größe"])
def test_the_dag_of_a_key(dag: str) -> None:
    assert dag_of(key(stem(dag, "manual__2026", "a/b", 3), 2)) == dag


@pytest.mark.parametrize("about", ["", "nightly", "airflow/etl", "airflow/etl/r/t/-1/0/more", "other/etl/r/t/-1/0"])
def test_no_dag(about: str) -> None:
    assert dag_of(about) is None


def test_a_dag_whose_name_was_cut_is_none() -> None:
    """It could be taken for another one's."""
    assert dag_of(key(stem("x" * 100, "y" * 100, "z" * 100, -1), 0)) is None
