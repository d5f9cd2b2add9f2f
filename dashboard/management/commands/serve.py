"""``kennel dashboard``: prepares the database and serves."""

from __future__ import annotations

import os
import secrets
from typing import Any

import uvicorn
from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser

from dashboard.core import tokens
from dashboard.models import Scope

FIRST_ADMIN = "admin"


class Command(BaseCommand):
    help = "Bring the database up to date, create the first administrator if there is none, and serve."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
        parser.add_argument("--port", type=int, default=8000, help="port to listen on (default 8000)")

    def handle(self, *args: Any, **options: Any) -> None:
        call_command("migrate", verbosity=0, interactive=False)
        self.stdout.write(f"The dashboard is at http://{options['host']}:{options['port']}", ending="\n")
        self._first_admin()
        if settings.FIRST_WORKER_TOKEN:
            tokens.create("KENNEL_FIRST_WORKER_TOKEN", token=settings.FIRST_WORKER_TOKEN)
        if settings.FIRST_API_TOKEN:
            tokens.create(
                "KENNEL_FIRST_API_TOKEN", token=settings.FIRST_API_TOKEN, scope=Scope.ACT, role="operator"
            )
        self.stdout.flush()
        uvicorn.run(
            "dashboard.asgi:application",
            host=options["host"],
            port=options["port"],
            lifespan="on",
            access_log=False,
            log_level="info",
            ws_max_size=131_072,
            timeout_graceful_shutdown=10,
        )

    def _first_admin(self) -> None:
        """The password is in a file that only its owner can read, until somebody deletes that."""
        file = settings.STATE_DIR / "first-admin"
        admins = Group.objects.get(name="admin")
        if not admins.user_set.exists() and not get_user_model().objects.filter(is_superuser=True).exists():
            password = secrets.token_urlsafe(9)
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(descriptor, "w") as opened:
                opened.write(f"{FIRST_ADMIN} {password}\n")
            user, _ = get_user_model().objects.get_or_create(username=FIRST_ADMIN)
            user.set_password(password)
            user.save()
            user.groups.add(admins)
        if file.is_file():
            self.stdout.write(f"Sign in as {FIRST_ADMIN}; the password is in {file}")
