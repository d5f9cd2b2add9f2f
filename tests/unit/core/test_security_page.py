"""docs/security.md names tests that exist."""

from __future__ import annotations

import ast
import re

import pytest

from tests.support.reliability import ROOT

NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "security.md").read_text())


@pytest.mark.parametrize(("path", "name"), NAMED, ids=[name for _, name in NAMED])
def test_the_test_that_the_page_names_exists(path: str, name: str) -> None:
    tree = ast.parse((ROOT / path).read_text())
    defined = {each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert name in defined


def test_each_attack_has_an_answer_and_a_test() -> None:
    text = (
        (ROOT / "docs" / "security.md").read_text().split("## Attacks that were tried")[1].split("\n## ")[0]
    )
    rows = [row for row in text.splitlines() if row.startswith("| ")][2:]
    assert len(rows) >= 30
    assert [row for row in rows if row.count("|") < 4 or "::test_" not in row] == []
