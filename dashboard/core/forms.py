"""Texts, numbers and addresses that people type, as requests bring them."""

from __future__ import annotations

import re

from django.http import HttpRequest
from django.utils.http import urlencode

# No database and no page can hold them.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def text(request: HttpRequest, name: str, limit: int = 200) -> str:
    """A field of the form, trimmed."""
    return _UNSTORABLE.sub(" ", request.POST.get(name, "")).strip()[:limit]


def whole_number(value: str) -> int | None:
    """A number as people type it, with or without spaces; None for anything else."""
    digits = "".join(value.split()).replace("\N{NARROW NO-BREAK SPACE}", "")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 else None


def query_of(**values: object) -> str:
    """A query string of those values that say something."""
    return urlencode({key: str(value) for key, value in values.items() if value not in (None, "")})
