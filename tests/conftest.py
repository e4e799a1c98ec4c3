"""What every test shares: the plugin that counts promises, pytester for its own tests, and hypothesis without a
deadline, since a busy machine is no failure."""

from hypothesis import settings

pytest_plugins = ["pytester", "tests.promises"]

settings.register_profile("dispatch", parent=settings(), deadline=None)
settings.load_profile("dispatch")
