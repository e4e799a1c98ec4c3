"""What Prefect loads of this collection: every block, by the entry point group `prefect.collections`.

One rule: importing this registers the blocks and does nothing else.
"""

from prefect_collection.blocks import DispatchStore, KubernetesCluster, SlurmCluster
from prefect_collection.job_block import DispatchJob

__all__ = ["DispatchJob", "DispatchStore", "KubernetesCluster", "SlurmCluster"]
