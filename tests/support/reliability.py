"""The tables of faults: what a user gets when a fault meets a part of Kennel.

A test module of `tests/faults` or `tests/hostile` declares one `TABLE` and parametrizes its tests with the table's cells,
so that docs/reliability.md, which `scripts/reliability.py` writes from the tables, shows only what the tests check.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDERS = ("faults", "hostile")


@dataclass(frozen=True, slots=True)
class Cell:
    """One promise: when `fault` meets `subject`, the user gets `outcome` (a plain sentence without a full stop)."""

    fault: str
    subject: str
    outcome: str

    def __str__(self) -> str:
        """The id of the test that checks it."""
        return f"{self.fault} / {self.subject}"


@dataclass(frozen=True)
class Table:
    """`title` heads the table on the page, `intro` is one or two sentences below it; `order` sorts the page."""

    title: str
    intro: str
    cells: tuple[Cell, ...]
    order: int = 50

    def __post_init__(self) -> None:
        seen = [(cell.fault, cell.subject) for cell in self.cells]
        assert len(seen) == len(set(seen)), f"{self.title}: a cell is declared twice"

    def markdown(self) -> str:
        """Rows are faults; where all subjects of a fault share an outcome, one row says it for all."""
        lines = [f"## {self.title}", "", self.intro, "", "| Fault | Subject | Outcome |", "|---|---|---|"]
        for fault in dict.fromkeys(cell.fault for cell in self.cells):
            outcomes: dict[str, list[str]] = {}
            for cell in self.cells:
                if cell.fault == fault:
                    outcomes.setdefault(cell.outcome, []).append(cell.subject)
            for outcome, subjects in outcomes.items():
                lines.append(f"| {fault} | {', '.join(subjects)} | {outcome} |")
        return "\n".join([*lines, ""])


def tables() -> Iterator[Table]:
    """Every `TABLE` of the test modules, in the page's order."""
    found = [
        importlib.import_module(f"tests.{folder}.{path.stem}")
        for folder in FOLDERS
        for path in sorted((ROOT / "tests" / folder).glob("test_*.py"))
    ]
    declared = [module.TABLE for module in found if hasattr(module, "TABLE")]
    yield from sorted(declared, key=lambda table: (table.order, table.title))


def page() -> str:
    """The whole of docs/reliability.md."""
    head = (
        "# Reliability\n\n"
        "This page lists the outcome of each fault. The test suite checks each row on every change; the page is generated from\n"
        "those tests by `python scripts/reliability.py`.\n"
    )
    return "\n".join([head, *(table.markdown() for table in tables())])
