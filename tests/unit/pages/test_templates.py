"""How templates are written: short lines, and indentation that costs no bytes of a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.conf import settings
from django.template import engines

TEMPLATES = Path(settings.BASE_DIR) / "templates"
EACH = pytest.mark.parametrize(
    "path", sorted(TEMPLATES.rglob("*.html")), ids=lambda path: str(path.relative_to(TEMPLATES))
)


@EACH
def test_no_line_is_longer_than_120_characters(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [number for number, line in enumerate(lines, 1) if len(line) > 120] == []


@EACH
def test_indentation_stays_in_the_file_and_lines_keep_their_numbers(path: Path) -> None:
    written = path.read_text(encoding="utf-8")
    template = engines["django"].get_template(str(path.relative_to(TEMPLATES)))
    loaded = template.template.source  # type: ignore[attr-defined]
    assert not re.search(r"\n[ \t]", loaded)
    assert loaded.split() == written.split() and loaded.count("\n") == written.count("\n")
