"""``manage.py ledger_index [--rebuild NAME]``: how far the index of each ledger has come; forget one, to be read again."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dashboard.live.ledger_index import clear
from dashboard.models import LedgerBook


class Command(BaseCommand):
    help = "Show the progress of the index of each sequence's ledger; with --rebuild delete one, to build it again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--rebuild", metavar="NAME", help="the sequence whose index to build again")

    def handle(self, *args: Any, **options: Any) -> None:
        name = options["rebuild"]
        if name:
            book = LedgerBook.objects.filter(name=name).first()
            if book is None:
                raise CommandError(
                    f"there is no index of a sequence {name!r}; without --rebuild all are listed"
                )
            clear(book, book.source, book.start)
        for book in LedgerBook.objects.order_by("name"):
            self.stdout.write(
                f"{book.name}: {book.rows.count()} rows, read up to {book.next - 1} of {book.counter - 1}"
            )
