"""Rules for the number of instances, for a simulated pool: Kennel's agent, KEDA, a step table, and one that knows the future."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from benchmarks.scaling_pool import MIDNIGHT, REPORT_SECONDS, Day, Instance, Pool
from coordinator.gates.state import GateState
from coordinator.queues.queue import PeekedMessage
from coordinator.scaling.decision import AgentState, decide
from coordinator.scaling.observing import QueueObserver
from coordinator.scaling.policy import ScalingPolicy
from coordinator.scaling.reports import WorkerReport
from coordinator.scaling.waking import is_surprise, wakes_above

TURN = 15
T = TypeVar("T")


class Rule(Protocol):
    """Asked every second whether to change the pool."""

    def step(self, pool: Pool) -> None: ...


class Keda:
    """KEDA's azure-queue scaler and the autoscaler that it feeds, as documented.

    KEDA polls every 30 s and scales from 0 to 1 and, after 300 s without a message, to 0. The autoscaler asks each 15 s for
    ceil(messages ÷ queueLength), does nothing within 10 % of the target, adds at most the larger of 4 and as many as there
    are in 15 s, and goes down to the highest wish of the last 300 s.
    """

    POLL, COOLDOWN, SYNC, WINDOW, TOLERANCE = 30, 300, 15, 300, 0.1

    def __init__(self, queue_length: float) -> None:
        self.queue_length = queue_length
        self.wishes: deque[tuple[int, int]] = deque()
        self.active_at = -math.inf

    def step(self, pool: Pool) -> None:
        if pool.second % self.POLL == 0:
            if pool.count:
                self.active_at = pool.second
                if not pool.actual:
                    pool.scale(1)
            elif pool.actual and pool.second - self.active_at >= self.COOLDOWN:
                pool.scale(0)
                self.wishes.clear()
        if pool.second % self.SYNC or not pool.actual:
            return
        wish = max(1, min(pool.day.maximum, math.ceil(pool.count / self.queue_length)))
        if abs(pool.count / self.queue_length / pool.actual - 1) <= self.TOLERANCE:
            wish = pool.actual
        self.wishes.append((pool.second, wish))
        while self.wishes[0][0] <= pool.second - self.WINDOW:
            self.wishes.popleft()
        if wish > pool.actual:
            pool.scale(min(wish, max(2 * pool.actual, pool.actual + 4)))
        else:
            pool.scale(min(pool.actual, max(each for _, each in self.wishes)))


class StepTable:
    """The source's table of dequeue tasks (10 below 100 messages, 50 below 1,000, else 100), as shares of the maximum."""

    def step(self, pool: Pool) -> None:
        if pool.second % TURN:
            return
        share = 0.1 if pool.count < 100 else 0.5 if pool.count < 1000 else 1.0
        pool.scale(math.ceil(share * pool.day.maximum) if pool.count else 0)


class SimulatedClock:
    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def time(self) -> float:
        return MIDNIGHT + self.pool.second

    def monotonic(self) -> float:
        return float(self.pool.second)


class SimulatedQueue:
    """As much of a queue as the observer asks for."""

    name = "work"

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.clock = SimulatedClock(pool)

    async def depth(self) -> int:
        return self.pool.count

    async def peek(self, count: int) -> list[PeekedMessage[Any]]:
        found: list[PeekedMessage[Any]] = []
        for arrived, left in self.pool.waiting:
            at = MIDNIGHT + arrived
            for _ in range(min(left, count - len(found))):
                number = self.pool.arrived - self.pool.depth + len(found)
                found.append(PeekedMessage(str(number), "", (None,), 0, at, at + 1e6))
            if len(found) == count:
                break
        return found


class SimulatedGate:
    name = "start"

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    async def read(self) -> GateState:
        now = self.pool.second
        opened = max((end for _, end in self.pool.day.closed if end <= now), default=0)
        return GateState(
            name=self.name,
            state="closed" if self.pool.day.is_closed(now) else "open",
            changed_at=MIDNIGHT + opened,
        )


