"""What every test shares: the plugin that counts promises, a PostgreSQL server for those that ask for one, pytester for
the plugin's own tests, and hypothesis without a deadline, since a busy machine is no failure."""

from hypothesis import settings

pytest_plugins = ["pytester", "tests.promises", "tests.postgres"]

settings.register_profile("dispatch", parent=settings(), deadline=None)
settings.load_profile("dispatch")
