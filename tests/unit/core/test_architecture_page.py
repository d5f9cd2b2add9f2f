"""docs/architecture.md names modules and functions that exist."""

from __future__ import annotations

import ast
import re

import pytest

from tests.support.reliability import ROOT

NAMED = re.findall(
    r"`((?:coordinator|dashboard)/[\w/]+\.py)(?::([\w.]+))?`", (ROOT / "docs/architecture.md").read_text()
)


def names_of(body: list[ast.stmt], before: str = "") -> set[str]:
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(before + node.name)
        if isinstance(node, ast.ClassDef):
            found |= names_of(node.body, f"{before}{node.name}.")
    return found


@pytest.mark.parametrize(("path", "name"), sorted(set(NAMED)))
def test_what_the_page_names_exists(path: str, name: str) -> None:
    source = (ROOT / path).read_text()
    assert not name or name in names_of(ast.parse(source).body)


def test_the_page_walks_through_more_than_a_few_modules() -> None:
    assert len({path for path, _ in NAMED}) > 25


@pytest.mark.parametrize("package", ["coordinator", "dashboard"])
def test_every_room_is_on_the_page(package: str) -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    rooms = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")} - {
        "migrations",
        "templatetags",
    }
    assert not {room for room in rooms if not re.search(rf"\b{room}\b", page)}
