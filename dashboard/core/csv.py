"""Files of CSV as the dashboard sends them. `coordinator.spreadsheets` writes their lines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import cast

from django.http import HttpResponse, StreamingHttpResponse


def moment(at: float | None) -> str | None:
    """A moment in ISO 8601; None for none, and a word for what is no moment."""
    if at is None:
        return None
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError, TypeError):
        return "unreadable"


def streamed(name: str, parts: AsyncIterator[str]) -> HttpResponse:
    """A file that is sent while it is made."""
    answer = StreamingHttpResponse(parts, content_type="text/csv; charset=utf-8")
    answer["Content-Disposition"] = f'attachment; filename="{_safe(name)}"'
    return cast(HttpResponse, answer)  # all that decorators and middleware ask of it


def _safe(name: str) -> str:
    return "".join(letter for letter in name if letter.isalnum() or letter in "-_.")
