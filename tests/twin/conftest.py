"""The database of the stores' own tests, and the seed of one twin."""

import random

import pytest

from tests.stores.conftest import postgres_shelf, postgresql

__all__ = ["postgres_shelf", "postgresql"]


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """What `--twin-seed` says, else another one each time; a twin prints its own."""
    told: int | None = request.config.getoption("--twin-seed")
    return random.SystemRandom().randrange(10**6) if told is None else told