class Kennel:
    """The agent's own observer and decision: each turn, when it asked for an earlier one, and when push wakes it.

    The observer gets what the instances report of themselves, each every ten seconds at its own moment. With
    `dies_every` seconds the agent dies so often; its successor comes 20 s later and has nothing but the record.
    """

    def __init__(
        self,
        pool: Pool,
        policy: ScalingPolicy,
        *,
        push: bool = True,
        reports: bool = True,
        dies_every: int = 0,
    ) -> None:
        self.pool, self.policy, self.memory, self.push = pool, policy, AgentState(), push
        self.has_reports, self.dies_every = reports, dies_every
        self.observer = self._new_observer()
        self.next_at, self.looked_at, self.announced = 0.0, 0, 0
        self.wakes_above = 0.0

    def _new_observer(self) -> QueueObserver:
        pool, policy = self.pool, self.policy
        gate: Any = SimulatedGate(pool) if pool.day.closed else None
        queue: Any = SimulatedQueue(pool)
        return QueueObserver(
            queue,
            target_seconds=policy.target_seconds,
            per_second=policy.instance_per_second,
            slots=policy.slots,
            reports=self.reports if self.has_reports else None,
            gate=gate,
        )

    def step(self, pool: Pool) -> None:
        second = pool.second
        if self.dies_every and second and second % self.dies_every == 0:
            self.observer, self.next_at, self.wakes_above = self._new_observer(), second + 20.0, math.inf
        if self.push and second:
            self.announced += pool.day.arrivals[second - 1]
        opens = any(end == second for _, end in pool.day.closed)
        if second < self.next_at and not self._is_woken(second) and not (self.push and opens):
            return
        seen = run(self.observer(pool.actual))
        decision = decide(self.policy, seen, self.memory)
        self.memory = decision.memory
        pool.scale(decision.wanted)
        self.next_at = second + min(TURN, max(1.0, decision.next_seconds or TURN))
        self.looked_at, self.announced = second, 0
        self.wakes_above = wakes_above(self.policy, seen, decision.wanted)

    def _is_woken(self, second: int) -> bool:
        elapsed = second - self.looked_at
        return is_surprise(self.announced, self.wakes_above, elapsed)

    async def reports(self) -> list[WorkerReport]:
        pool, found = self.pool, []
        for gone in [each for each in pool.left if pool.second - each.left_at < 60]:
            found.append(self._report(gone, gone.left_at, gone.share, 0, leaving=True))
        in_flight, ready = pool.in_flight, max(1, pool.ready)
        for place, instance in enumerate(pool.instances[: pool.ready]):
            ago = (pool.second + 7 * instance.number) % REPORT_SECONDS
            ago = min(ago, len(pool.shares) - 1, pool.second - instance.ready_at)
            share = in_flight // ready + (place < in_flight % ready)
            found.append(self._report(instance, pool.second - ago, pool.shares[-1 - ago], share))
        return found

    def _report(
        self, instance: Instance, second: int, share: float, in_flight: int, *, leaving: bool = False
    ) -> WorkerReport:
        day = self.pool.day
        done = max(0, round(share - instance.share_before))
        return WorkerReport(
            worker=f"w-{instance.number}",
            queue="work",
            at=MIDNIGHT + second,
            started_at=MIDNIGHT + instance.ready_at,
            done=done,
            items=done,
            in_flight=in_flight,
            slots=day.slots,
            item_seconds=day.handler_seconds[min(second, day.seconds - 1)],
            leaving=leaving,
        )


def policy_for(day: Day) -> ScalingPolicy:
    """What an operator would say of that pool on its first morning."""
    return ScalingPolicy(
        maximum=day.maximum,
        target_seconds=day.target_seconds,
        boot_seconds=day.boot_seconds,
        instance_per_second=day.rate(0),
        slots=day.slots,
    )


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise RuntimeError("a simulated part waits")
