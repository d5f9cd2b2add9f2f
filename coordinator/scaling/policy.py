"""What an operator wishes of the scaling agent: bounds, a latency, cool-downs, hours. Storable, checked when built."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from msgspec import Meta

from coordinator.bounds import MAX_COUNT, MAX_ITEMS, Figure, KeyText, Remark, plainly
from coordinator.errors import ConfigurationError

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)|24:00")


# Its lower bound is checked with a sentence of its own.
_Whole = Annotated[int, Meta(ge=-MAX_COUNT, le=MAX_COUNT)]


class Window(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hours with bounds of their own, which go before anything that is measured.

    `days` are ``mon`` … ``sun``; `start` and `end` are ``HH:MM`` in the policy's time zone; an `end` before `start` is on the
    next day. Where windows overlap, the highest minimum and the lowest maximum count, and the maximum wins.
    """

    start: KeyText
    end: KeyText
    days: Annotated[tuple[KeyText, ...], Meta(max_length=MAX_ITEMS)] = DAYS
    minimum: _Whole | None = None
    maximum: _Whole | None = None
    reason: Remark = ""

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            if not _TIME.fullmatch(getattr(self, name)):
                raise ConfigurationError(f"window {name} {getattr(self, name)!r}: use HH:MM, such as 08:30")
        if unknown := [day for day in self.days if day not in DAYS]:
            raise ConfigurationError(f"window days {unknown}: use {', '.join(DAYS)}")
        if self.minimum is None and self.maximum is None:
            raise ConfigurationError("a window needs a minimum or a maximum")
        if (self.minimum or 0) < 0 or (self.maximum is not None and self.maximum < (self.minimum or 0)):
            raise ConfigurationError(
                f"a window needs 0 <= minimum <= maximum, got {self.minimum} and {self.maximum}"
            )

    def covers(self, moment: datetime) -> bool:
        """Whether that local time is within."""
        minute = moment.hour * 60 + moment.minute
        start, end = _minutes(self.start), _minutes(self.end)
        today, yesterday = DAYS[moment.weekday()], DAYS[moment.weekday() - 1]
        if start < end:
            return today in self.days and start <= minute < end
        return (today in self.days and minute >= start) or (yesterday in self.days and minute < end)


class ScalingPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a pool of workers is scaled. Nothing delays a step up.

    Attributes:
        minimum: Minimum number of instances (default 0).
        maximum: Maximum number of instances (default 10).
        target_seconds: How soon after its arrival an item should be done (default 60).
        boot_seconds: From the request for an instance to its first item (default 30). Too small starts too few.
        instance_per_second: Items that one instance does in a second, until workers report it (default 10).
        slots: Messages that one instance processes at a time, until workers report it (default 10).
        step_seconds: Seconds between two steps down while work arrives (default 5).
        cooldown_seconds: A step up within twice this time after a step down shows that the step down was wrong: the
            next one waits this long, and twice as long each time again (default 180).
        idle_seconds: Seconds without an arrival before the last instance is removed (default 60).
        cpu_high: Processor use, 0 to 1, above which one more is started, whatever the queue says (default 0.9).
        windows: Hours with a minimum or maximum of their own, which take precedence.
        time_zone: Of the windows, an IANA name (default UTC).
        forecast: Whether there are at least as many instances as the mean rate of the same hour a week before needs,
            ready when it begins (default False).

    Raises:
        ConfigurationError: A value is out of bounds.
    """

    minimum: _Whole = 0
    maximum: _Whole = 10
    target_seconds: Figure = 60.0
    boot_seconds: Figure = 30.0
    instance_per_second: Figure = 10.0
    slots: _Whole = 10
    step_seconds: Figure = 5.0
    cooldown_seconds: Figure = 180.0
    idle_seconds: Figure = 60.0
    cpu_high: Figure = 0.9
    windows: Annotated[tuple[Window, ...], Meta(max_length=MAX_ITEMS)] = ()
    time_zone: KeyText = "UTC"
    forecast: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.minimum <= self.maximum or self.maximum < 1:
            raise ConfigurationError(
                f"a policy needs 0 <= minimum <= maximum, got {self.minimum} and {self.maximum}"
            )
        for name in ("target_seconds", "instance_per_second", "step_seconds", "cooldown_seconds"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"{name} must be positive, got {getattr(self, name)}")
        if self.idle_seconds < 0:
            raise ConfigurationError(f"idle_seconds must not be negative, got {self.idle_seconds}")
        if self.boot_seconds < 0 or self.slots < 1 or not 0 < self.cpu_high <= 1:
            raise ConfigurationError("a policy needs boot_seconds >= 0, slots >= 1 and 0 < cpu_high <= 1")
        if self.step_seconds > self.cooldown_seconds:
            raise ConfigurationError("step_seconds must not be longer than cooldown_seconds")
        self._zone()

    def bounds(self, at: float) -> tuple[int, int, str]:
        """The bounds at a moment.

        Args:
            at: Seconds since 1970.

        Returns:
            Minimum and maximum number of instances, and the reason if a window sets them.
        """
        local = datetime.fromtimestamp(at, tz=UTC).astimezone(self._zone())
        lowest, highest, reasons = self.minimum, self.maximum, []
        for window in self.windows:
            if window.covers(local):
                lowest = max(lowest, window.minimum or 0)
                highest = min(highest, self.maximum if window.maximum is None else window.maximum)
                reasons.append(window.reason or f"{window.start}-{window.end}")
        return min(lowest, highest), highest, ", ".join(reasons)

    def _zone(self) -> ZoneInfo:
        try:
            return ZoneInfo(self.time_zone)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise ConfigurationError(
                f"time zone {self.time_zone!r}: use an IANA name, such as Europe/Berlin"
            ) from error


_decoder: msgspec.json.Decoder[ScalingPolicy] = msgspec.json.Decoder(ScalingPolicy)


def encode_policy(policy: ScalingPolicy) -> str:
    """The stored form: JSON."""
    return msgspec.json.encode(policy).decode()


def decode_policy(text: str | bytes) -> ScalingPolicy:
    """Read the stored form; raises `ConfigurationError` naming the fault."""
    try:
        return _decoder.decode(text)
    except ConfigurationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"this is not a scaling policy: {plainly(error)}") from error


def _minutes(text: str) -> int:
    hours, minutes = text.split(":")
    return int(hours) * 60 + int(minutes)
