"""The README's code, word for word, and texts from which one line is missing."""

from __future__ import annotations

import re
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def python_blocks() -> list[str]:
    """The blocks marked as Python, in their order."""
    return re.findall(r"^```python\n(.*?)^```", (PROJECT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def without_each_line(text: str) -> list[tuple[str, str]]:
    """Each line that does something, and the text without it."""
    lines = text.splitlines(keepends=True)
    return [
        (f"{number + 1} {line.strip()[:40]}", "".join(lines[:number] + lines[number + 1 :]))
        for number, line in enumerate(lines)
        if line.strip() and not line.strip().startswith("#")
    ]
