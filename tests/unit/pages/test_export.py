"""CSV for spreadsheets."""

from __future__ import annotations

import csv
import io

import pytest
from asgiref.sync import async_to_sync

from coordinator.spreadsheets import cell, csv_text
from dashboard.audit import queries as selectors
from dashboard.audit import views as export
from dashboard.core import audit
from dashboard.core.csv import streamed
from dashboard.core.permissions import Actor
from dashboard.sequences.views import ledger_parts


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1"])
def test_no_text_becomes_a_formula(text: str) -> None:
    assert cell(text) == f"'{text}"


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("x;=1+1", "x;'=1+1"),
        (";=1;=2", ";'=1;'=2"),
        ("=1;+2", "'=1;'+2"),
        ("x; \uff1d1", "x;' \uff1d1"),
        ("a\n=1", "a\n'=1"),
        ("month-end; 3 of 4", "month-end; 3 of 4"),
    ],
)
def test_no_part_of_a_text_becomes_a_formula_where_semicolons_separate_cells(text: str, safe: str) -> None:
    assert cell(text) == safe


def test_figures_and_plain_text_stay_as_they_are() -> None:
    assert [cell(value) for value in (-5, "orders", "", None)] == [-5, "orders", "", None]


async def test_a_file_is_named_safely() -> None:
    answer = streamed('ledger-a"/../b.csv', ledger_parts("a"))
    assert answer["Content-Disposition"] == 'attachment; filename="ledger-a..b.csv"'


def test_what_needs_it_is_quoted() -> None:
    assert csv_text([("owner",), ("a,b",), (None,)]).splitlines() == ["owner", '"a,b"', '""']


async def _parts(q: str, before: int | None) -> list[list[str]]:
    return [part.splitlines() async for part in export.audit_parts(q, before=before)]


@pytest.mark.django_db
@pytest.mark.parametrize("q", ["", "olga"])
def test_the_audit_comes_whole_and_a_page_at_a_time(monkeypatch: pytest.MonkeyPatch, q: str) -> None:
    monkeypatch.setattr(export, "FILE_ROWS", 3)
    for number in range(8):
        audit.denied(Actor("olga", "viewer", request_id=f"request-{number}"), "gate.open", f"gate-{number}")
    audit.denied(Actor("vera", "viewer"), "gate.open", "gate-8")
    parts = async_to_sync(_parts)(q, None)
    assert all(len(part) <= 3 for part in parts)
    rows = list(csv.DictReader(io.StringIO("\n".join(line for part in parts for line in part))))
    wanted = selectors.audit(q=q, limit=100).rows
    assert [int(row["id"]) for row in rows] == [row.id for row in wanted]
    assert len(rows) == (8 if q else 9)
    assert rows[-1] | {"id": "", "at": ""} == {
        "id": "", "at": "", "actor": "olga", "address": "", "action": "gate.open", "target": "gate-0",
        "outcome": "denied", "reason": "", "before": "", "after": "", "request_id": "request-0",
    }  # fmt: skip
    assert async_to_sync(_parts)("nobody", None) == [[",".join(export.AUDIT_HEAD)], []]
    older = async_to_sync(_parts)(q, wanted[-3].id)
    assert sum(map(len, older)) == 3  # the head, and two rows below that id
