"""Kubernetes: Job, JobSet, TrainJob and PyTorchJob, with and without Kueue.

One rule: whatever changes an object is one JSON Patch that tests its uid, its fence and what it was decided on, so that
a late or doubled copy of it is refused by the server itself. `scheduler` is the adapter; `kinds`, `manifest`,
`patches`, `causes` and `reading` are pure.
"""
