"""Exchanges recorded from a real API server 1.36 and a real Kueue, as the adapter would see them.

Their tags were written under another prefix, which is replaced here, and nothing else.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dispatch_core.adapters.kubernetes.kinds import PREFIX

FOLDER = Path(__file__).parents[1] / "captures" / "kubernetes"
RECORDED_PREFIX = "dispatch.example"


def exchange(case: str) -> dict[str, Any]:
    text = (FOLDER / f"{case}.json").read_text()
    told: dict[str, Any] = json.loads(text.replace(RECORDED_PREFIX, PREFIX))
    return told


def body(case: str) -> dict[str, Any]:
    """What the server answered."""
    told: dict[str, Any] = exchange(case)["response"]["body"]
    return told


def items(case: str) -> list[dict[str, Any]]:
    """What a list held."""
    told: list[dict[str, Any]] = body(case)["items"]
    return told


def one(case: str) -> dict[str, Any]:
    """The only item of a list, or the object itself."""
    told = body(case)
    if "items" not in told:
        return told
    (item,) = told["items"]
    found: dict[str, Any] = item
    return found


def events(case: str) -> list[dict[str, Any]]:
    """What a watch said, as far as each line is an event of JSON."""
    return [json.loads(event["line"].replace(RECORDED_PREFIX, PREFIX)) for event in exchange(case)["events"]]
