"""The databases of the stores' own tests, by the same fixtures."""

from tests.stores.conftest import postgresql, shelf, sqlite, sqlite_template

__all__ = ["postgresql", "shelf", "sqlite", "sqlite_template"]
