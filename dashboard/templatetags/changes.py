"""The changes of the audit in words: rows keep them as JSON, for programs and for the chain."""

from __future__ import annotations

import json
from typing import Any, Protocol

from django import template

from dashboard.live.releases import written

register = template.Library()


class Changed(Protocol):
    """A row of the audit."""

    @property
    def before(self) -> str: ...

    @property
    def after(self) -> str: ...


@register.filter
def change(row: Changed) -> str:
    """What an act changed: "closed (epoch 3) → opens Fri 27 Nov 2026 09:00 UTC, 10 % (epoch 4)"; "" if nothing is known."""
    before, after = _read(row.before), _read(row.after)
    if isinstance(before, dict) and isinstance(after, dict) and not _is_gate(after):
        kept = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        before = {key: value for key, value in before.items() if key in kept}
        after = {key: value for key, value in after.items() if key in kept}
    said = [words(each) for each in (before, after) if each not in ("", None, {})]
    if row.before and not row.after:
        return f"was {said[0]}" if said else ""
    return " → ".join(said)


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _is_gate(value: dict[str, Any]) -> bool:
    return "state" in value and "epoch" in value


def words(value: Any) -> str:
    """A value of the audit for reading."""
    match value:
        case dict() if _is_gate(value):
            return _gate(value)
        case dict():
            return ", ".join(f"{str(key).replace('_', ' ')} {words(each)}" for key, each in value.items())
        case list():
            return ", ".join(words(each) for each in value) or "none"
        case bool():
            return "yes" if value else "no"
        case None:
            return "none"
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def _gate(state: dict[str, Any]) -> str:
    said = f"opens {_moment(state['not_before'])}" if "not_before" in state else str(state["state"])
    if "share" in state:
        said += f", {float(state['share']) * 100:g} %"
    if "until" in state:
        said += f", closes {_moment(state['until'])}"
    return f"{said} (epoch {state['epoch']})"


def _moment(at: Any) -> str:
    try:
        return written(float(at))
    except (ValueError, OverflowError, OSError, TypeError):
        return str(at)
