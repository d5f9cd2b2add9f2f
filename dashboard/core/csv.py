"""The one writer of CSV, for spreadsheets: every file of the dashboard and of its commands."""

from __future__ import annotations

import csv
import unicodedata
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime
from io import StringIO
from typing import cast

from django.http import HttpResponse, StreamingHttpResponse

_BLANK = " \t\r\n\v\f\x00\xa0\u1680\u180e\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u200b\u200c\u200d\u200e\u200f\u2028\u2029\u202f\u205f\u2060\u3000\ufeff"


def moment(at: float | None) -> str | None:
    """A moment in ISO 8601; None for none, and a word for what is no moment."""
    if at is None:
        return None
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError, TypeError):
        return "unreadable"


def cell(value: object) -> object:
    """A text that a spreadsheet would run as a formula is quoted.

    Spreadsheets skip what is blank before it, and take a full-width sign for the plain one.
    """
    if not isinstance(value, str) or not value:
        return value
    shown = value.lstrip(_BLANK)
    first = unicodedata.normalize("NFKC", shown[:1])[:1]
    return f"'{value}" if value[0] in "\t\r\n" or (first and first in "=+-@") else value


def lines(rows: Iterable[Iterable[object]]) -> str:
    """Rows as lines of CSV, each text safe to open in a spreadsheet."""
    text = StringIO()
    csv.writer(text).writerows([cell(value) for value in row] for row in rows)
    return text.getvalue()


def streamed(name: str, parts: AsyncIterator[str]) -> HttpResponse:
    """A file that is sent while it is made."""
    answer = StreamingHttpResponse(parts, content_type="text/csv; charset=utf-8")
    answer["Content-Disposition"] = f'attachment; filename="{_safe(name)}"'
    return cast(HttpResponse, answer)  # all that decorators and middleware ask of it


def _safe(name: str) -> str:
    return "".join(letter for letter in name if letter.isalnum() or letter in "-_.")
