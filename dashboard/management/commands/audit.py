"""``manage.py audit verify|head|reconcile|export|prune``: whether the audit is whole, and how long it is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from coordinator.errors import KennelError
from coordinator.spreadsheets import csv_text
from dashboard.core import audit, audit_heads
from dashboard.core import retention as actions
from dashboard.core.audit import ActionFailed
from dashboard.core.permissions import Actor
from dashboard.hub.runtime import call, storage
from dashboard.models import AuditRow


class Command(BaseCommand):
    help = "Verify the audit's chain, show its end, export it, remove old rows, or close intents that a crash left open."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        verify = verbs.add_parser(
            "verify", help="verify the chain; exit code 1 if a row was changed or removed, each named"
        )
        verify.add_argument(
            "--head", help="ID:DIGEST that `audit head` printed earlier; the chain must contain it"
        )
        verify.add_argument(
            "--without-storage",
            action="store_true",
            help="do not compare with the ends stored in the account",
        )
        verify.add_argument("--file", type=Path, help="an export to verify instead, without the database")
        export = verbs.add_parser("export", help="write each row as a line of JSON or CSV, with its digest")
        export.add_argument("--format", choices=["jsonl", "csv"], default="jsonl")
        export.add_argument("--to", type=Path, help="a new file (default: standard output)")
        prune = verbs.add_parser("prune", help="remove old rows; the others can still be verified")
        prune.add_argument("--keep-days", type=float, required=True)
        prune.add_argument("--reason", default="")
        verbs.add_parser("head", help="print ID:DIGEST of the newest row, to store elsewhere")
        verbs.add_parser("reconcile", help="close old intents without an outcome as unknown")

    def handle(self, *args: Any, **options: Any) -> None:
        match options["verb"]:
            case "verify":
                self.verify_file(options["file"]) if options["file"] else self.verify(
                    options["head"] or "", with_storage=not options["without_storage"]
                )
            case "export":
                self.export(options["format"], options["to"])
            case "prune":
                try:
                    gone = actions.prune_audit(_ACTOR, options["keep_days"], reason=options["reason"])
                except ActionFailed as error:
                    raise CommandError(str(error)) from error
                self.stdout.write(f"{gone} rows removed.")
            case "head":
                row, digest = audit.head()
                self.stdout.write(f"{row}:{digest}")
            case "reconcile":
                self.stdout.write(f"{audit.reconcile()} intents closed as unknown.")

    def verify(self, head: str, *, with_storage: bool) -> None:
        faults = list(audit.verify())
        kept = self.kept() if with_storage else None
        if kept is not None:
            faults += audit_heads.verify(kept)
        for fault in faults:
            self.stderr.write(fault.what)
        if head and not self._holds(head):
            faults.append(
                audit.ChainFault(
                    0, f"the chain does not hold the row #{head.partition(':')[0]} that was once its end"
                )
            )
            self.stderr.write(faults[-1].what)
        if faults:
            raise CommandError(
                f"{len(faults)} faults in {audit.head()[0]} rows: the audit is not as it was written"
            )
        last, _ = audit.pruned()
        before = f", after {last} that retention removed" if last else ""
        self.stdout.write(f"{audit.head()[0] - last} rows{before}, each as it was written.")
        if kept is None:
            self.stdout.write("Not compared with the ends kept in the storage account.")
        else:
            signed = ", signed" if settings.AUDIT_KEY else ""
            self.stdout.write(f"{len(kept)} ends kept in the storage account{signed} are all in it.")

    def kept(self) -> list[str] | None:
        """The lines of the journal; None if no account is named."""
        if not settings.STORAGE_ENV:
            return None
        try:
            return call(audit_heads.kept, storage())
        except KennelError as error:
            raise CommandError(
                f"The ends kept in the storage account cannot be read ({error}); see --without-storage."
            ) from error

    def _holds(self, head: str) -> bool:
        row, _, digest = head.partition(":")
        last, its_digest = audit.pruned()
        if row.isdecimal() and int(row) < last:
            raise CommandError(
                f"#{row} was removed by retention, as all up to #{last}: use a newer head, or an export"
            )
        if (row, digest) == (str(last), its_digest):
            return True
        return row.isdecimal() and AuditRow.objects.filter(pk=int(row), digest=digest).exists()

    def verify_file(self, path: Path) -> None:
        with path.open(encoding="utf-8") as lines:
            faults = list(audit.verify_lines(lines))
        for fault in faults:
            self.stderr.write(fault.what)
        if faults:
            raise CommandError(f"{len(faults)} faults: the export is not as it was written")
        self.stdout.write("Each row as it was written.")

    def export(self, form: str, to: Path | None) -> None:
        rows = audit.lines()
        if form == "csv":
            rows = _csv(rows)
        if to is None:
            for row in rows:
                self.stdout.write(row)
            return
        try:
            with to.open("x", encoding="utf-8", newline="") as file:
                file.writelines(f"{row}\n" for row in rows)
        except FileExistsError as error:
            raise CommandError(f"{to} exists; name a new file.") from error


def _csv(rows: Iterator[str]) -> Iterator[str]:
    names = (*audit.FIELDS, "previous", "digest")
    yield csv_text([names]).rstrip("\r\n")
    for row in rows:
        values = json.loads(row)
        yield csv_text([[values.get(name) for name in names]]).rstrip("\r\n")


_ACTOR = Actor("command line", "admin")
