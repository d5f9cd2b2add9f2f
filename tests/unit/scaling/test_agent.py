"""The agent on a table in memory, with a driver that only remembers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from coordinator.errors import LeadershipLost, StorageUnreachable
from coordinator.scaling.agent import ScalingAgent
from coordinator.scaling.decision import Observation
from coordinator.scaling.drivers import DryRunDriver
from coordinator.scaling.history import ScalingHistory
from coordinator.scaling.observing import QueueObserver
from coordinator.scaling.policy import ScalingPolicy
from coordinator.tables.table import Table
from coordinator.testing.clock import ManualClock
from coordinator.testing.queues import memory_queue
from coordinator.testing.tables import MemoryTableStore

POLICY = ScalingPolicy(
    maximum=10, target_seconds=60, boot_seconds=0, instance_per_second=10, cooldown_seconds=120
)


@dataclass
class Tenure:
    epoch: int = 1
    is_over: bool = False

    def check(self, *, needs_seconds: float = 0.0) -> None:
        if self.is_over:
            raise LeadershipLost("the term is over")


class Killed(BaseException):
    """The process ends here."""


class Pool:
    """A queue's depth, a driver, and what agents share."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.table = Table(MemoryTableStore("scaling", clock=self.clock))
        self.driver = DryRunDriver()
        self.depth: int | None = 0

    async def observe(self, actual: int) -> Observation:
        return Observation(self.clock.time(), actual, self.depth, 0)

    def agent(self) -> ScalingAgent:
        """As another process has it: nothing shared but storage and the pool itself."""
        return ScalingAgent(
            "billing",
            self.driver,
            policy=POLICY,
            observe=self.observe,
            history=ScalingHistory(self.table, "billing"),
            identity="node",
            clock=self.clock,
        )


@pytest.fixture
def pool() -> Pool:
    return Pool()


async def test_the_pool_follows_its_load_and_every_change_is_recorded(pool: Pool) -> None:
    agent = pool.agent()
    for depth, pause in ((0, 200), (3000, 30), (0, 120), (0, 200), (600, 200)):
        pool.depth = depth
        await agent.step(Tenure())
        await pool.clock.advance(pause)
    assert pool.driver.asked == [5, 0, 1]
    records = await agent.history.changes()
    assert [(each.previous, each.wanted, each.by) for each in records] == [
        (0, 1, "node"),
        (5, 0, "node"),
        (0, 5, "node"),
    ]
    assert "3000 to do" in records[2].reason
    assert records[2].seen.visible == 3000


async def test_an_agent_killed_in_mid_scale_is_followed_without_a_flap(pool: Pool) -> None:
    """Killed between its record and the driver's call: the successor carries out what was recorded, and holds it."""
    first, second = pool.agent(), pool.agent()
    pool.depth = 3000

    async def die(wanted: int) -> None:
        raise Killed

    scale, pool.driver.scale = pool.driver.scale, die  # type: ignore[method-assign]
    with pytest.raises(Killed):
        await first.step(Tenure(epoch=1))
    pool.driver.scale = scale  # type: ignore[method-assign]
    pool.depth = 0  # and now there seems to be nothing to do
    for _ in range(7):
        await pool.clock.advance(15)
        await second.step(Tenure(epoch=2))
    assert pool.driver.asked == [5]
    await pool.clock.advance(30)
    await second.step(Tenure(epoch=2))
    assert pool.driver.asked == [5, 0]


async def test_an_agent_whose_term_is_over_changes_nothing(pool: Pool) -> None:
    first, second = pool.agent(), pool.agent()
    await first.step(Tenure(epoch=1))
    await second.step(Tenure(epoch=2))
    pool.depth = 3000
    with pytest.raises(LeadershipLost, match="term 2 has decided"):
        await first.step(Tenure(epoch=1))
    with pytest.raises(LeadershipLost):
        await second.step(Tenure(epoch=2, is_over=True))
    assert pool.driver.asked == []


async def test_instances_that_died_are_replaced(pool: Pool) -> None:
    agent = pool.agent()
    pool.depth = 3000
    await agent.step(Tenure())
    pool.driver.asked.append(2)  # three of five are gone
    await agent.step(Tenure())
    assert pool.driver.asked == [5, 2, 5]
    assert len(await agent.history.changes()) == 1


async def test_what_cannot_be_seen_changes_nothing_and_the_agent_goes_on(pool: Pool) -> None:
    agent = pool.agent()
    broken = True

    async def observe(actual: int) -> Observation:
        if broken:
            raise StorageUnreachable("away")
        return await pool.observe(actual)

    agent._observe = observe
    pool.depth = 3000
    leading = asyncio.create_task(agent.lead(Tenure()))
    await pool.clock.advance(50)
    assert pool.driver.asked == []
    broken = False
    await pool.clock.advance(15)
    leading.cancel()
    assert pool.driver.asked == [5]


async def test_a_queue_is_seen_with_two_requests() -> None:
    clock = ManualClock()
    queue = memory_queue("work", type=int, clock=clock)
    observer = QueueObserver(queue)
    assert (await observer(1)).visible == 0
    await asyncio.gather(*(queue.put(number) for number in range(20)))
    await queue.transport.get(5, visibility_seconds=600)
    await clock.advance(10)
    seen = await observer(1)
    # Two a second arrived, seen for ten seconds of the minute that counts.
    assert (seen.visible, seen.in_flight, seen.arrival_per_second) == (
        15,
        5,
        pytest.approx(2.0 * (1 - 2.718281828 ** (-10 / 60))),
    )
    assert seen.oldest_seconds == pytest.approx(10.0, abs=1.0)
    await asyncio.gather(*(queue.put(number) for number in range(60)))
    assert (await observer(1)).visible == 80
