"""Promises of taking back *Leash everything*, as the audit knows it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dashboard.core import audit
from dashboard.core.audit import ActionFailed
from dashboard.core.permissions import Actor
from dashboard.gates import undo
from dashboard.models import AuditOutcome

pytestmark = pytest.mark.django_db

OLGA = Actor("olga", "operator", request_id="press-0001")


def closed(gate: str, epoch: int, was: dict[str, Any]) -> None:
    """`gate` was closed by the press, with that epoch; `was` is what the dashboard knew of it."""
    row = audit.intent(OLGA, "gate.close", gate)
    now = json.dumps({"state": "closed", "epoch": epoch})
    audit.outcome(row, AuditOutcome.DONE, before=json.dumps(was), after=now)


def test_what_was_open_or_armed_is_opened_as_it_was() -> None:
    closed("open", 8, {"state": "open", "epoch": 7, "not_before": 1.0, "share": 0.25})
    closed("armed", 3, {"state": "armed", "epoch": 2, "not_before": 4e9, "until": 5e9})
    closed("closed", 5, {"state": "closed", "epoch": 4})
    armed, opened = undo.closed_by("press-0001")
    assert (armed.name, armed.epoch, armed.opens_at, armed.until, armed.share) == ("armed", 3, 4e9, 5e9, 1.0)
    assert (opened.name, opened.opens_at, opened.share, opened.is_known) == ("open", None, 0.25, True)
    assert undo.closed_by("another-press") == []


def test_a_gate_that_somebody_changed_at_that_moment_is_not_guessed() -> None:
    closed("start", 9, {"state": "open", "epoch": 7})
    (gate,) = undo.closed_by("press-0001")
    assert gate.plan == "start stays closed: it was changed as it was leashed, so open it by hand"
    with pytest.raises(ActionFailed, match="open it by hand"):
        undo.reopen(OLGA, gate)


def test_of_a_thousand_gates_none_is_left_out() -> None:
    for number in range(1001):
        closed(f"g-{number}", 2, {"state": "open", "epoch": 1})
    assert len(undo.closed_by("press-0001")) == 1001
