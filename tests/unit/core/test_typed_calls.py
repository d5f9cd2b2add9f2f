"""A type checker finds misspelt and mistyped calls of the public API, so an editor does too."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CALLS = ROOT / "tests" / "typed" / "wrong_calls.py"


@pytest.mark.timeout(300)
def test_each_wrong_call_is_reported_and_nothing_else():
    wrong = {
        number for number, line in enumerate(CALLS.read_text().splitlines(), 1) if line.endswith("# wrong")
    }
    # With our configuration, as `make lint` runs beside the tests: what it has looked at is kept, and not looked at again.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", CALLS],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")},
        capture_output=True,
        text=True,
    )
    reported = {int(number) for number in re.findall(r"wrong_calls\.py:(\d+): error", done.stdout)}
    assert len(wrong) >= 30
    assert reported == wrong, f"not reported: {wrong - reported}; too much: {reported - wrong}\n{done.stdout}"
