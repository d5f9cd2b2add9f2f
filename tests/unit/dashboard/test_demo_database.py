"""The demo migrates its database only when a migration is new: to load all of them takes a tenth of a second of each start."""

from __future__ import annotations

import pytest
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from dashboard.management.commands.prepare_demo import _is_up_to_date

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("app", ["dashboard", "auth"])
def test_a_database_that_lacks_any_migration_is_not_up_to_date(app: str) -> None:
    assert _is_up_to_date()
    applied = MigrationRecorder(connection).applied_migrations()
    MigrationRecorder(connection).record_unapplied(*max(key for key in applied if key[0] == app))
    assert not _is_up_to_date()
