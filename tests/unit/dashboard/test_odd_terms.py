"""A row of terms with a value that the SDK cannot decode: the Leaders page says so."""

from __future__ import annotations

from typing import Any

import pytest

from dashboard.leaders import queries


def test_terms_that_cannot_be_decoded_are_a_problem_and_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(*_: Any) -> Any:
        raise ValueError("time data '0000-01-01'\ndoes not match")

    monkeypatch.setattr(queries, "look", look)
    found = queries.newest("month-end")
    assert found.rows == ()
    assert found.problem == "The terms are unreadable: time data '0000-01-01' does not match"
