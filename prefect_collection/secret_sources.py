"""Reads a job's secrets at the moment when it is started: from a file, a Prefect Variable, or a Prefect `Secret` block.

One rule: a secret goes from its source into the launch and nowhere else, and no error holds it. What happens to be in
this process's environment is never taken for one.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from prefect.blocks.system import Secret as SecretBlock
from prefect.variables import Variable

from dispatch_core.errors import DispatchError
from dispatch_core.plan import Secret


async def read_secret(secret: Secret) -> str:
    """The secret's text; a `connection` is the name of a `Secret` block. Raises DispatchError."""
    try:
        value = await _read(secret)
    except (ValueError, OSError) as error:
        raise DispatchError(
            f"the secret in {secret.source} {secret.name!r} cannot be read here: {type(error).__name__}"
        ) from None
    if not value:
        raise DispatchError(f"the secret in {secret.source} {secret.name!r} is empty or not there")
    return value


async def _read(secret: Secret) -> str:
    match secret.source:
        case "file":
            return (await asyncio.to_thread(Path(secret.name).read_text)).removesuffix("\n")
        case "variable":
            found = await Variable.aget(secret.name)
            return found if isinstance(found, str) else ""
        case "connection":
            block: SecretBlock[Any] = await SecretBlock.aload(secret.name)
            return str(block.get())
