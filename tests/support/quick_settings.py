"""The dashboard's settings, with passwords that are checked quickly. Tests of how long that takes use `dashboard.settings`."""

from dashboard import settings
from dashboard.settings import *  # noqa: F403

PASSWORD_HASHERS = ["tests.support.quick_hashing.QuickHasher", *settings.PASSWORD_HASHERS]
