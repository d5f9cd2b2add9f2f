"""How many instances there should be, and why. Pure: no I/O, no clock."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from coordinator.bounds import MAX_ITEMS, Count, Duration, Figure, KeyText, Moment, Remark
from coordinator.scaling.policy import ScalingPolicy

Direction = Literal["up", "down", "none"]

# Shares of the time agreed. What keeps arriving may wait an eighth of it; what waits now is planned to be done with a
# twentieth to spare; what is nearly or surely late is caught up with within a seventh of it after the boot.
_PATIENCE, _SPARE, _CATCH_UP = 0.12, 0.05, 0.15
# Jobs that take long come and go by chance: almost twice as many may wait as run.
_PATIENCE_JOBS = 1.75
# Fewer instances must be able to do what waits in half the time, before any of them is given up.
_CAUTION = 0.5
# A number that proved too few is tried again at once if so small a share of what it does is needed.
_SURELY = 0.75
# One that is busy for this share of the time is worth it; so many standard deviations of what arrives are no chance.
_WORTH_IT, _CHANCE = 0.9, 4.0
_LONGEST_GUESS = 0.25
_LONGEST_HOLD_SECONDS = 3600.0
_LOOK_AHEAD_SECONDS = 30.0
_SHORTEST_TURN_SECONDS = 2.0


class Observation(msgspec.Struct, frozen=True):
    """What was seen at a moment (`at`, seconds since 1970). None means unknown, and is never taken for 0.

    `visible` messages wait, `in_flight` are being processed, `delayed` are not due; `oldest_seconds` is the age of the
    oldest that waits. Rates are items per second: what keeps arriving, the most that it may be (None: too little was
    seen to give up an instance), and what one instance does. `cpu` is the mean of the instances, 0-1.
    `items_per_message` turns messages into items. `held_by` names the gate that lets nobody work, if one does: what waits
    for a gate is not late, and more instances would not help; `held_seconds` is for how long it was seen closed (0 while it
    is armed). `ready` of the `actual` instances have begun to work.
    `ages` are what waits by age, the oldest first: (no older than, items); without them, all is as old as the oldest.
    `arrived` are the items since the last look; `expected_per_second` is what arrived a week before, if that counts.
    `is_growing`: more and more arrives, by more than chance explains.
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
    held_seconds: Duration = 0.0
    most_per_second: Figure | None = None
    ready: Count | None = None
    delayed: Count = 0
    slots: Count | None = None
    item_seconds: Duration | None = None
    longest_seconds: Duration = 0.0
    idle_seconds: Figure | None = None
    ages: Annotated[tuple[tuple[Figure, Figure], ...], Meta(max_length=MAX_ITEMS)] = ()
    arrived: Figure = 0.0
    expected_per_second: Figure | None = None
    is_growing: bool = False


class AgentState(msgspec.Struct, frozen=True):
    """What the next decision must know of the earlier ones.

    The last step; how many were too few (`too_few`), when a step up that followed a step down too soon showed that
    (`turned_at`), and for how long there are more than those since (`hold_seconds`, twice as long each time); `settled` had
    begun to work at the last step.
    """

    wanted: Count | None = None
    stepped_at: Moment = 0.0
    direction: Direction = "none"
    turned_at: Moment = 0.0
    hold_seconds: Duration = 0.0
    settled: Count = 0
    too_few: Count = 0


class Decision(msgspec.Struct, frozen=True):
    """How many, why, and what to remember. `next_seconds`: a look that soon may change it (None: the usual turn)."""

    wanted: Count
    reason: Remark
    memory: AgentState
    next_seconds: Figure | None = None


