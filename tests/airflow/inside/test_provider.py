"""What Airflow reads of the provider, by its own rules."""

import json
from importlib import import_module
from importlib.resources import files

import jsonschema
import pytest
from airflow.providers_manager import ProvidersManager
from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

from airflow_provider import clusters, get_provider_info


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
