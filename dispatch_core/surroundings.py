"""What a program takes from where it runs: the time by its own clock, and names that nobody else has.

One rule: nothing is judged by either. Times that decisions rest on are the scheduler host's, and what a fresh name is
does not matter, only that it is fresh; so a simulation may give other ones.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime

Now = Callable[[], datetime]
FreshId = Callable[[], str]


def utc_now() -> datetime:
    return datetime.now(UTC)


def fresh_id() -> str:
    """32 digits and small letters, never given out before."""
    return uuid.uuid4().hex
