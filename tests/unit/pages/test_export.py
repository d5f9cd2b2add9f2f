"""CSV for spreadsheets."""

from __future__ import annotations

import pytest

from dashboard.pages.export import _file, cell


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1"])
def test_no_text_becomes_a_formula(text: str) -> None:
    assert cell(text) == f"'{text}"


def test_figures_and_plain_text_stay_as_they_are() -> None:
    assert [cell(value) for value in (-5, "orders", "", None)] == [-5, "orders", "", None]


def test_a_file_is_named_safely_and_quotes_what_needs_it() -> None:
    answer = _file('ledger-a"/../b.csv', ("owner",), [("a,b",), (None,)])
    assert answer["Content-Disposition"] == 'attachment; filename="ledger-a..b.csv"'
    assert answer.content.decode().splitlines() == ["owner", '"a,b"', '""']
