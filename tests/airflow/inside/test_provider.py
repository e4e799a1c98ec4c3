"""What Airflow reads of the provider, by its own rules."""

import json
from importlib import import_module
from importlib.resources import files

import jsonschema
import pytest
from airflow.providers_manager import ProvidersManager
from airflow.sdk import DAG, task
from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

from airflow_provider import clusters, get_provider_info, hook
from airflow_provider.decorator import DispatchDecoratedOperator, dispatch_task
from airflow_provider.sites import Site
from airflow_provider.submission import Wanted
from tests.airflow.inside.conftest import Deployment, Try, context, deferred


def test_the_provider_info_is_what_airflow_accepts() -> None:
    schema = json.loads(files("airflow").joinpath("provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_the_connection_type_is_what_provider_files_may_say() -> None:
    schema = json.loads(files("airflow").joinpath("provider.yaml.schema.json").read_text())
    kinds = schema["properties"]["connection-types"]
    jsonschema.validate(get_provider_info()["connection-types"], {**schema, **kinds, "required": []})


@pytest.mark.parametrize("kind", ["operators", "triggers", "hooks"])
def test_every_module_it_names_is_there(kind: str) -> None:
    info = get_provider_info()
    for entry in info[kind]:
        for module in entry["python-modules"]:
            assert import_module(module)


def test_the_decorator_that_it_names_is_there() -> None:
    (told,) = get_provider_info()["task-decorators"]
    module, _, name = told["class-name"].rpartition(".")
    assert (told["name"], getattr(import_module(module), name)) == ("dispatch", dispatch_task)
    with DAG("etl", schedule=None):
        made = task.dispatch(len)
    assert made.operator_class is DispatchDecoratedOperator


BAIT = "bait-in-a-connection"


@pytest.mark.parametrize(
    "records",
    [
        json.dumps({"conn_type": "dispatch", "host": "db", "schema": "x", "login": "ann", "password": BAIT}),
        json.dumps({"conn_type": "dispatch", "extra": {"url": f"postgresql://ann:{BAIT}@127.0.0.1:1/x"}}),
        f"dispatch://ann:{BAIT}@127.0.0.1:1/x",
        json.dumps({"conn_type": "dispatch", "host": "http://127.0.0.1:1/dispatch", "login": "ann", "password": BAIT}),
    ],
)
def test_no_secret_is_in_what_is_shown_of_it(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, records: str
) -> None:
    bait = BAIT
    monkeypatch.setenv("AIRFLOW_CONN_RECORDS", records)
    found = hook.settings("records")
    assert bait in (found.password or found.url)
    store = found.open_store()
    monkeypatch.setenv("AIRFLOW_CONN_VAULT", json.dumps({"conn_type": "generic", "password": bait}))
    made = deployment.operator(spec={"secret_environment": {"TOKEN": {"connection": "vault"}}})
    ti = Try()
    waiting = deferred(made, context(ti)).trigger
    (record,) = deployment.records()
    shown = [
        found,
        store,
        vars(store),
        hook.DispatchHook("records"),
        made,
        vars(made),
        waiting,
        waiting.serialize(),
        ti.pushed,
        record,
    ]
    shown += [Site(found, None), record.plan, Wanted("k", record.spec, record.plan, "local", "who")]
    for one in shown:
        assert bait not in f"{one!r} {one}"
    hook.forget("records")


def test_airflow_discovers_it() -> None:
    assert "airflow_provider.db.DispatchDBManager" in ProvidersManager().db_managers
    hook = ProvidersManagerTaskRuntime().hooks["dispatch"]
    assert hook is not None
    assert hook.connection_id_attribute_name == "dispatch_conn_id"
    hook = ProvidersManagerTaskRuntime().hooks["slurm_ssh"]
    assert hook is not None
    assert hook.connection_id_attribute_name == "scheduler_conn_id"


def test_the_form_has_the_fields_that_a_connection_is_read_by() -> None:
    (form,) = (kind for kind in get_provider_info()["connection-types"] if kind["connection-type"] == clusters.TYPE)
    assert tuple(form["conn-fields"]) == clusters.FIELDS
    assert form["hook-class-name"] == f"{clusters.__name__}.{clusters.SlurmSshHook.__name__}"
    assert form["hook-name"] == clusters.SlurmSshHook.hook_name
