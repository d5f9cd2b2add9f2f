"""``manage.py audit verify|head|reconcile``: whether the audit is whole."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dashboard import audit
from dashboard.models import AuditRow


class Command(BaseCommand):
    help = "Verify the audit's chain, show its end, or close intents that a crash left open."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        verify = verbs.add_parser(
            "verify", help="walk the chain; exits 1 and names every row that is not as written"
        )
        verify.add_argument(
            "--head", help="ID:DIGEST as `audit head` once printed; must still be in the chain"
        )
        verbs.add_parser("head", help="print ID:DIGEST of the newest row, to be kept elsewhere")
        verbs.add_parser("reconcile", help="give an outcome of unknown to old intents without one")

    def handle(self, *args: Any, **options: Any) -> None:
        match options["verb"]:
            case "verify":
                self.verify(options["head"] or "")
            case "head":
                row, digest = audit.head()
                self.stdout.write(f"{row}:{digest}")
            case "reconcile":
                self.stdout.write(f"{audit.reconcile()} intents closed as unknown.")

    def verify(self, head: str) -> None:
        faults = list(audit.verify())
        for fault in faults:
            self.stderr.write(fault.what)
        if head:
            row, _, digest = head.partition(":")
            if not row.isdigit() or not AuditRow.objects.filter(pk=int(row), digest=digest).exists():
                faults.append(audit.Fault(0, f"the chain does not hold the row #{row} that was once its end"))
                self.stderr.write(faults[-1].what)
        if faults:
            raise CommandError(
                f"{len(faults)} faults in {audit.head()[0]} rows: the audit is not as it was written"
            )
        self.stdout.write(f"{audit.head()[0]} rows, each as it was written.")
