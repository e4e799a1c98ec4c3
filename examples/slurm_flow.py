"""A flow with one long job on a Slurm cluster, and a plan for when it may be launched again.

`alps` is a name in the clusters file, as in clusters.yaml, or that of a saved `SlurmCluster` block. The job works in
`folder`, which the nodes have to see. It exits with 75 where its data is not there yet; then it is launched once more.
Before the first run, once, where the Prefect server runs: `python -m prefect_collection.setup`.
"""

import asyncio
import sys

from prefect import flow

from prefect_collection.tasks import dispatch_job

TRAIN = """
echo "$DISPATCH_SUBMISSION $DISPATCH_RUN" >> lines
[ -e data ] || exit 75
sleep 2
"""


@flow
async def nightly_on_slurm(folder: str) -> None:
    result = await dispatch_job(
        key="train",
        command=["sh", "-c", TRAIN],
        working_directory=folder,
        time_limit="2h",
        spec={"memory": "500MiB"},
        scheduler="alps",
        plan={
            "rules": [
                {"name": "node", "when": {"cause": ["node_failure", "preempted"]}, "do": "resubmit", "budget": 3},
                {"name": "data", "when": {"exit_code": 75}, "do": "resubmit", "budget": 1, "delay": "1s"},
            ]
        },
    )
    print(f"job {result.key} has {result.outcome} after {result.runs} run(s)")


if __name__ == "__main__":
    asyncio.run(nightly_on_slurm(sys.argv[1]))
