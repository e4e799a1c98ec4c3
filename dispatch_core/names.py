"""The names of objects: what one carries, and how it is read back.

One rule: reading is total. A name that is mangled, or not one of ours, is nobody's: it makes an object foreign and
never raises.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Tags(NamedTuple):
    """What an object's name carries."""

    uid: str
    submission: int
    attempt: int


def object_name(uid: str, submission: int, attempt: int) -> str:
    """The name of the object that an attempt makes.

    >>> object_name("0f3a9c21b7d4e865", 2, 1)
    'dispatch-0f3a9c21b7d4e865-2-1'
    """
    return f"dispatch-{uid}-{submission}-{attempt}"


_NAME = re.compile(r"dispatch-([0-9a-z]{8,32})-([1-9][0-9]{0,8})-([1-9][0-9]{0,8})")


def read_name(name: str) -> Tags | None:
    """What a name carries; None where it is not one of ours, or mangled."""
    found = _NAME.fullmatch(name)
    return None if found is None else Tags(found[1], int(found[2]), int(found[3]))
