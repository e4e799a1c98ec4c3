"""Where a supervisor on the command line reads secrets from: its own environment, and files.

One rule: a secret goes from its source to the scheduler's hand-over file and nowhere else; no error holds a character
of it. A connection belongs to an engine and is refused here.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from dispatch_core.errors import BadInput
from dispatch_core.plan import Secret, Spec

LARGEST_BYTES = 65536
"""Of a secret in a file: the longest that every host passes on in an environment, with room."""


async def read_secret(secret: Secret) -> str:
    """One secret. Raises BadInput where it cannot be read."""
    return await asyncio.to_thread(_read, secret)


def _read(secret: Secret) -> str:
    name = f"{secret.source} {secret.name!r}"
    if secret.source == "variable":
        value = os.environ.get(secret.name)
        if value is None:
            raise BadInput(f"the secret from {name} is not there: the variable is not set where this supervisor runs")
    elif secret.source == "file":
        value = _file(secret.name, name)
    else:
        raise BadInput(f"the secret from {name} cannot be read here: connections belong to an engine; use a file")
    if "\0" in value:
        raise BadInput(f"the secret from {name} holds a NUL byte, which no environment can carry")
    return value


def _file(path: str, name: str) -> str:
    try:
        with Path(path).open("rb") as file:
            data = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise BadInput(f"the secret from {name} cannot be read: {error.strerror or type(error).__name__}") from None
    if len(data) > LARGEST_BYTES:
        raise BadInput(f"the secret from {name} is longer than {LARGEST_BYTES} bytes")
    try:
        return data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        # Not chained: the library's error carries the bytes.
        raise BadInput(f"the secret from {name} is not UTF-8 text") from None


def problems(spec: Spec, *, read: bool) -> list[tuple[tuple[str | int, ...], str]]:
    """Which secrets of a spec cannot be had on the command line; `read`: from where this very command runs."""
    found: list[tuple[tuple[str | int, ...], str]] = []
    for variable, secret in spec.secret_environment.items():
        if secret.source == "connection" or read:
            try:
                _read(secret)
            except BadInput as error:
                found.append((("spec", "secret_environment", variable), str(error)))
    return found
