"""CSV that is safe to open in a spreadsheet: the one writer of the library and of the dashboard."""

from __future__ import annotations

import csv
import re
import unicodedata
from collections.abc import Iterable
from io import StringIO

_SEPARATORS = re.compile("([;\r\n])")
_BLANK = " \t\r\n\v\f\x00\xa0\u1680\u180e\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u200b\u200c\u200d\u200e\u200f\u2028\u2029\u202f\u205f\u2060\u3000\ufeff"


def cell(value: object) -> object:
    """A text that a spreadsheet would run as a formula is quoted, and so is each part of it behind a semicolon or a line break.

    Spreadsheets skip what is blank before it, and take a full-width sign for the plain one. Where a semicolon separates cells,
    they split a line of CSV there, within a text too.
    """
    if not isinstance(value, str) or not value:
        return value
    before = len(value) - len(value.lstrip(_BLANK))
    first, *rest = _SEPARATORS.split(value[before:])
    quote = "'" if value[0] in "\t\r\n" or _is_formula(first) else ""
    if not rest:
        return quote + value
    return (
        quote + value[:before] + first + "".join(f"'{each}" if _is_formula(each) else each for each in rest)
    )


def _is_formula(text: str) -> bool:
    first = unicodedata.normalize("NFKC", text.lstrip(_BLANK)[:1])[:1]
    return bool(first) and first in "=+-@"


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Rows as lines of CSV, each text safe to open in a spreadsheet."""
    text = StringIO()
    csv.writer(text).writerows([cell(value) for value in row] for row in rows)
    return text.getvalue()
