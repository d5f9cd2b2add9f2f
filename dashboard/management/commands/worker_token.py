"""``manage.py worker_token create|list|revoke``: what workers and services show to come in."""

from __future__ import annotations

from typing import Any

import msgspec
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from dashboard.access import token_actions as actions
from dashboard.core import tokens
from dashboard.core.audit import ActionFailed
from dashboard.core.permissions import NEW, ROLES, Actor, Allowance
from dashboard.models import Scope, WorkerToken


class Command(BaseCommand):
    help = "Create, list and revoke the tokens of workers and services. A token is shown once, when it is created."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        create = verbs.add_parser("create", help="create a token and print it")
        create.add_argument("name", help="what it is for")
        create.add_argument(
            "--scope",
            choices=Scope.values,
            default="worker",
            help="scope: the hub, or the API to read or to act",
        )
        create.add_argument("--role", choices=ROLES, default="", help="role of a token of scope act")
        create.add_argument("--team", default="", help="team whose gates and queues it controls")
        create.add_argument("--days", type=float, help="days until it expires (default: never)")
        for field in msgspec.structs.fields(Allowance):
            new = getattr(NEW, field.name)
            usual = "any" if new == "*" else f"{new:,}"
            create.add_argument(
                f"--{field.name.replace('_', '-')}",
                dest=field.name,
                help=f"limit on its workers, see docs/hub.md; default: {usual}",
            )
        verbs.add_parser("list", help="show all tokens, without the secrets")
        revoke = verbs.add_parser("revoke", help="revoke a token; its sockets close within seconds")
        revoke.add_argument("start", help="the first characters of the token, as listed")

    def handle(self, *args: Any, **options: Any) -> None:
        match options["verb"]:
            case "create":
                self.create(options)
            case "list":
                self.list()
            case "revoke":
                self.revoke(options["start"])

    def create(self, options: dict[str, Any]) -> None:
        wanted = {name: options[name] for name in ("scope", "days", "role", "team")}
        claims = {name: options[name] for name in Allowance.__struct_fields__ if options[name] is not None}
        try:
            token = actions.create_token(_ACTOR, options["name"], allowance=claims, **wanted)
        except ActionFailed as error:
            raise CommandError(str(error)) from error
        self.stdout.write("Store it safely; it is not shown again:")
        self.stdout.write(token)

    def list(self) -> None:
        now = timezone.now()
        for token in WorkerToken.objects.order_by("created_at"):
            state = "revoked" if token.revoked_at else "valid"
            if state == "valid" and token.expires_at and token.expires_at <= now:
                state = "expired"
            used = token.last_used_at.isoformat(timespec="minutes") if token.last_used_at else "never"
            self.stdout.write(f"{token.start}…  {state:8} {token.scope:7} last used {used}  {token.name}")

    def revoke(self, start: str) -> None:
        found = list(WorkerToken.objects.filter(start__startswith=start[: tokens.SHOWN], revoked_at=None))
        if len(found) != 1:
            raise CommandError(f"{len(found)} valid tokens start with {start!r}; see `worker_token list`")
        actions.revoke_token(_ACTOR, found[0].pk)
        self.stdout.write(f"{found[0]} is revoked.")


_ACTOR = Actor("command line", "admin")
