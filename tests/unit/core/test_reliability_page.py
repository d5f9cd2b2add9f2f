"""docs/reliability.md says what the tables of faults say."""

from __future__ import annotations

from tests.support.reliability import ROOT, page


def test_the_page_is_the_one_that_the_tables_make():
    written = (ROOT / "docs" / "reliability.md").read_text()
    assert written == page(), "run PYTHONPATH=. python scripts/reliability.py"
