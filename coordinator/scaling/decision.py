"""How many instances there should be, and why (S13). Pure: no I/O, no clock."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from coordinator.bounds import Count, Figure, KeyText, Moment, Remark
from coordinator.scaling.policy import ScalingPolicy

Direction = Literal["up", "down", "none"]


class Observation(msgspec.Struct, frozen=True):
    """What was seen at a moment (`at`, seconds since 1970). None means unknown, and is never taken for 0.

    `visible` messages wait, `in_flight` are in hand; `oldest_seconds` is the age of the oldest that waits. Rates are items
    per second; `cpu` is the mean of the instances, 0-1. `items_per_message` turns messages into items. `held_by` names the
    gate that lets nobody work, if one does: what waits for a gate is not late, and more instances would not help.
    """

    at: Moment
    actual: Count
    visible: Count | None
    in_flight: Count | None = None
    oldest_seconds: Figure | None = None
    arrival_per_second: Figure | None = None
    instance_per_second: Figure | None = None
    cpu: Figure | None = None
    items_per_message: Figure = 1.0
    held_by: KeyText = ""


class Memory(msgspec.Struct, frozen=True):
    """What the next decision must know of the earlier ones: the last step, and when the direction last changed."""

    wanted: Count | None = None
    stepped_at: Moment = 0.0
    direction: Direction = "none"
    turned_at: Moment = 0.0


class Decision(msgspec.Struct, frozen=True):
    """How many, why, and what to remember."""

    wanted: Count
    reason: Remark
    memory: Memory


def decide(policy: ScalingPolicy, seen: Observation, memory: Memory) -> Decision:
    """The number of instances that does what waits, and what arrives besides, in time.

    Goes up at once when time is short; goes down only when nothing in hand would suffer. Changes direction at most once
    in a cool-down, whoever is the agent: `memory` is handed on. Windows of the policy go before all of it.
    """
    now = seen.actual if memory.wanted is None else memory.wanted
    lowest, highest, window = policy.bounds(seen.at)
    suffix = f" ({window})" if window else ""
    if not lowest <= now <= highest:
        bounded = max(lowest, min(highest, now))
        return _step(
            bounded, f"{bounded} because {lowest}…{highest} are allowed now{suffix}", now, seen, memory
        )
    if seen.held_by:
        return Decision(now, f"{now} kept while gate {seen.held_by} holds them", _kept(now, memory))
    if seen.visible is None:
        return Decision(now, f"{now} kept because the depth is unknown", _kept(now, memory))
    needed, why = _needed(policy, seen)
    if seen.cpu is not None and seen.cpu > policy.cpu_high and needed <= now:
        needed, why = now + 1, f"the processors are {seen.cpu:.0%} busy"
    bounded = max(lowest, min(highest, needed))
    if bounded != needed:
        why += f"; {needed} is outside {lowest}…{highest}{suffix}"
    if bounded < now:
        floor, why = _floor(policy, seen, now, bounded, why)
        bounded = max(bounded, floor)
    if bounded == now:
        return Decision(now, f"{now} because {why}", _kept(now, memory))
    if wait := _must_wait(policy, seen.at, "up" if bounded > now else "down", memory):
        return Decision(now, f"{now} kept, though {bounded} because {why}: {wait}", _kept(now, memory))
    return _step(bounded, f"{bounded} because {why}", now, seen, memory)


def _needed(policy: ScalingPolicy, seen: Observation) -> tuple[int, str]:
    rate = seen.instance_per_second or policy.instance_per_second
    visible, in_flight = seen.visible or 0, seen.in_flight or 0
    waiting = (visible + in_flight) * seen.items_per_message
    arriving = seen.arrival_per_second or 0.0
    # What is left of the time agreed, for the oldest; never so little that the sum explodes.
    slack = policy.target_seconds - (seen.oldest_seconds or 0.0) - policy.boot_seconds
    left = max(slack, policy.target_seconds * 0.1)
    needed = math.ceil(round(waiting / left / rate + arriving / rate, 6))
    if waiting:
        needed = max(1, needed)
    why = f"{waiting:g} to do at {rate:.3g}/s each within {left:.0f} s"
    if arriving >= 0.05:
        why += f", {arriving:.3g}/s arriving"
    if not waiting and not needed:
        why = "there is nothing to do"
    return needed, why


def _floor(policy: ScalingPolicy, seen: Observation, now: int, wanted: int, why: str) -> tuple[int, str]:
    """Nobody is retired while it may hold messages that the others have no room for."""
    if seen.in_flight is None:
        return now, f"how much is in hand is unknown ({why})"
    floor = min(now, math.ceil(seen.in_flight / policy.slots))
    if floor > wanted:
        return floor, f"{seen.in_flight} messages are in hand ({why})"
    return wanted, why


def _must_wait(policy: ScalingPolicy, at: float, direction: Direction, memory: Memory) -> str:
    since_step, since_turn = at - memory.stepped_at, at - memory.turned_at
    if direction == memory.direction or memory.direction == "none":
        if memory.direction != "none" and since_step < policy.step_seconds:
            return f"the last step was {since_step:.0f} s ago"
        return ""
    if since_turn < policy.cooldown_seconds:
        return f"the direction changed {since_turn:.0f} s ago"
    if direction == "down" and since_step < policy.cooldown_seconds:
        return f"the last step up was {since_step:.0f} s ago"
    return ""


def _step(wanted: int, reason: str, now: int, seen: Observation, memory: Memory) -> Decision:
    direction: Direction = "up" if wanted > now else "down"
    turned = seen.at if memory.direction not in ("none", direction) else memory.turned_at
    return Decision(wanted, reason, Memory(wanted, seen.at, direction, turned))


def _kept(wanted: int, memory: Memory) -> Memory:
    return msgspec.structs.replace(memory, wanted=wanted)
