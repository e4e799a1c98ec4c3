"""Where a job's secrets come from under Airflow, read at the moment an object is started.

One rule: a secret goes from its source into the launch and nowhere else: no record, trigger or XCom holds it, and no
environment variable of a triggerer is taken for one because it happens to have the name. Starts are made by triggers,
so what a triggerer can read is what counts: `file` and, from its environment or a secrets backend, `connection` (its
password) and `variable` need no answer from Airflow; one that only its database holds costs the triggerer what `hook`
tells of. A worker reads each once before the job is submitted, so that a wrong name is an error at once.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from airflow.sdk import BaseHook, Variable
from airflow.sdk.exceptions import AirflowNotFoundException, AirflowRuntimeError

from dispatch_core.errors import BadInput
from dispatch_core.plan import Secret


def read_secret(secret: Secret) -> str:
    """One secret, in a worker or in a thread. Raises BadInput where it is not there; it blocks."""
    match secret.source:
        case "file":
            return _file(secret)
        case "connection":
            try:
                password = BaseHook.get_connection(secret.name).password
            except (AirflowNotFoundException, AirflowRuntimeError):
                raise _missing(secret, "Airflow has no such connection here, or did not answer") from None
            return _filled(secret, password)
        case "variable":
            try:
                return _filled(secret, Variable.get(secret.name))
            except (KeyError, AirflowNotFoundException, AirflowRuntimeError):
                raise _missing(secret, "Airflow has no such variable here, or did not answer") from None


async def secrets(secret: Secret) -> str:
    """One secret, in a trigger."""
    return await asyncio.to_thread(read_secret, secret)


def _file(secret: Secret) -> str:
    try:
        return _filled(secret, Path(secret.name).read_text().removesuffix("\n"))
    except (OSError, UnicodeDecodeError) as error:
        raise _missing(secret, type(error).__name__) from None


def _filled(secret: Secret, value: str | None) -> str:
    if not value:
        raise _missing(secret, "it is empty")
    return value


def _missing(secret: Secret, why: str) -> BadInput:
    return BadInput(f"the secret in {secret.source} {secret.name!r} cannot be read: {why}")
