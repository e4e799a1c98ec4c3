"""The Prefect side of dispatch: the task `dispatch_job` of the room `tasks`, and the blocks `DispatchStore`,
`SlurmCluster` and `KubernetesCluster` of `blocks`.

One rule: a Prefect run is one more client and one more supervisor of a job, never its owner. What is to be known after
the run's end is in the record. Importing this package imports no Prefect; its rooms do.
"""
