"""Imports run in no circle, and none hides in a function but those of optional extras."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support.reliability import ROOT

OPTIONAL = {"psycopg", "redis", "watchfiles"}
Imports = dict[str, set[str]]


def modules_of(folder: Path) -> dict[str, Path]:
    found = {}
    for path in folder.rglob("*.py"):
        name = ".".join(path.relative_to(folder.parent).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def imported(tree: ast.AST) -> Iterator[str]:
    """Every name that is imported, also under TYPE_CHECKING and in functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"a relative import of {node.module}"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def graph(modules: dict[str, Path]) -> Imports:
    edges: Imports = {}
    for name, path in modules.items():
        edges[name] = set()
        for target in imported(ast.parse(path.read_text())):
            while target and target not in modules:
                target = target.rpartition(".")[0]
            edges[name] |= {target} - {"", name}
    return edges


def cycle_in(edges: Imports) -> list[str]:
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("package", ["coordinator", "dashboard"])
def test_no_module_imports_itself_by_way_of_others(package: str) -> None:
    assert cycle_in(graph(modules_of(ROOT / package))) == []


def test_a_cycle_is_found_also_under_type_checking_and_in_a_function(tmp_path: Path) -> None:
    room = tmp_path / "room"
    room.mkdir()
    (room / "__init__.py").write_text("")
    (room / "upper.py").write_text("def make():\n    from room.lower import Lower\n    return Lower()\n")
    (room / "lower.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from room.upper import make\nclass Lower: ...\n"
    )
    assert set(cycle_in(graph(modules_of(room)))) == {"room.upper", "room.lower"}


@pytest.mark.parametrize("package", ["coordinator", "dashboard"])
def test_only_optional_extras_are_imported_inside_a_function(package: str) -> None:
    hidden = set()
    for name, path in modules_of(ROOT / package).items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                hidden |= {(name, target) for target in imported(node)}
    assert {(name, target) for name, target in hidden if target.partition(".")[0] not in OPTIONAL} == set()
    assert len(hidden) <= 5
