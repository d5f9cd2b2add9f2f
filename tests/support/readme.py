"""The README's code, word for word."""

from __future__ import annotations

import re
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def python_blocks() -> list[str]:
    """The blocks marked as Python, in their order."""
    return re.findall(r"^```python\n(.*?)^```", (PROJECT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
