"""What an examination says."""

from __future__ import annotations

from typing import Literal

import msgspec

Verdict = Literal["ok", "warning", "fault", "skipped"]


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing looked at: the verdict, what was found, and the cure where there is something to do."""

    check: str
    verdict: Verdict
    found: str
    cure: str = ""
