"""``manage.py prepare_demo``: the database, users, worker token and closed gate that the demo starts from, and its dashboard."""

from __future__ import annotations

import asyncio
import pkgutil
import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvicorn
from django.apps import apps
from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.contrib.auth.models import Group
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from coordinator.backoff import Backoff, retry
from coordinator.errors import AlreadyExists, PreconditionFailed
from coordinator.gates.azure import BlobGateStore
from coordinator.gates.state import GateState
from coordinator.storage import Storage
from dashboard.core import tokens
from dashboard.demo.stack import GATE, Credentials
from dashboard.management.commands.seed_demo_data import seed_audit, seed_history
from dashboard.models import AuditRow

PAST_DAYS, PAST_ACTS = 7.0, 300
PAST_QUEUES = ("orders-in", "price-changes", "flash-orders")

ROUNDS = 1000
PATIENCE = Backoff(base_seconds=0.05, cap_seconds=0.2, deadline_seconds=60.0)


class Command(BaseCommand):
    help = "Prepare the database and the storage for the demo. Harmless when repeated."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("credentials", type=Path, help="file for the demo's generated users and token")
        parser.add_argument(
            "--past", action="store_true", help="a new database gets a made-up week of history"
        )
        parser.add_argument(
            "--serve", type=int, metavar="PORT", help="then serve the dashboard on this port, in this process"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        credentials = Credentials.load(options["credentials"])
        if not _is_up_to_date():
            call_command("migrate", verbosity=0, interactive=False)
        for person in credentials.users:
            user, _ = get_user_model().objects.get_or_create(username=person.name)
            user.password = _hashed(person.password)
            user.save()
            user.groups.set([Group.objects.get(name=person.role)])
        tokens.create("demo workers", token=credentials.worker_token)
        if options["past"] and not AuditRow.objects.exists():
            rng = random.Random(1)
            seed_audit(PAST_ACTS, list(PAST_QUEUES), rng, every_seconds=PAST_DAYS * 86400 / PAST_ACTS)
            seed_history(PAST_DAYS, list(PAST_QUEUES), rng, numbers=False)
        # The storage emulator starts beside this process, and may still be loading.
        asyncio.run(retry(_hold, backoff=PATIENCE))
        if options["serve"]:
            uvicorn.run(
                "dashboard.asgi:application",
                host="127.0.0.1",
                port=options["serve"],
                lifespan="on",
                access_log=False,
            )


def _is_up_to_date() -> bool:
    """Whether the database has had every migration whose file is there, found without loading all of them."""
    applied = MigrationRecorder(connection).applied_migrations()
    return all(
        (app.label, name) in applied
        for app in apps.get_app_configs()
        if (folder := Path(app.path) / "migrations").is_dir()
        for _, name, is_package in pkgutil.iter_modules([str(folder)])
        if not is_package and not name.startswith(("_", "~"))
    )


def _hashed(password: str) -> str:
    """With few rounds: 72 random bits need no stretching, which would take a second at each start."""
    hasher = PBKDF2PasswordHasher()
    return hasher.encode(password, hasher.salt(), ROUNDS)


async def _hold() -> None:
    """The demo starts with the workers on the leash, at a gate that the pages show even if no worker has a socket."""
    reason = "waiting for the tickets to go on sale"
    async with Storage.from_env(settings.STORAGE_ENV) as storage:
        made = GateState(name=GATE, epoch=1, changed_at=time.time(), by="demo", reason=reason)
        with suppress(AlreadyExists, PreconditionFailed):
            await BlobGateStore(storage, GATE).write(made, "")
        await storage.gate(GATE).close(by="demo", reason=reason)
