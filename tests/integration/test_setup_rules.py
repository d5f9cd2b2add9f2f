"""The import rules catch what they are there to catch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def lint_imports(folder: Path) -> tuple[int, str]:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def test_each_import_rule_breaks_on_an_import_that_it_forbids(tmp_path: Path) -> None:
    for package in ("coordinator", "dashboard"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "coordinator" / "gates" / "stray.py").write_text("import azure.storage.blob\n")
    (tmp_path / "coordinator" / "stray.py").write_text(
        "import django\nimport dashboard\nimport coordinator.stray_too\n"
    )
    (tmp_path / "coordinator" / "stray_too.py").write_text("import coordinator.stray\n")
    (tmp_path / "dashboard" / "stray.py").write_text("import azure.storage.blob\n")
    code, said = lint_imports(tmp_path)
    assert code == 1, said
    assert "1 kept, 5 broken" in said, said