def decide(policy: ScalingPolicy, seen: Observation, memory: AgentState) -> Decision:
    """The fewest instances that do what waits, and what keeps arriving, in time.

    Goes up at once. Goes down only to a number that surely suffices, and no lower than what is in flight; after a step up
    that followed a step down too soon, not before a hold that doubles each time, whoever is the agent: `memory` is handed
    on. Windows of the policy go before all of it.
    """
    now = seen.actual if memory.wanted is None else memory.wanted
    lowest, highest, window = policy.bounds(seen.at)
    suffix = f" ({window})" if window else ""
    if not lowest <= now <= highest:
        bounded = max(lowest, min(highest, now))
        reason = f"{bounded} because {lowest}…{highest} are allowed now{suffix}"
        return Decision(bounded, reason, _stepped(policy, bounded, now, seen, memory))
    if seen.visible is None and not seen.held_by:
        return Decision(now, f"{now} kept because the depth is unknown", _kept(now, memory))
    load = _Load(policy, seen, memory, now)
    if seen.held_by:
        ready = load.ready_for_opening(highest)
        if ready > now:
            reason = f"{ready} because {load.waiting:.6g} wait for gate {seen.held_by}: fewer would be late when it opens"
            return Decision(ready, reason, _stepped(policy, ready, now, seen, memory))
        fewer = max(lowest, ready, 1)
        if fewer < now and seen.held_seconds >= policy.idle_seconds and not seen.in_flight:
            why = f"{load.waiting:.6g} wait for gate {seen.held_by}, and the others can be started when it opens"
            memory = msgspec.structs.replace(memory, wanted=fewer, stepped_at=seen.at, direction="none")
            return Decision(fewer, f"{fewer} because {why}", memory)
        return Decision(now, f"{now} kept while gate {seen.held_by} holds them", _kept(now, memory))
    needed, why = load.needed(highest), load.words()
    foreseen = min(highest, math.ceil((seen.expected_per_second or 0.0) / load.rate - 1e-9))
    forecast = f"{seen.expected_per_second or 0.0:.3g}/s arrived at this hour a week ago (forecast)"
    if foreseen > needed:
        needed, why = foreseen, forecast
    if seen.cpu is not None and seen.cpu > policy.cpu_high and needed <= now:
        # One more at a time: the next only after this one had the time to boot and to be seen.
        if seen.at - memory.stepped_at >= policy.boot_seconds + policy.step_seconds:
            needed, why = now + 1, f"the processors are {seen.cpu:.0%} busy"
        else:
            needed = now
    wanted = max(lowest, min(highest, needed))
    if wanted != needed:
        why += f"; limited to {lowest}–{highest}{suffix} (calculated {needed})"
    if wanted > now:
        memory = _stepped(policy, wanted, now, seen, memory)
        return Decision(wanted, f"{wanted} because {why}", memory, _SHORTEST_TURN_SECONDS)
    if wanted == now and lowest < now:
        wanted = max(lowest, load.enough())
        if wanted < foreseen:
            wanted, why = min(now, foreseen), forecast
    soon = load.drained_seconds() if now > lowest else None
    if wanted >= now:
        return Decision(now, f"{now} because {why}", _kept(now, memory), soon)
    floor, reason = _floor(policy, seen, now, wanted)
    if floor > wanted:
        wanted, why = floor, f"{reason} ({why})"
        soon = soon or max(_SHORTEST_TURN_SECONDS, load.takes / 4)
    if wanted >= now:
        return Decision(now, f"{now} because {why}", _kept(now, memory), soon)
    if (held := load.held(wanted)) > wanted:
        since = seen.at - memory.turned_at
        wanted, why = held, f"{memory.too_few} were not enough {since:.0f} s ago ({why})"
        if wanted >= now:
            return Decision(now, f"{now} because {why}", _kept(now, memory), soon)
    wait, left = _must_wait(policy, seen, wanted, memory)
    if wait:
        reason = f"{now} kept, though {wanted} because {why}: {wait}"
        return Decision(now, reason, _kept(now, memory), max(_SHORTEST_TURN_SECONDS, left))
    return Decision(wanted, f"{wanted} because {why}", _stepped(policy, wanted, now, seen, memory), soon)


