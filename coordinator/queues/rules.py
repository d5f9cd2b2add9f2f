"""How many dequeue tasks a queue deserves. Pure, explained, and storable, so that operators can change it while workers run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from coordinator.bounds import Count, Duration, plainly
from coordinator.errors import ConfigurationError

MOST_STEPS = 100


class Steps(msgspec.Struct, frozen=True, tag="steps", forbid_unknown_fields=True):
    """A table: the first step whose `below` is above the depth gives the tasks.

    Attributes:
        steps: Pairs of `below` and tasks, in rising order (default: below 100 messages 10 tasks, below 1,000 messages
            50).
        beyond: Tasks beyond the last step, at least 1 (default 100).
    """

    steps: Annotated[tuple[tuple[Count, Count], ...], Meta(max_length=MOST_STEPS)] = ((100, 10), (1000, 50))
    beyond: Count = 100

    def __post_init__(self) -> None:
        depths = [below for below, _ in self.steps]
        if depths != sorted(set(depths)) or any(below < 1 for below in depths):
            raise ConfigurationError(f"the steps' depths must rise from 1 up, got {depths}")
        if any(tasks < 0 for _, tasks in self.steps) or self.beyond < 1:
            raise ConfigurationError("a step's tasks must be 0 or more, and beyond at least 1")


class TargetLatency(msgspec.Struct, frozen=True, tag="target", forbid_unknown_fields=True):
    """Enough tasks to drain the queue within `seconds`, and to handle what arrives besides.

    Attributes:
        seconds: The target, 0.1 to 86,400.
        minimum: Minimum number of tasks (default 0).
        maximum: Maximum number of tasks (default 100).
        up_seconds: Shortest time between two steps up (default 2). Small follows every wobble, large lags behind.
        down_seconds: Shortest time between two steps down (default 30).
        assumed_service_seconds: Time of a handler until one was measured (default 1).
    """

    seconds: Duration
    minimum: Count = 0
    maximum: Count = 100
    up_seconds: Duration = 2.0
    down_seconds: Duration = 30.0
    assumed_service_seconds: Duration = 1.0

    def __post_init__(self) -> None:
        if not 0.1 <= self.seconds <= 86_400:
            raise ConfigurationError(f"the target must be 0.1 s to a day, got {self.seconds}")
        if not 0 <= self.minimum <= self.maximum or self.maximum < 1:
            raise ConfigurationError(
                f"a target rule needs 0 <= minimum <= maximum, got {self.minimum} and {self.maximum}"
            )
        if self.up_seconds < 0 or self.down_seconds < 0 or self.assumed_service_seconds <= 0:
            raise ConfigurationError("cool-downs must not be negative, and the service time must be positive")


ScalingRule = Steps | TargetLatency
DEFAULT_RULE = Steps()


@dataclass(frozen=True)
class QueueLoad:
    """What a rule decides from. `waiting` None means the depth could not be read: then nothing is scaled in."""

    waiting: int | None
    in_flight: int = 0
    tasks: int = 0
    arrival_per_second: float = 0.0
    service_seconds: float | None = None
    since_up_seconds: float = math.inf
    since_down_seconds: float = math.inf


@dataclass(frozen=True)
class TaskDecision:
    """How many tasks, and why, for people: "12 because …"."""

    tasks: int
    reason: str


def decide(rule: ScalingRule, measured: QueueLoad, *, allowed: range) -> TaskDecision:
    """The tasks that the rule wants, within `allowed` (the listener's own bounds)."""
    if measured.waiting is None:
        return TaskDecision(measured.tasks, f"{measured.tasks} tasks: unchanged, depth unknown")
    desired, why = _by_steps(rule, measured) if isinstance(rule, Steps) else _by_target(rule, measured)
    lowest, highest = allowed.start, allowed.stop - 1
    tasks = max(lowest, min(highest, desired))
    if tasks != desired:
        why += f"; limited to {lowest}–{highest} (calculated {desired})"
    return TaskDecision(tasks, f"{tasks} tasks: {why}")


@dataclass(frozen=True)
class WorkDetected:
    """Work was found, or is still coming.

    Attributes:
        queue: The queue.
        idle: How many reads in a row had found nothing.
        tasks: Dequeue tasks that run.
        depth: Messages in the queue; None if it was not read.
    """

    queue: str
    idle: int
    tasks: int
    depth: int | None


def work_detected(
    event: WorkDetected, *, rule: ScalingRule = DEFAULT_RULE, allowed: range = range(101)
) -> int:
    """The default answer to work found: what the rule says for the depth of the event.

    Args:
        event: What was found.
        rule: The rule (default: `Steps()`).
        allowed: Minimum and maximum number of tasks (default 0 to 100).

    Returns:
        How many dequeue tasks there should be.
    """
    return decide(rule, QueueLoad(waiting=event.depth, tasks=event.tasks), allowed=allowed).tasks


def _by_steps(rule: Steps, measured: QueueLoad) -> tuple[int, str]:
    depth = (measured.waiting or 0) + measured.in_flight
    for below, tasks in rule.steps:
        if depth < below:
            return tasks, f"depth {depth} (< {below})"
    last = rule.steps[-1][0] if rule.steps else 0
    return rule.beyond, f"depth {depth} (≥ {last})"


def _by_target(rule: TargetLatency, measured: QueueLoad) -> tuple[int, str]:
    waiting = measured.waiting or 0
    measured_service = measured.service_seconds is not None
    service = (
        measured.service_seconds if measured.service_seconds is not None else rule.assumed_service_seconds
    )
    backlog, arriving = waiting * service / rule.seconds, measured.arrival_per_second * service
    desired = math.ceil(round(backlog + arriving, 6))
    if waiting:
        desired = max(1, desired)
    why = f"{waiting} waiting × {service:.3g} s each{'' if measured_service else ' (assumed)'} ÷ target {rule.seconds:g} s"
    if arriving >= 0.05:
        why += f" + {measured.arrival_per_second:.3g}/s arriving"
    bounded = max(rule.minimum, min(rule.maximum, desired))
    if bounded != desired:
        why += f", limited to {rule.minimum}–{rule.maximum}"
    if bounded > measured.tasks and measured.since_up_seconds < rule.up_seconds:
        return (
            measured.tasks,
            f"{why}; calculated {bounded}, last step up {measured.since_up_seconds:.1f} s ago",
        )
    if bounded < measured.tasks:
        since = min(measured.since_down_seconds, measured.since_up_seconds)
        if since < rule.down_seconds:
            return measured.tasks, f"{why}; calculated {bounded}, last step {since:.1f} s ago"
        floor = min(measured.tasks, measured.in_flight)
        if bounded < floor:
            return floor, f"{floor} in flight ({why}; calculated {bounded})"
    return bounded, why


_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(ScalingRule)


def encode_rule(rule: ScalingRule) -> bytes:
    """The stored form: JSON."""
    return msgspec.json.encode(rule)


def decode_rule(text: str | bytes) -> ScalingRule:
    """Read the stored form; raises `ConfigurationError` naming the fault."""
    try:
        rule: ScalingRule = _decoder.decode(text)
    except ConfigurationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"this is not a scaling rule: {plainly(error)}") from error
    return rule
