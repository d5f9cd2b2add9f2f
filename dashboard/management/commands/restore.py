"""``manage.py restore FILE``: a backup into an empty database, and the gates that are missing."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from coordinator.errors import KennelError
from dashboard.core import backups
from dashboard.core.audit import ActionFailed
from dashboard.core.permissions import Actor
from dashboard.hub.runtime import call, storage


class Command(BaseCommand):
    help = "Read a backup into an empty, migrated database. Gates that are missing in the account are created, closed."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path)
        parser.add_argument("--without-gates", action="store_true", help="do not touch the storage account")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            restored = backups.read(options["file"], Actor("command line", "admin"))
        except ActionFailed as error:
            raise CommandError(str(error)) from error
        made_at = datetime.fromtimestamp(restored.made_at, UTC).isoformat(timespec="seconds")
        self.stdout.write(
            f"{sum(restored.rows.values())} rows as of {made_at}; the audit up to #{restored.through}."
        )
        tokens = restored.rows["dashboard.WorkerToken"]
        if tokens:
            self.stdout.write(
                f"{tokens} tokens are restored as they were: revoke again those that were revoked since."
            )
        if options["without_gates"] or not settings.STORAGE_ENV:
            return
        try:
            made = call(_gates, restored, made_at)
        except KennelError as error:
            raise CommandError(
                f"The database is restored, the gates are not ({error}). Close them by hand: leash GATE."
            ) from error
        self.stdout.write(f"{len(made)} missing gates created, closed: {', '.join(made) or 'none'}.")


async def _gates(restored: backups.Restored, made_at: str) -> list[str]:
    return await backups.make_missing_gates(
        storage(), restored.gates, reason=f"restored from the backup of {made_at}"
    )