class _Load:
    """What there is to do, and what numbers of instances make of it."""

    def __init__(self, policy: ScalingPolicy, seen: Observation, memory: AgentState, now: int) -> None:
        self.seen, self.policy, self.memory, self.now = seen, policy, memory, now
        self.rate = seen.instance_per_second or policy.instance_per_second
        self.waiting = (seen.visible or 0) * seen.items_per_message
        self.arriving = seen.arrival_per_second or 0.0
        self.boot = policy.boot_seconds
        # Before the first report, slots and rate say how long an item takes; more than this share of the time is no good guess.
        guess = policy.slots / policy.instance_per_second
        self.takes = seen.item_seconds or (guess if guess <= _LONGEST_GUESS * policy.target_seconds else 0.0)
        service = min(self.takes, policy.target_seconds / 2)
        self.target = policy.target_seconds * (1 - _SPARE) - service
        self.longest_patience = max(_PATIENCE * self.target, min(_PATIENCE_JOBS * service, self.target / 3))
        oldest = seen.oldest_seconds or 0.0
        ages = seen.ages or (((oldest, self.waiting),) if self.waiting else ())
        self.due: list[tuple[float, float]] = []
        total = 0.0
        for age, items in ages:
            total += items
            self.due.append((self.target - age, total))
        # Those that were asked for and have not begun, begin when they are expected to.
        left = memory.stepped_at + self.boot - seen.at if memory.direction == "up" else 0.0
        self.ready = min(now, seen.actual)
        if seen.ready is not None:
            self.ready = min(now, seen.ready)
        elif left > 0:
            self.ready = min(now, memory.settled)
        self.boot_left = max(_SHORTEST_TURN_SECONDS, left)

    def capacity(self, count: int, seconds: float) -> float:
        """Items that so many can do within the seconds from now, if the missing ones are asked for now."""
        ready = min(count, self.ready)
        booting = min(count, self.now) - ready
        new = max(0, count - self.now)
        return self.rate * (
            ready * max(0.0, seconds)
            + booting * self._from_begin(seconds - self.boot_left)
            + new * self._from_begin(seconds - self.boot)
        )

    def _from_begin(self, seconds: float) -> float:
        """The seconds for as much as one takes that begins: all its handlers are free, so at first it takes more."""
        more = (self.seen.item_seconds or 0.0) / 2
        return seconds + min(seconds, more) if seconds > 0 else 0.0

    def patience(self, count: int) -> float:
        """How long what keeps arriving may wait before another instance is worth it.

        While more and more arrives, one that would hardly ever be idle will be needed anyway: then no longer than chance makes
        it wait, since what waits is late first if work stops.
        """
        if not self.seen.is_growing or self.arriving < _WORTH_IT * (count + 1) * self.rate:
            return self.longest_patience
        seconds = self.boot + _LOOK_AHEAD_SECONDS + self.takes
        return min(self.longest_patience, _CHANCE * math.sqrt(seconds / self.arriving))

    def needed(self, highest: int) -> int:
        """The fewest, from those there are up, with which nothing will be late; one more than `highest` if none are enough."""
        for count in range(self.now, highest + 1):
            if self._suffices(count):
                return count
        return highest if highest <= self.now else self._wished(highest)

    def ready_for_opening(self, highest: int) -> int:
        """The fewest that must have begun when the gate opens: with all others started then, what waits is done in time."""
        for count in range(highest):
            later = (highest - count) * max(0.0, self.target - self.boot)
            if self.rate * (count * self.target + later) >= self.waiting:
                return count
        return highest

    def _wished(self, highest: int) -> int:
        """How many would be needed, beyond what is allowed; for the words."""
        count = highest
        while count < 10 * highest and not self._suffices(count):
            count += max(1, count // 10)
        return count

    def _suffices(self, count: int) -> bool:
        for left, items in self.due:
            # What new instances come too late for is caught up with soon after they came.
            within = max(left, self.boot + _CATCH_UP * self.policy.target_seconds)
            if self.capacity(count, within) < items - 1e-6:
                return False
        if self.waiting and not count:
            return False
        if self.waiting and self.arriving > count * self.rate:
            # A backlog grows. It may, as long as what arrives does not wait longer than it should before more could help.
            ahead = self.boot + _LOOK_AHEAD_SECONDS
            able = self.capacity(count, self.patience(count) + ahead)
            return able >= self.waiting + self.arriving * ahead - 1e-6
        # A backlog that is larger is worked off within the time agreed, although nothing would be late: after an outage it would
        # delay all that arrived meanwhile.
        standing = self.waiting - self.arriving * self.patience(count)
        return (
            standing <= 0
            or self.capacity(count, self.target) >= standing + self.arriving * self.target - 1e-6
        )

    def enough(self) -> int:
        """The fewest that surely suffice: no more than there are now."""
        most = self.seen.most_per_second
        for count in range(self.now):
            if most is None:
                break
            if count == 0 and (self.waiting or self.seen.in_flight or not self._is_idle()):
                continue
            if most > count * self.rate and count:
                continue
            if count and self.waiting > count * self.rate * self.longest_patience * _CAUTION:
                continue
            able = min(count, self.ready) * self.rate * _CAUTION
            if all(able * max(0.0, left) >= items - 1e-6 for left, items in self.due):
                return count
        return self.now

    def held(self, count: int) -> int:
        """As many, or so many more that a number is not tried again too soon after it proved too few.

        It is when much less arrives than then: that is another load.
        """
        most = self.seen.most_per_second
        if not _holds(self.memory, self.seen.at):
            return count
        while count <= self.memory.too_few and (most is None or most > _SURELY * count * self.rate):
            count += 1
        return min(count, self.now)

    def _is_idle(self) -> bool:
        idle = self.seen.idle_seconds
        return idle is None or idle >= self.policy.idle_seconds

    def drained_seconds(self) -> float | None:
        """When what waits may be done: then some may leave, and each second costs."""
        able = self.now * self.rate - self.arriving
        if not self.waiting or able <= 0:
            return None
        return max(_SHORTEST_TURN_SECONDS, self.waiting / able)

    def words(self) -> str:
        """What there is to do, for people."""
        if not self.waiting and not self.arriving and not self.seen.in_flight:
            return "there is nothing to do"
        left = self.due[0][0] if self.due else self.target
        why = f"{self.waiting:.6g} to do at {self.rate:.3g}/s each within {max(0.0, left):.0f} s"
        if self.arriving >= 0.05:
            why += f", {self.arriving:.3g}/s arriving"
        if self.seen.delayed:
            why += f", {self.seen.delayed} not due"
        return why


def _floor(policy: ScalingPolicy, seen: Observation, now: int, wanted: int) -> tuple[int, str]:
    """Nobody is retired while it may hold messages that the others have no room for."""
    if seen.in_flight is None:
        return now, "how much is in flight is unknown"
    floor = min(now, math.ceil(seen.in_flight / (seen.slots or policy.slots)))
    return floor, f"{seen.in_flight} messages are in flight"


def _holds(memory: AgentState, at: float) -> bool:
    return at - memory.turned_at < memory.hold_seconds


def _must_wait(
    policy: ScalingPolicy, seen: Observation, wanted: int, memory: AgentState
) -> tuple[str, float]:
    """Why nobody leaves yet, if so, and for how many seconds more."""
    since = seen.at - memory.stepped_at
    if memory.direction == "up" and since < policy.boot_seconds:
        return f"those asked for {since:.0f} s ago may not have begun", policy.boot_seconds - since
    if memory.direction == "down" and since < policy.step_seconds and wanted and seen.arrival_per_second:
        return f"the last step was {since:.0f} s ago", policy.step_seconds - since
    return "", 0.0


def _stepped(
    policy: ScalingPolicy, wanted: int, now: int, seen: Observation, memory: AgentState
) -> AgentState:
    direction: Direction = "up" if wanted > now else "down"
    turned, hold, too_few = memory.turned_at, memory.hold_seconds, memory.too_few
    rate = seen.instance_per_second or policy.instance_per_second
    # A burst proves nothing: the step down was wrong if those that were left cannot do what keeps arriving.
    if direction == "up" and (seen.arrival_per_second or 0.0) > now * rate:
        if memory.direction == "down":
            # Too soon after a step down: that one was wrong, so the next takes longer. Else forgotten.
            is_soon = seen.at - memory.stepped_at < 2 * policy.cooldown_seconds and now > 0
            hold = min(_LONGEST_HOLD_SECONDS, max(policy.cooldown_seconds, 2 * hold)) if is_soon else 0.0
            turned, too_few = seen.at, now
        elif _holds(memory, seen.at):
            turned, too_few = seen.at, now
    settled = min(wanted, now if seen.ready is None else seen.ready)
    if seen.ready is None and memory.direction == "up" and seen.at - memory.stepped_at < policy.boot_seconds:
        settled = min(wanted, memory.settled)
    return AgentState(wanted, seen.at, direction, turned, hold, settled, too_few)


def _kept(wanted: int, memory: AgentState) -> AgentState:
    return msgspec.structs.replace(memory, wanted=wanted)
