"""A cluster beside an engine: its times are short, and what a clusters file, a connection or a block says of it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.cluster import Cluster, running, why_not
from tests.slurm.configuration import Options

NAME = "alps"
"""What the examples call their cluster."""

OPTIONS = Options(nodes=1, message_timeout=3, credential_ttl=5)


@pytest.fixture(scope="module")
def alps() -> Iterator[Cluster]:
    """One node, and nothing in its queue."""
    if reason := why_not(OPTIONS):
        pytest.skip(reason)
    with running(OPTIONS) as cluster:
        yield cluster


def shared(cluster: Cluster, name: str) -> Path:
    """A folder that every user of the cluster can write to."""
    folder = cluster.work / name
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def fields(cluster: Cluster, folder: Path) -> dict[str, Any]:
    """How it is used, without how it is reached; `folder`: where dispatch's own folder is made."""
    return {"directory": f"{folder}/home", "slurm_conf": str(cluster.conf), "poll": "500ms", "absence": "5s"}


def clusters_file(cluster: Cluster, folder: Path) -> str:
    """A clusters file with this one cluster. JSON is YAML."""
    return json.dumps({"clusters": {NAME: {"type": "slurm", **fields(cluster, folder)}}})
