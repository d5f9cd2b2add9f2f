"""Writes docs/reliability.md from the tables of faults that the tests check."""

from __future__ import annotations

from tests.support.reliability import ROOT, page

if __name__ == "__main__":
    (ROOT / "docs" / "reliability.md").write_text(page())
