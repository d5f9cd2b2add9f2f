"""What to do without a part that tests need."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def missing(part: str, remedy: str) -> NoReturn:
    """A part that tests need cannot be had: CI fails, a laptop skips with one clear line."""
    line = f"{part} is missing: {remedy}"
    if in_ci():
        pytest.fail(line, pytrace=False)
    pytest.skip(line)
