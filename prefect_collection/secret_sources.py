"""Reads a job's secrets when it is started: from the environment, from a file, or from a Prefect `Secret` block.

One rule: a secret passes through and is kept nowhere; no error names more than where it was looked for.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from prefect.blocks.system import Secret as SecretBlock

from dispatch_core.errors import DispatchError
from dispatch_core.plan import Secret


async def read_secret(secret: Secret) -> str:
    """The secret's value. A `connection` is the name of a Prefect `Secret` block. Raises DispatchError."""
    try:
        if secret.source == "variable":
            return os.environ[secret.name]
        if secret.source == "file":
            return await asyncio.to_thread(Path(secret.name).read_text)
        block: SecretBlock[Any] = await SecretBlock.aload(secret.name)
        return str(block.get())
    except (KeyError, ValueError, OSError) as error:
        raise DispatchError(f"the secret in {secret.source} {secret.name!r} cannot be read here") from error
