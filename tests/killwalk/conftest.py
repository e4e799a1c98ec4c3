"""The databases of the stores' own tests, by the same fixtures."""

from tests.stores.conftest import postgres_template, postgresql, sqlite, sqlite_template

__all__ = ["postgres_template", "postgresql", "sqlite", "sqlite_template"]
