"""When something is due: pure, in UTC."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Literal

import croniter

from coordinator.errors import ConfigurationError

_cron: Any = croniter.croniter  # ships no types
Missed = Literal["skip", "once"]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_INTERVAL = re.compile(r"([1-9][0-9]*)([smhd])")


@dataclass(frozen=True)
class Schedule:
    """``"30s"``, ``"5m"``, ``"2h"``, ``"1d"`` (whole multiples since 1970, so all nodes mean the same moments), or a cron
    expression of five fields, in UTC."""

    text: str

    def __post_init__(self) -> None:
        if not _INTERVAL.fullmatch(self.text) and not (
            len(self.text.split()) == 5 and _cron.is_valid(self.text)
        ):
            raise ConfigurationError(
                f"schedule {self.text!r}: use a number with s, m, h or d (such as 5m), or a cron expression of five "
                "fields (such as 0 3 * * *)"
            )

    def next_after(self, moment: float) -> float:
        """The first moment of the schedule after that one, in seconds since 1970."""
        if seconds := self._interval():
            return (math.floor(moment / seconds) + 1) * float(seconds)
        return float(_cron(self.text, moment).get_next(float))

    def newest_by(self, moment: float) -> float:
        """The newest moment of the schedule that is not after that one."""
        if seconds := self._interval():
            return math.floor(moment / seconds) * float(seconds)
        return float(_cron(self.text, math.floor(moment) + 1).get_prev(float))

    def _interval(self) -> int:
        match = _INTERVAL.fullmatch(self.text)
        return int(match[1]) * _UNITS[match[2]] if match else 0


@dataclass(frozen=True)
class Due:
    """What to do: run for the moment `scheduled_at` (None: nothing), then look again at `look_at`."""

    scheduled_at: float | None
    look_at: float


def due(schedule: Schedule, *, last: float, now: float, missed: Missed, late_seconds: float) -> Due:
    """What is due, given the newest moment that was run or skipped before.

    A moment that is at most `late_seconds` past is simply run: a fail-over takes that long. Older ones were missed:
    "skip" leaves them out, "once" runs once for all of them.
    """
    newest = schedule.newest_by(now)
    following = schedule.next_after(max(now, last))
    if newest <= last:
        return Due(None, following)
    if missed == "once" or now - newest <= late_seconds:
        return Due(newest, following)
    return Due(None, following)
