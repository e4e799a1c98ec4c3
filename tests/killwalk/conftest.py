"""The databases of the stores' own tests, by the same fixtures."""

from tests.stores.conftest import postgres_shelf, postgresql, sqlite, sqlite_template

__all__ = ["postgres_shelf", "postgresql", "sqlite", "sqlite_template"]
