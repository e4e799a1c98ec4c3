"""A job on Kubernetes in a real flow, by a saved block; the API server is the tests' own."""

import json
from pathlib import Path

import pytest

from tests.kubernetes.beside import IMAGE, running
from tests.kubernetes.rig import kubeconfig
from tests.kubernetes.server.kinds import JOB
from tests.prefect.server import Prefect

FLOW = """
import asyncio, json, sys
from prefect import flow
from prefect_collection.blocks import KubernetesCluster
from prefect_collection.tasks import dispatch_job

@flow
async def train(lines: str) -> None:
    command = ["sh", "-c", 'echo "$DISPATCH_SUBMISSION $DISPATCH_RUN" >> "$0"', lines]
    result = await dispatch_job(key="train", command=command, scheduler="pods", settle_seconds=90)
    print(result.outcome, result.runs, result.settled)

async def main() -> None:
    await KubernetesCluster(**json.loads(sys.argv[1])).save("pods")
    await train(sys.argv[2])

asyncio.run(main())
"""


@pytest.mark.long
@pytest.mark.promise("F1")
@pytest.mark.promise("A2")
def test_a_flow_runs_its_job_once(prefect: Prefect, tmp_path: Path) -> None:
    with running() as server:
        block = {"kubeconfig": str(kubeconfig(server.url, tmp_path)), "image": IMAGE, "proxy": "0s"}
        ran = prefect.run(prefect.environment.python, "-c", FLOW, json.dumps(block), tmp_path / "lines")
        assert ran.returncode == 0, ran.stderr
        assert (tmp_path / "lines").read_text() == "1 1\n"
        assert ran.stdout.splitlines()[-1] == "succeeded 1 True"
        (job,) = server.store.all(JOB)
        assert [one["type"] for one in job["status"]["conditions"] if one["status"] == "True"][-1] == "Complete"
