"""``manage.py audit verify|head|reconcile|export|prune``: whether the audit is whole, and how long it is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from coordinator.errors import KennelError
from coordinator.spreadsheets import csv_text
from dashboard.core import audit, audit_chain, audit_heads
from dashboard.core import retention as actions
from dashboard.core.audit import FIELDS, ActionFailed
from dashboard.core.audit_chain import LINKS, Chain, ChainFault, Export
from dashboard.core.permissions import Actor
from dashboard.hub.runtime import call, storage


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
                head = _head(options["head"]) if options["head"] is not None else None
                if options["file"]:
                    self.verify_file(options["file"], head)
                else:
                    self.verify(head, with_storage=not options["without_storage"])
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

    def verify(self, head: tuple[int, str] | None, *, with_storage: bool) -> None:
        chain = Chain(audit.head, head=head)
        faults = list(audit_chain.verify(chain))
        kept = self.kept() if with_storage else None
        if kept is not None:
            faults += audit_heads.verify(kept)
        self.conclude("audit", chain, faults)
        if kept is None:
            self.stdout.write("Not compared with the ends kept in the storage account.")
        else:
            signed = ", signed" if settings.AUDIT_KEY else ""
            self.stdout.write(f"{len(kept)} ends kept in the storage account{signed} are all in it.")

    def verify_file(self, path: Path, head: tuple[int, str] | None) -> None:
        export = Export()
        chain = Chain(lambda: export.end, head=head)
        try:
            # What is not UTF-8 was not written by the export: such a row must be named, not end the command.
            with path.open(encoding="utf-8", errors="surrogateescape") as lines:
                faults = list(chain.faults(export.rows(lines)))
        except OSError as error:
            raise CommandError(f"{path} cannot be read: {error.strerror}.") from error
        self.conclude("export", chain, faults)
        if head is None:
            self.stdout.write("Not compared with a head kept elsewhere (--head ID:DIGEST).")

    def conclude(self, what: str, chain: Chain, faults: list[ChainFault]) -> None:
        """Print what the walk found; a fault is an error."""
        for fault in faults:
            self.stderr.write(fault.what)
        if faults:
            raise CommandError(
                f"{len(faults)} faults in {chain.count} rows: the {what} is not as it was written"
            )
        last, _ = chain.pruned
        if chain.head is not None and chain.head_was_pruned:
            raise CommandError(
                f"#{chain.head[0]} was removed by retention, as all up to #{last}: use a newer head, or an export"
            )
        before = f", after {last} that retention removed" if chain.first > 1 else ""
        self.stdout.write(f"{chain.count} rows{before}, each as it was written.")

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

    def export(self, form: str, to: Path | None) -> None:
        end = audit.head()
        rows = audit_chain.rows(end[0])
        lines = _csv(rows) if form == "csv" else Export.lines(rows, end)
        try:
            if to is None:
                for line in lines:
                    self.stdout.write(line)
                return
            with to.open("x", encoding="utf-8", newline="") as file:
                file.writelines(f"{line}\n" for line in lines)
        except FileExistsError as error:
            raise CommandError(f"{to} exists; name a new file.") from error
        except OSError as error:
            raise CommandError(f"{to or 'The output'} cannot be written: {error.strerror}.") from error
        except ActionFailed as error:
            raise CommandError(f"The export stops here: {error}; see `audit verify`.") from error


def _csv(rows: Iterator[dict[str, Any]]) -> Iterator[str]:
    names = (*FIELDS, *LINKS)
    yield csv_text([names]).rstrip("\r\n")
    for row in rows:
        yield csv_text([[row[name] for name in names]]).rstrip("\r\n")


def _head(text: str) -> tuple[int, str]:
    row, _, digest = text.partition(":")
    if not (row.isascii() and row.isdecimal() and digest):
        raise CommandError(f"--head is ID:DIGEST, as `audit head` prints it, not {text!r}.")
    return int(row), digest


_ACTOR = Actor("command line", "admin")
