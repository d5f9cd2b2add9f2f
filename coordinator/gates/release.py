"""What a gate is told, and what it tells of a pass."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.errors import ConfigurationError


@dataclass(frozen=True)
class GateConfig:
    """How often a gate looks at storage.

    `poll_seconds`: while hints cannot be expected to arrive (no hub, or cut off), 2.5 by default. Each pause is
    0.8-1.0 of it, so that a fleet spreads out but nobody is later than that. Smaller releases sooner and costs more.
    `push_poll_seconds`: while hints arrive, 60 by default, each pause 1.0-1.1 of it: the safety net under a push that
    went silent without saying so. `confirm_seconds`: how long before a set time the gate is looked at once more.
    `write_seconds`: how long `open` and `close` go on trying.
    """

    poll_seconds: float = 2.5
    push_poll_seconds: float = 60.0
    confirm_seconds: float = 2.0
    write_seconds: float = 15.0

    def __post_init__(self) -> None:
        for field in ("poll_seconds", "push_poll_seconds", "confirm_seconds", "write_seconds"):
            if not 0 < getattr(self, field) <= 3600:
                raise ConfigurationError(
                    f"{field} must be above 0 and at most 3600, got {getattr(self, field)}"
                )


@dataclass(frozen=True)
class Release:
    """A pass through a gate.

    `source` tells what let the worker through: "open" (it was open when the worker came), "push", "poll", or "clock"
    (an opening at a set time). `delay_seconds` is from the opening to the pass, by wall clocks. `request_id` is that of the
    dashboard's request that opened it, if a push told: it finds the press in the audit.
    """

    gate: str
    epoch: int
    source: str
    delay_seconds: float
    passed_at: float
    request_id: str = ""
