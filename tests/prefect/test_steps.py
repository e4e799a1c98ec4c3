"""Steps of flows in a real Prefect: apart and together, in async flows and in others, with blocks, over HTTP.

Each flow runs in a program of its own and says what it saw; see `steps.py`.
"""

import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.prefect.server import Prefect, free_port, until

pytestmark = [pytest.mark.long, pytest.mark.promise("F1")]


def seen(prefect: Prefect, flow: str, folder: Path, **env: str) -> dict[str, Any]:
    ran = prefect.run(prefect.environment.python, "-m", "tests.prefect.steps", flow, folder, env=env, seconds=400)
    assert ran.returncode == 0, ran.stderr
    return dict(json.loads(ran.stdout.splitlines()[-1]))


def test_steps_apart_in_a_flow_that_is_not_async(prefect: Prefect, tmp_path: Path) -> None:
    assert seen(prefect, "apart", tmp_path) == {
        "outcome": "succeeded",
        "same": True,
        "cancel": "cancelled",
        "why": "enough",
        "mapped": ["succeeded", "succeeded"],
        "ran": 1,
    }


def test_one_key_twice_at_once_is_refused(prefect: Prefect, tmp_path: Path) -> None:
    assert seen(prefect, "together", tmp_path) == {"refused": 1, "outcomes": ["succeeded", "succeeded"], "ran": 0}


@pytest.mark.parametrize(
    ("on_flow_retry", "outcome", "ran"), [("reattach", "failed", 1), ("new_attempt", "succeeded", 2)]
)
def test_a_flow_run_that_is_retried(
    prefect: Prefect, tmp_path: Path, on_flow_retry: str, outcome: str, ran: int
) -> None:
    """The task's own retries are none: its job has been judged."""
    found = seen(prefect, on_flow_retry, tmp_path)
    assert (found["outcome"], found["submissions"], found["ran"]) == (outcome, 1, ran)


def test_a_saved_job_is_triggered_and_found_again(prefect: Prefect, tmp_path: Path) -> None:
    assert seen(prefect, "blocks", tmp_path) == {"outcome": "succeeded", "same": True, "missing": "NotFound", "ran": 1}


def test_a_time_limit_of_a_task_that_is_not_async(prefect: Prefect, tmp_path: Path) -> None:
    assert seen(prefect, "limited", tmp_path) == {
        "detach": "timed out",
        "cancel": "it ran into its time limit in Prefect",
        "cancelled": "cancelled",
        "ran": 0,
    }


def test_records_over_http_from_the_server_itself(prefect: Prefect, tmp_path: Path) -> None:
    token, file, port = "0123456789abcdef0123", tmp_path / "tokens", free_port()
    file.touch(mode=0o600)
    file.write_text(f"store flows {token}\n")
    beside = {"DISPATCH_TOKEN_FILES": str(file), "PREFECT__SERVER_WEBSERVER_ONLY": "1"}
    url = f"http://127.0.0.1:{port}"
    words = ("--factory", "prefect_collection.server:create_app", "--port", str(port))

    def is_up() -> bool:
        try:
            with urllib.request.urlopen(f"{url}/api/health", timeout=5) as answer:  # noqa: S310 - our own server
                return bool(json.loads(answer.read()))
        except OSError:
            return False

    before = prefect.env
    prefect.env = {**before, **beside}
    with prefect.started(prefect.environment.bin / "uvicorn", *words):
        prefect.env = before
        until(is_up, f"Prefect and the store at {url}")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{url}/dispatch", timeout=30)  # noqa: S310 - the same
        found = seen(prefect, "served", tmp_path, TEST_STORE=f"{url}/dispatch", TEST_TOKEN=token)
    assert (found["outcome"], found["ran"]) == ("succeeded", 1)
    assert "does not know this token" in found["refused"]
    assert os.path.exists(prefect.database)
