"""When announcements of new messages are worth a look before the next turn. No I/O, no clock."""

from __future__ import annotations

from coordinator.scaling.decision import Observation
from coordinator.scaling.policy import ScalingPolicy

SHORTEST_SECONDS = 0.5
_GRACE_SECONDS = 3.0


def wakes_above(policy: ScalingPolicy, seen: Observation, wanted: int) -> float:
    """Messages a second that the instances wanted can do: as many are no surprise. 0: each is one."""
    rate = seen.instance_per_second or policy.instance_per_second
    return wanted * rate / max(seen.items_per_message, 1e-9)


def is_surprise(announced: float, above: float, elapsed: float) -> bool:
    """Whether so many messages in the time since the last look deserve one now; not two in half a second."""
    return announced > 0 and elapsed >= SHORTEST_SECONDS and announced > above * (elapsed + _GRACE_SECONDS)
