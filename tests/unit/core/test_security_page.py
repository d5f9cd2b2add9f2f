"""docs/security.md names tests that exist."""

from __future__ import annotations

import ast
import re

import pytest

from tests.support.reliability import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


@pytest.mark.parametrize(("path", "name"), NAMED, ids=[name for _, name in NAMED])
def test_the_test_that_the_page_names_exists(path: str, name: str) -> None:
    tree = ast.parse((ROOT / path).read_text())
    defined = {each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert name in defined


@pytest.mark.parametrize("section", ["Threats and answers", "Attacks that were tried"])
def test_each_row_has_an_answer_and_a_test(section: str) -> None:
    text = PAGE.split(f"## {section}")[1].split("\n## ")[0]
    head, _, *rows = [row for row in text.splitlines() if row.startswith("|")]
    assert len(rows) >= 30
    columns = head.count("|")
    assert [row for row in rows if row.count("|") != columns or "::test_" not in row.split("|")[-2]] == []


def test_no_test_is_named_without_its_file() -> None:
    assert re.findall(r"`test_\w+`", PAGE) == []
