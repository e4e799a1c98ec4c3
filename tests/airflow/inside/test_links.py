"""The links into the pages: what they name, and that they lead to the job."""

from importlib import import_module
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from airflow.sdk import DAG
from airflow.sdk.execution_time.xcom import XCom
from airflow.serialization.serialized_objects import DagSerialization
from starlette.applications import Starlette
from starlette.requests import Request

from airflow_provider import get_provider_info, identity, links, views
from airflow_provider.operator import DispatchOperator
from dispatch_core.plan import Plan, Spec
from dispatch_core.record import Record
from dispatch_core.stores.memory import MemoryStore
from dispatch_core.web.access import Denied, ReadsAll, Right

TI = SimpleNamespace(dag_id="e/t l", run_id="manual__2026-11-29T00:00:00+00:00", task_id="train&", map_index=3)


def test_the_link_is_known_to_airflow() -> None:
    (name,) = get_provider_info()["extra-links"]  # type: ignore[misc]
    module, _, cls = name.rpartition(".")
    assert getattr(import_module(module), cls) is links.DispatchJobLink
    with DAG("etl") as dag:
        DispatchOperator(task_id="train", command=["true"])
    operator = DagSerialization.from_dict(DagSerialization.to_dict(dag)).get_task("train")
    assert operator.extra_links == ["dispatch job"]
    assert operator.operator_extra_link_dict["dispatch job"].xcom_key == links.DispatchJobLink().xcom_key


def test_a_link_names_the_job_and_before_there_is_one_the_task_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    pulled: list[object] = [{"key": "airflow/a b", "uid": "0123456789abcdef"}, None]
    monkeypatch.setattr(XCom, "get_value", classmethod(lambda cls, *, ti_key, key: pulled.pop(0)))
    link = links.DispatchJobLink()
    of_job, of_task = (link.get_link(None, ti_key=TI) for _ in range(2))
    assert urlsplit(of_job).path == "/dispatch/job"
    assert parse_qs(urlsplit(of_job).query) == {"key": ["airflow/a b"], "uid": ["0123456789abcdef"]}
    assert urlsplit(of_task).path == "/dispatch/of"
    names = {name: [str(value)] for name, value in vars(TI).items()}
    assert parse_qs(urlsplit(of_task).query) == names


def test_links_begin_where_airflow_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/team/")
    assert links.job_url("a", "b") == "https://airflow.example/team/dispatch/job?key=a&uid=b"
    assert [view["href"].partition("?")[0] for view in links.external_views()] == [
        "/team/dispatch/",
        "/team/dispatch/of",
    ]


class Known(ReadsAll):
    """Lets everybody look at one DAG's jobs."""

    async def admit(self, request: Request, right: Right, key: str = "") -> str:
        if not key.startswith(identity.stem(TI.dag_id, TI.run_id, TI.task_id, TI.map_index)):
            raise Denied(403, "not that one")
        return "person ada"


async def test_a_task_instance_leads_to_its_newest_job() -> None:
    store, stem = MemoryStore(), identity.stem(TI.dag_id, TI.run_id, TI.task_id, TI.map_index)

    app = Starlette(routes=views.routes(lambda: store, Known()))
    url = links.of_url(TI.dag_id, TI.run_id, TI.task_id, TI.map_index).removeprefix(links.PREFIX)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
        answer = await client.get(url)
        assert parse_qs(urlsplit(answer.headers["location"]).query) == {"show": ["all"], "key": [f"{stem}/"]}
        for generation in (0, 2, 10, 9):
            record = Record(
                key=identity.key(stem, generation),
                uid=f"{generation:016}",
                scheduler="local",
                spec=Spec(command=("true",)),
                plan=Plan(),
            )
            await store.create(record, commit=str(generation), actor="airflow")
        answer = await client.get(url)
        assert answer.status_code == 303
        assert parse_qs(urlsplit(answer.headers["location"]).query) == {"key": [f"{stem}/10"], "uid": [f"{10:016}"]}
        with pytest.raises(Denied):
            await client.get(url.replace("train", "other"))
