"""``manage.py backup FILE``: what the dashboard keeps, and the gates of the account, in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from coordinator.errors import KennelError
from dashboard.core import backups
from dashboard.hub.runtime import call, storage


class Command(BaseCommand):
    help = (
        "Write users, tokens, teams, the audit and the gates to a new file. Keep it as safe as the database."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, help="a new file, such as kennel-2026-11-22.jsonl.gz")
        parser.add_argument("--without-gates", action="store_true", help="do not read the storage account")

    def handle(self, *args: Any, **options: Any) -> None:
        gates: list[backups.GateCopy] = []
        try:
            if settings.STORAGE_ENV and not options["without_gates"]:
                gates = call(backups.gates_of, storage())
            counts = backups.write(options["file"], gates)
        except KennelError as error:
            raise CommandError(f"The gates cannot be read ({error}); see --without-gates.") from error
        except FileExistsError as error:
            raise CommandError(f"{options['file']} exists; name a new file.") from error
        options["file"].chmod(0o600)
        self.stdout.write(f"{sum(counts.values())} rows and {len(gates)} gates in {options['file']}.")
