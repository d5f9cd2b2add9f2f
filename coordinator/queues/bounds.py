"""What the options of a listener may be."""

from __future__ import annotations

from coordinator.errors import ConfigurationError


def check_options(
    tasks: range, slots: int, batch: int, visibility_seconds: float, weights: list[int]
) -> None:
    """Raise `ConfigurationError` naming the option that is out of bounds."""
    if tasks.step != 1 or tasks.start < 0 or len(tasks) == 0 or tasks.stop < 2:
        raise ConfigurationError(
            f"tasks {tasks!r}: give the fewest and the most, such as range(0, 51) for 0 to 50 dequeue tasks"
        )
    if slots < 1 or batch < 0:
        raise ConfigurationError(f"slots must be at least 1 and batch at least 0, got {slots} and {batch}")
    if not 1 <= visibility_seconds <= 7 * 24 * 3600:
        raise ConfigurationError(
            f"visibility_seconds must be 1 to 604,800 (7 days), got {visibility_seconds}"
        )
    if min(weights) < 1:
        raise ConfigurationError(f"a queue's weight must be at least 1, got {min(weights)}")


def check_time_out(timeout: float | None, linger_seconds: float) -> None:
    """Raise `ConfigurationError` naming the option that is out of bounds."""
    if timeout is not None and not 0 < timeout <= 30 * 24 * 3600:
        raise ConfigurationError(
            f"timeout must be more than 0 and at most 2,592,000 seconds (30 days), or None, got {timeout}"
        )
    if not 0 <= linger_seconds <= 7 * 24 * 3600:
        raise ConfigurationError(f"linger_seconds must be 0 to 604,800 (7 days), got {linger_seconds}")
