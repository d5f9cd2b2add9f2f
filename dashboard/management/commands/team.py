"""``manage.py team join|leave|allow|forget|list``: who acts on which gates and queues."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dashboard.access import team_actions as actions
from dashboard.core.audit import ActionFailed
from dashboard.core.permissions import KINDS, ROLES, Actor
from dashboard.models import TeamRule


class Command(BaseCommand):
    help = "Manage teams: their members, and the gates and queues that only they control."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        for verb, text in (("join", "add a user to a team"), ("leave", "remove a user from a team")):
            member = verbs.add_parser(verb, help=text)
            member.add_argument("team")
            member.add_argument("user")
        allow = verbs.add_parser("allow", help="assign gates or queues to a team by a name pattern")
        allow.add_argument("team")
        allow.add_argument("kind", choices=KINDS)
        allow.add_argument("pattern", help="such as 'orders-*'")
        allow.add_argument("--role", choices=ROLES, default="operator")
        forget = verbs.add_parser("forget", help="remove a rule")
        forget.add_argument("rule", type=int, help="its number, as listed")
        verbs.add_parser("list", help="show all rules")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            match options["verb"]:
                case "list":
                    for rule in TeamRule.objects.select_related("team").order_by("pk"):
                        self.stdout.write(f"{rule.pk:4}  {rule}")
                case "allow":
                    team, kind, pattern = options["team"], options["kind"], options["pattern"]
                    actions.add_rule(_ACTOR, team, kind, pattern, options["role"])
                case "forget":
                    actions.remove_rule(_ACTOR, options["rule"])
                case verb:
                    actions.set_member(_ACTOR, options["team"], options["user"], member=verb == "join")
        except ActionFailed as error:
            raise CommandError(str(error)) from error


_ACTOR = Actor("command line", "admin")
